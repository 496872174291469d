"""From a header to a :class:`~advisor.models.description.ModelDescription`: what each tensor is for.

The tensors decide, keys fill in what tensors cannot say (heads, windows, experts used); what neither says is
marked in ``assumptions``. Rules follow llama.cpp b11434: ``src/llama-hparams.cpp`` for caches and states,
``src/models/*.cpp`` for which tensors are read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from advisor.errors import ModelFileError
from advisor.models import architectures
from advisor.models.architectures import ALWAYS_SIZED, WINDOWS
from advisor.models.description import Drafter, Kind, Layer, Mixer, ModelDescription, MtpBlock, Role, WeightGroup
from advisor.models.gguf import Header, StringArray, Tensor
from advisor.models.quants import FILE_TYPES
from advisor.models.tokenizer import identity
from advisor.text import clean

_BLOCK = re.compile(r"blk\.(\d{1,4})\.(.+)")
_EXPERTS = re.compile(r"ffn_(gate|up|down|gate_up)_c?h?exps\.|ffn_(gate|up|down)\.\d+\.")
_SHARD_NAME = re.compile(r"-\d{5}-of-\d{5}$")
QUANT_NAME = re.compile(
    r"(?:^|[-_.])((?:UD-)?(?:I?Q[1-8]_(?:K_XL|K_[SML]|K|[01]|XXS|XS|[SML]|NL)|TQ[12]_0|BF16|F16|F32|MXFP4(?:_MOE)?|NVFP4))"
    r"(?:[-_.]|$)",
    re.IGNORECASE,
)
Origin = Literal["gguf", "hub-gguf", "hub-config", "catalogue"]


@dataclass
class _Block:
    """The tensors of one block, by the rest of their names."""

    index: int
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def has(self, *starts: str) -> bool:
        return any(name.startswith(starts) for name in self.tensors)

    def shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self.tensors.get(name)
        return tensor.shape if tensor else None


class _Reading:
    """One pass over a header, collecting groups, layers, assumptions and notes."""

    def __init__(self, header: Header) -> None:
        self.header = header
        raw = header.text("general.architecture") or ""
        self.prefix = raw
        self.architecture = architectures.SPELLINGS.get(raw, raw)
        self.notes = list(header.notes)
        self.assumptions: list[str] = []
        self.loose: dict[str, Tensor] = {}
        self.blocks: dict[int, _Block] = {}
        for tensor in header.tensors:
            found = _BLOCK.fullmatch(tensor.name)
            if found:
                index = int(found.group(1))
                self.blocks.setdefault(index, _Block(index)).tensors[found.group(2)] = tensor
            else:
                self.loose[tensor.name] = tensor
        if self.architecture != raw:
            self.notes.append(f"written as {raw}, an early spelling: current builds need a newer conversion")
        stated = self.integer("block_count")
        present = max(self.blocks, default=-1) + 1
        if stated is None or stated <= 0:
            if present:
                self.assume(f"{present} blocks, from the tensors (no block_count in the file)")
            stated = present
        self.block_count = stated
        self.kv_heads = self.per_block("attention.head_count_kv")
        self.heads = self.per_block("attention.head_count")
        self.expert_used = self.per_block("expert_used_count")

    def key(self, name: str) -> str:
        return f"{self.prefix}.{name}"

    def integer(self, name: str) -> int | None:
        value = self.header.integer(self.key(name))
        return value if value is None or 0 <= value < 1 << 48 else None

    def per_block(self, name: str) -> tuple[int, ...] | None:
        count = max(min(self.block_count, 10_000), max(self.blocks, default=-1) + 1, 1)
        values = self.header.integers(self.key(name), count)
        return None if values is None else tuple(max(0, v) for v in values)

    def assume(self, what: str) -> None:
        if what not in self.assumptions:
            self.assumptions.append(what)

    # -- which blocks are MTP ---------------------------------------------------------------------------------

    def mtp_indices(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Blocks that are runnable MTP layers, and blocks that nothing reads."""
        stated = self.integer("nextn_predict_layers") or 0
        if self.architecture == "gemma4-assistant":
            return (), ()
        marked = tuple(i for i, b in sorted(self.blocks.items()) if b.has("nextn."))
        if not stated:
            if marked:
                self.notes.append("MTP tensors without nextn_predict_layers: llama.cpp will refuse the file")
            return (), marked
        last = range(max(0, self.block_count - min(stated, 64)), self.block_count)
        real = tuple(i for i in last if i in self.blocks and "nextn.eh_proj.weight" in self.blocks[i].tensors)
        dead = tuple(i for i in last if i in self.blocks and i not in real)
        if not real:
            self.notes.append(
                f"names {stated} MTP layer{'s' if stated > 1 else ''} but holds none of their tensors: no draft-mtp"
            )
        elif self.architecture not in architectures.MTP:
            self.notes.append(f"its MTP layers cannot be run: llama.cpp has no MTP graph for {self.architecture}")
            return (), real + dead
        return real, dead

    # -- per block --------------------------------------------------------------------------------------------

    def windows(self) -> dict[int, int]:
        """Sliding window of each block that has one [tokens]."""
        default = WINDOWS.get(self.architecture)
        size = self.integer("attention.sliding_window")
        pattern = self.header.keys.get(self.key("attention.sliding_window_pattern"))
        if self.architecture == "exaone4" and size is not None and len(self.blocks) != 64:
            return {}  # only the 32B is windowed
        if default is None:
            known = self.architecture in architectures.KNOWN
            if known or size is None or pattern is None:
                return {}
            self.assume(f"the window of the unknown architecture {self.architecture} applies as its pattern says")
        elif self.architecture == "llama4" and size == 0:
            return {}
        elif self.architecture in architectures.FIXED_SIZE or (size is None and self.architecture in ALWAYS_SIZED):
            size = default.size
        if not size:
            return {}
        if isinstance(pattern, tuple) and pattern and not isinstance(pattern, StringArray):
            return {i: size for i in self.blocks if i < len(pattern) and pattern[i]}
        period, dense_first = (default.period, default.dense_first) if default else (0, False)
        if isinstance(pattern, int) and not isinstance(pattern, bool):
            period = pattern
        elif default and self.architecture in ("gemma4", "step35", "mimo2", "granite_swa", "maple", "spark2_5"):
            self.assume(f"every {period}th block attends fully (the file has no pattern)")
        if period <= 0 or self.architecture in ("lfm2", "lfm2moe"):
            return dict.fromkeys(self.blocks, size)
        full = 0 if dense_first else period - 1
        return {i: size for i in self.blocks if i % period != full}

    def own_cache_layers(self, trunk: int) -> int:
        """Blocks from the first on that have a cache of their own."""
        if self.architecture == "gemma4-assistant":
            return 0
        if self.architecture in architectures.OWN_CACHE_LAYERS:
            return min(trunk, architectures.OWN_CACHE_LAYERS[self.architecture])
        return max(0, trunk - (self.integer("attention.shared_kv_layers") or 0))

    def attends(self, block: _Block) -> bool:
        """Whether the block keeps keys and values."""
        heads = self.kv_heads[block.index] if self.kv_heads and block.index < len(self.kv_heads) else None
        if not block.has("attn_q", "attn_k", "attn_v", "attn_qkv"):
            return False
        if heads == 0:
            return False
        if block.has("ssm_", "time_mix"):
            return block.has("attn_output.")  # a gated delta net has attn_qkv, but ends in ssm_out
        return True

    def cache_widths(self, block: _Block, window: int | None, indexed: bool = True) -> tuple[int, int]:
        """Cached elements of one position: keys, values."""
        index = block.index
        heads = self.kv_heads[index] if self.kv_heads and index < len(self.kv_heads) else None
        all_heads = self.heads[index] if self.heads and index < len(self.heads) else None
        width = self.integer("embedding_length")
        own = width // all_heads if width and all_heads else None
        key = self.integer("attention.key_length") or own
        value = self.integer("attention.value_length") or own
        if window:
            key = self.integer("attention.key_length_swa") or key
            value = self.integer("attention.value_length_swa") or value
        latent = block.shape("attn_kv_a_mqa.weight")
        if latent and len(latent) > 1:
            if "attn_k_b.weight" in block.tensors or self.integer("attention.key_length_mla"):
                keys = block.shape("indexer.attn_k.weight") or block.shape("indexer.k_proj.weight")
                return latent[1] + (keys[1] if indexed and keys and len(keys) > 1 else 0), 0
            # before llama.cpp b5000 the compressed rows were expanded and cached per head
            many = all_heads or 1
            return (key or 0) * many, (value or 0) * many
        k, v = block.shape("attn_k.weight"), block.shape("attn_v.weight")
        if k and len(k) > 1:
            if heads is None:
                self.assume("key/value heads from the tensors (no head_count_kv in the file)")
            # without a value matrix the keys serve as values, and both are cached (Gemma 4)
            return k[1], v[1] if v and len(v) > 1 else (heads * value if heads and value else k[1])
        if heads is None:
            heads = all_heads
            self.assume("as many key/value heads as heads (no head_count_kv in the file)")
        return (heads or 0) * (key or 0), (heads or 0) * (value or 0)

    def state_elements(self, block: _Block) -> int:
        """float32 elements of recurrent or convolution state of one sequence."""
        width = self.integer("embedding_length") or 0
        if block.has("shortconv."):
            length = self.integer("shortconv.l_cache") or (block.shape("shortconv.conv.weight") or (1,))[0]
            return width * max(0, length - 1)
        if block.has("time_mix"):
            head = self.integer("wkv.head_size") or 64
            return (self.integer("token_shift_count") or 2) * width + width * head
        kda = self.integer("kda.head_dim")
        heads = self.heads[block.index] if self.heads and block.index < len(self.heads) else max(self.heads or (0,))
        if kda and block.has("ssm_conv1d_q"):
            kernel = self.integer("ssm.conv_kernel") or 4
            return 3 * (kernel - 1) * heads * kda + kda * kda * heads
        if block.has("ssm_"):
            convolution = block.shape("ssm_conv1d.weight")
            inner, state = self.integer("ssm.inner_size"), self.integer("ssm.state_size")
            if convolution and len(convolution) > 1:
                conv = (convolution[0] - 1) * convolution[1]
            else:
                groups = self.integer("ssm.group_count") or 0
                conv = max(0, (self.integer("ssm.conv_kernel") or 1) - 1) * ((inner or 0) + 2 * groups * (state or 0))
            if inner is None or state is None:
                self.assume("recurrent state not counted (no ssm.inner_size or ssm.state_size in the file)")
            return conv + (inner or 0) * (state or 0)
        return 0

    def layer(self, block: _Block, roles: dict[str, Role], window: int | None, cached: bool) -> Layer:
        """One trunk block."""
        counted = [t for t in block.tensors.values() if roles[t.name] not in ("unused", "per_layer_embedding")]
        experts = [t for t in counted if roles[t.name] == "experts"]
        attends, state = self.attends(block), self.state_elements(block)
        keys, values = self.cache_widths(block, window) if attends and cached else (0, 0)
        count, used = self.experts(block, experts)
        return Layer(
            index=block.index,
            mixer=self.mixer(block, attends, state, window),
            bytes=sum(t.nbytes for t in counted),
            parameters=sum(t.parameters for t in counted),
            expert_bytes=sum(t.nbytes for t in experts),
            expert_parameters=sum(t.parameters for t in experts),
            expert_count=count,
            expert_used=used,
            key_width=keys,
            value_width=values,
            window=window if attends else None,
            state_elements=state,
        )

    def mixer(self, block: _Block, attends: bool, state: int, window: int | None) -> Mixer:
        recurrent = block.has("ssm_", "time_mix") or bool(state and not block.has("shortconv."))
        if attends and recurrent:
            return "hybrid"
        if recurrent:
            return "recurrent"
        if block.has("shortconv."):
            return "convolution"
        if not attends:
            return "full" if block.has("attn_output.") else "none"
        if "attn_kv_a_mqa.weight" in block.tensors:
            return "mla"
        return "sliding" if window else "full"

    def experts(self, block: _Block, tensors: list[Tensor]) -> tuple[int, int]:
        """How many routed experts the block has and how many a token uses."""
        if not tensors:
            return 0, 0
        count = max((t.shape[2] for t in tensors if len(t.shape) > 2), default=0)
        if not count:  # files of 2023: one tensor per expert
            count = len({t.name.split(".")[3] for t in tensors if t.name.split(".")[3].isdigit()})
        used = self.expert_used[block.index] if self.expert_used and block.index < len(self.expert_used) else 0
        if not used:
            self.assume("every expert counted as used (no expert_used_count in the file; llama.cpp will refuse it)")
            used = count
        return count, min(used, count)

    # -- roles ------------------------------------------------------------------------------------------------

    def role(self, name: str, rest: str, block: _Block | None, tied: bool) -> Role:
        """What a tensor is for; ``rest`` is its name inside the block."""
        base = rest.rsplit(".", 1)[0] if rest.endswith((".weight", ".bias", ".scale")) else rest
        if block is None:
            return self._loose_role(name, base, tied)
        if base.startswith("nextn."):
            return "mtp_head" if base in ("nextn.shared_head_head", "nextn.embed_tokens") else "mtp"
        if _EXPERTS.match(rest):
            return "experts"
        if "shexp" in base and not base.startswith("ffn_gate_inp"):
            return "shared_experts"
        if base.startswith(("ffn_gate_inp", "exp_probs_b", "ffn_gate_tid2eid")):
            return "router"
        if re.search(r"norm(_\w+)?$", base):
            return "norm"
        if base.startswith("shortconv."):
            return "convolution"
        if base.startswith(("ssm_", "time_mix", "channel_mix")):
            return "recurrent"
        if base.startswith(("attn_", "indexer", "cross_attn")):
            return "recurrent" if block.has("ssm_") and not self.attends(block) else "attention"
        if base.startswith("ffn_"):
            return "ffn"
        return "other"

    def _loose_role(self, name: str, base: str, tied: bool) -> Role:
        if name.startswith("token_embd.") or base == "token_embd":
            return "head" if tied else "embedding"
        if base == "output":
            return "head"
        if base == "per_layer_token_embd":
            return "per_layer_embedding"
        if base in ("position_embd", "token_types", "d2t", "t2d"):
            return "embedding"
        if base.startswith("masked_embd") or name.startswith(("v.", "mm.", "a.")):
            return "unused"
        if "norm" in base:
            return "norm"
        if self.architecture in ("eagle3", "dflash") and (base == "fc" or base.startswith("fc.")):
            return "fusion"
        return "other"

    def roles(self, mtp: Iterable[int], dead: Iterable[int], own: int, tied: bool) -> dict[str, Role]:
        """Role of every tensor by its name."""
        found: dict[str, Role] = {name: self.role(name, name, None, tied) for name in self.loose}
        in_mtp, unread = set(mtp), set(dead)
        for index, block in self.blocks.items():
            for rest, tensor in block.tensors.items():
                role = self.role(tensor.name, rest, block, tied)
                if index in unread:
                    role = "unused"
                elif index in in_mtp:
                    role = "mtp_experts" if role == "experts" else role if role == "mtp_head" else "mtp"
                elif (
                    self.architecture in ("gemma3n", "gemma4")
                    and index >= own
                    and rest.startswith(("attn_k.", "attn_v.", "attn_k_norm."))
                ):
                    role = "unused"
                found[tensor.name] = role
        return found

    def mtp_block(self, indices: tuple[int, ...], roles: dict[str, Role]) -> MtpBlock | None:
        """The MTP layers together."""
        if not indices:
            return None
        tensors = [t for i in indices for t in self.blocks[i].tensors.values()]
        by_role: dict[str, list[Tensor]] = defaultdict(list)
        for t in tensors:
            by_role[roles[t.name]].append(t)
        heads = [t for t in by_role["mtp_head"] if "shared_head_head" in t.name]
        count, used = self.experts(self.blocks[indices[-1]], by_role["mtp_experts"])
        # the MTP context caches no indexer keys (llama.cpp's create_memory gives it a plain cache)
        widths = [
            self.cache_widths(self.blocks[i], None, indexed=False) for i in indices if self.attends(self.blocks[i])
        ]
        return MtpBlock(
            layers=len(indices),
            bytes=sum(t.nbytes for t in by_role["mtp"]),
            parameters=sum(t.parameters for t in by_role["mtp"]),
            expert_bytes=sum(t.nbytes for t in by_role["mtp_experts"]),
            expert_parameters=sum(t.parameters for t in by_role["mtp_experts"]),
            expert_count=count,
            expert_used=used,
            head_bytes=sum(t.nbytes for t in heads),
            head_parameters=sum(t.parameters for t in heads),
            key_width=sum(k for k, _ in widths),
            value_width=sum(v for _, v in widths),
        )

    # -- the whole --------------------------------------------------------------------------------------------

    def kind(self, mtp: tuple[int, ...]) -> Kind:
        """What sort of file this is."""
        header = self.header
        general = (header.text("general.type") or "").lower()
        if general in ("mmproj", "clip-vision", "projector", "mmembd") or self.architecture == "clip":
            return "mmproj"
        if general == "imatrix" or self.architecture == "imatrix" or "imatrix.chunk_count" in header.keys:
            return "imatrix"
        if general == "adapter" or "adapter.type" in header.keys:
            return "lora"
        if header.tensors and all(".lora_" in t.name for t in header.tensors):
            return "lora"
        if not header.tensors:
            return "vocabulary" if header.tokens else "other"
        if self.architecture in ("eagle3", "dflash", "gemma4-assistant"):
            return "drafter"
        if self.architecture in architectures.NOT_GENERATIVE or self.architecture in architectures.DIFFUSION:
            return "other"
        if not self.blocks or general not in ("", "model"):
            return "other"
        if mtp and not any(i not in mtp for i in self.blocks):
            return "drafter"
        unknown = self.architecture not in architectures.KNOWN
        return "other" if unknown and re.search(r"dflash|eagle|control|imatrix", self.architecture) else "model"

    def drafter(self, kind: Kind, width: int) -> Drafter | None:
        """What a drafter says of its targets."""
        if kind != "drafter":
            return None
        layers = self.header.integers(self.key("target_layers"), 64) or ()
        value = self.header.keys.get(self.key("target_layers"))
        targets = layers[: len(value)] if isinstance(value, tuple) and not isinstance(value, StringArray) else ()
        head, table = self.loose.get("output.weight"), self.loose.get("token_embd.weight")
        rows = head.shape[1] if head and len(head.shape) > 1 else None
        d2t = self.loose.get("d2t")
        if d2t is not None and d2t.shape:
            rows = d2t.shape[0]
        if self.architecture == "eagle3":
            fused = self.loose.get("fc.weight")
            target = self.integer("target_hidden_size")
            if target is None and fused is not None and fused.shape[0] % 3 == 0:
                target = fused.shape[0] // 3
                self.assume("target width from the fusion matrix")
            return Drafter(
                method="draft-eagle3", target_width=target, target_layers=targets, vocabulary=rows,
                own_head=head is not None, own_embedding=table is not None,
            )  # fmt: skip
        if self.architecture == "dflash":
            block = self.integer("block_size")
            if block is None:
                block = 16
                self.assume("blocks of 16 tokens (no block_size in the file; llama.cpp's default)")
            if "markov_w1.weight" in self.loose:
                method: Literal["draft-dflash", "draft-dspark"] = "draft-dspark"
            else:
                method = "draft-dflash"
            if "selector_predecessor.weight" in self.loose or any(b.has("ffn_conv_base") for b in self.blocks.values()):
                self.notes.append("a DFlash2 file: builds that only know DFlash say 'wrong number of tensors'")
            return Drafter(
                method=method, target_width=width or None, target_layers=targets, block_size=block, vocabulary=rows,
                own_head=head is not None, own_embedding=table is not None,
            )  # fmt: skip
        if self.architecture == "gemma4-assistant":
            first = self.loose.get("nextn.post_projection.weight")
            target = first.shape[1] if first and len(first.shape) > 1 else self.integer("embedding_length_out")
            own = table.shape[1] if table and len(table.shape) > 1 else None
            return Drafter(method="draft-mtp", target_width=target, vocabulary=own, own_head=table is not None)
        return Drafter(
            method="draft-mtp", target_width=width or None, vocabulary=rows,
            own_head=head is not None or table is not None, own_embedding=table is not None,
        )  # fmt: skip

    def note_refusals(self) -> None:
        """Facts that make llama.cpp refuse or ignore parts of the file."""
        needed = ["context_length", "embedding_length", "block_count"]
        if any(self.attends(b) for b in self.blocks.values()):
            needed.append("attention.head_count")
        missing = [name for name in needed if self.key(name) not in self.header.keys]
        norms = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
        if not any(self.key(name) in self.header.keys for name in norms) and self.architecture in architectures.KNOWN:
            missing.append(norms[0])
        if missing:
            self.notes.append(f"llama.cpp will refuse it: {', '.join(self.key(m) for m in missing)} missing")
        if any(name.startswith(("v.", "mm.")) for name in self.loose):
            self.notes.append(
                "holds vision tensors too (Ollama's own conversion): llama.cpp wants them in an mmproj file"
            )

    def label(self, name: str) -> str:
        """The file type as people call it."""
        named = QUANT_NAME.search(name)
        stated = self.header.integer("general.file_type")
        if named and (named.group(1).upper().startswith("UD-") or stated is None or stated not in FILE_TYPES):
            return named.group(1).upper()
        if stated is not None and stated in FILE_TYPES:
            return FILE_TYPES[stated]
        by_type: dict[str, int] = defaultdict(int)
        for t in self.header.tensors:
            by_type[t.quant] += t.nbytes
        return max(by_type, key=lambda q: by_type[q]) if by_type else "none"


def describe_header(
    header: Header,
    reference: str | None = None,
    source: Origin = "gguf",
    name: str | None = None,
    quant: str | None = None,
) -> ModelDescription:
    """Everything the physics needs, from a header (of a whole shard set if it was joined).

    Args:
        header: from :func:`advisor.models.gguf.read_header`, a Hub file, or the catalogue.
        reference: what the user wrote; default: the path.
        source: where the header came from.
        name: what to call the model; default: the file name without its ending.
        quant: label of the file type; default: from the name and keys.

    Raises:
        ModelFileError: the header names no architecture, or holds nothing that could be described.
    """
    stem = re.sub(r"\.gguf$", "", header.name, flags=re.IGNORECASE)
    stem = _SHARD_NAME.sub("", stem)
    if re.fullmatch(r"sha256[-:][0-9a-f]{64}", stem):
        stem = header.text("general.name") or stem[:19]
    called = clean(name or stem, 120)
    reading = _Reading(header)
    if not reading.architecture:
        raise ModelFileError(
            f"{clean(header.name)} names no architecture (general.architecture), so llama.cpp cannot load it.",
            "Convert the model again, or fetch another file.",
        )
    mtp, dead = reading.mtp_indices()
    kind = reading.kind(mtp)
    if kind == "other" and not header.tensors:
        raise ModelFileError(
            f"{clean(header.name)} holds no tensors at all: a failed conversion.", "Convert it again, or fetch another."
        )
    trunk = [b for i, b in sorted(reading.blocks.items()) if i not in mtp and i not in dead]
    own = reading.own_cache_layers(len(trunk))
    generative = kind in ("model", "drafter", "shard")
    tied = (
        generative
        and "token_embd.weight" in reading.loose
        and "output.weight" not in reading.loose
        and reading.architecture not in ("eagle3", "dflash")
    )
    roles = reading.roles(mtp, dead, own, tied)
    if not generative:
        roles = dict.fromkeys(roles, "other")
    groups: dict[tuple[Role, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for tensor in header.tensors:
        group = groups[roles[tensor.name], tensor.quant]
        group[0] += tensor.parameters
        group[1] += tensor.nbytes
        group[2] += tensor.rows
    windows = reading.windows() if generative else {}
    layers = tuple(
        reading.layer(block, roles, windows.get(block.index), number < own)
        for number, block in enumerate(trunk)
        if generative
    )
    if kind == "model" and reading.architecture not in architectures.KNOWN:
        reading.assume(
            f"architecture {clean(reading.architecture, 40)} is unknown to llama.cpp b11434: described by its tensors"
        )
    if reading.architecture in architectures.NOT_MODELLED:
        reading.assume(f"{architectures.NOT_MODELLED[reading.architecture]} not modelled: memory and time approximate")
    if kind == "model":
        reading.note_refusals()
    table = reading.loose.get("output.weight") or reading.loose.get("token_embd.weight")
    width = reading.integer("embedding_length")
    if width is None and table and table.shape:
        width = table.shape[0]
        if generative:
            reading.assume("width from the embedding table (no embedding_length in the file)")
    vocabulary = header.tokens.length if header.tokens else reading.integer("vocab_size")
    if not vocabulary and table and len(table.shape) > 1:
        vocabulary = table.shape[1]
    if len(trunk) < reading.block_count - len(mtp) - len(dead) and kind == "model":
        reading.notes.append(f"{reading.block_count} blocks stated, {len(reading.blocks)} present")
    return ModelDescription(
        name=called,
        reference=reference or (str(header.files[0]) if header.files else header.name),
        source=source,
        kind=kind,
        architecture=clean(reading.architecture, 40),
        quant=quant or reading.label(header.name),
        size_bytes=header.size,
        embedding_length=width or 0,
        head_count=max(reading.heads or (0,)),
        vocabulary_size=vocabulary or 0,
        context_length=reading.integer("context_length"),
        tied_head=tied,
        weights=tuple(
            WeightGroup(role=role, quant=q, parameters=n, bytes=size, rows=rows)
            for (role, q), (n, size, rows) in sorted(groups.items(), key=lambda g: -g[1][1])
        ),
        layers=layers,
        mtp=reading.mtp_block(mtp, roles) if generative else None,
        drafter=reading.drafter(kind, width or 0),
        tokenizer=identity(header, reading.prefix),
        loops=max(1, reading.integer("num_loops") or 1),
        files=tuple(str(f) for f in header.files),
        header_file=str(header.files[0]) if header.files else None,
        assumptions=tuple(reading.assumptions),
        notes=tuple(clean(n) for n in reading.notes),
    )
