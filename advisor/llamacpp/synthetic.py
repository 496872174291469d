"""Small models with random weights: what a calibration measures and what the tests run.

llama.cpp loads and times them like any other model of their architecture. Weights are raw random blocks (fixed scales,
random codes), so types that cannot be quantised in Python work too. Embedding and head form a *chain*: row ``next(i)``
of the head is row ``i`` of the embedding, so greedy output follows one fixed map over the vocabulary, whatever the
blocks between do (their deviation is small). Models that share the map agree: natural acceptance is 1, or about 1 - q
if a share q of a draft's map is scrambled. Cycles of twelve tokens let n-gram drafts hit at once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from advisor.base import Frozen
from advisor.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Architecture = Literal[
    "llama", "qwen3moe", "gpt-oss", "qwen35", "lfm2", "gemma3", "deepseek2", "eagle3", "dflash"
]  # fmt: skip
CYCLE = 40
"""Length of the cycles of the chain [tokens]: an n-gram draft copies at most one cycle."""
KNOWN = CYCLE + 8
"""Length of a prompt after which every n-gram table knows the chain [tokens]."""
_CONTROL = 8
_BYTES = 256
FIRST_TOKEN = _CONTROL + _BYTES
"""First id that the chain may use: behind control and byte tokens."""
_DEVIATION = 0.02
"""Standard deviation of the weights: too small to turn the residual stream away from the embedding."""


class Recipe(Frozen):
    """One model. Sizes in the usual letters: ``width`` D, ``heads`` H of ``head_size``, ``ffn`` F, ``experts`` E.

    ``quant`` is the type of all matrices but ``head_quant`` (embedding and head) and ``expert_quant``; tensors whose
    rows do not fill a block become F16.
    """

    architecture: Architecture
    name: str = "synthetic"
    layers: int = 4
    """Blocks of the trunk, without MTP."""
    width: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    ffn: int = 768
    vocabulary: int = 512
    context: int = 8192
    quant: str = "Q8_0"
    head_quant: str | None = None
    expert_quant: str | None = None
    experts: int = 0
    experts_used: int = 0
    expert_width: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    """Leading blocks without experts (deepseek2)."""
    mtp: bool = False
    state: int = 64
    """Size of one recurrent state row (qwen35: S)."""
    key_heads: int = 2
    """qwen35: heads of keys (G)."""
    value_heads: int = 4
    """qwen35: heads of values (R), a multiple of ``key_heads``."""
    window: int = 512
    q_rank: int = 96
    kv_rank: int = 64
    rope_size: int = 32
    target_layers: tuple[int, ...] = ()
    """eagle3, dflash: layers of the target that are read."""
    target_width: int = 0
    block_size: int = 8
    scramble: float = 0.0
    """Share of tokens whose successor differs from the common map: lowers natural acceptance by about as much."""
    seed: int = 1

    @property
    def is_drafter(self) -> bool:
        """Whether the file only helps a target."""
        return self.architecture in ("eagle3", "dflash")


# -------------------------------------------------------------------------------------------- raw blocks

_F16_SCALE = "<f2"
_LAYOUT: dict[str, tuple[int, int]] = {
    # weights per block, bytes per block (ggml-common.h)
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q8_0": (32, 34), "Q4_0": (32, 18), "Q4_1": (32, 20),
    "Q5_0": (32, 22), "Q5_1": (32, 24), "IQ4_NL": (32, 18), "MXFP4": (32, 17), "Q2_K": (256, 84), "Q3_K": (256, 110),
    "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "IQ4_XS": (256, 136),
}  # fmt: skip
TYPES: tuple[str, ...] = tuple(_LAYOUT)


def usable_type(quant: str, row: int) -> str:
    """``quant`` if rows of this length fill its blocks, else F16.

    Raises:
        InputError: not a type that can be made.
    """
    if quant not in _LAYOUT:
        raise InputError(f"Cannot make random weights of type {quant}.", f"Use one of {', '.join(TYPES)}.")
    return quant if row % _LAYOUT[quant][0] == 0 else "F16"


def random_rows(quant: str, rows: int, row: int, deviation: float, rng: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Raw bytes of a matrix of ``rows`` x ``row`` weights with mean 0 and about this standard deviation."""
    import numpy as np

    weights, size = _LAYOUT[quant]
    blocks = row // weights
    if quant in ("F32", "F16", "BF16"):
        values = rng.standard_normal((rows, row), dtype=np.float32) * np.float32(deviation)
        if quant == "F32":
            return values.view(np.uint8)
        if quant == "F16":
            return values.astype(np.float16).view(np.uint8)
        return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    data = np.frombuffer(rng.bytes(rows * blocks * size), dtype=np.uint8).reshape(rows, blocks, size).copy()

    def put(offset: int, value: float | npt.NDArray[Any]) -> None:
        scale = np.broadcast_to(np.asarray(value, dtype=_F16_SCALE), (rows, blocks))
        data[:, :, offset : offset + 2] = np.ascontiguousarray(scale)[..., None].view(np.uint8)

    # Codes of 4 and 5 bits are not symmetric around zero: a random sign of the scale takes the mean away.
    sign = np.where(rng.integers(0, 2, (rows, blocks)) == 1, 1.0, -1.0)
    if quant == "Q8_0":
        put(0, deviation / 73.9)  # standard deviation of a uniform int8
    elif quant == "Q4_0":
        put(0, deviation / 4.64 * sign)
    elif quant == "Q5_0":
        put(0, deviation / 9.25 * sign)
    elif quant == "IQ4_NL":
        put(0, deviation / 72.0 * sign)
    elif quant in ("Q4_1", "Q5_1"):
        levels = 15 if quant == "Q4_1" else 31
        scale = deviation / math.sqrt((levels + 1) ** 2 / 12)
        put(0, scale)
        put(2, -scale * levels / 2)
    elif quant == "MXFP4":
        # The common values +-{0, 1, 2, 3, 4, 6, 8, 12} / 2 deviate by 2.8; the exponent's bias is 127.
        data[:, :, 0] = round(127 + math.log2(deviation / 2.8))
    elif quant in ("Q4_K", "Q5_K"):
        levels = 15 if quant == "Q4_K" else 31
        scale = deviation / math.sqrt((levels + 1) ** 2 / 12) / 8
        put(0, scale)
        put(2, scale * levels / 2)
        data[:, :, 4:12] = 8  # all block scales and minima 8, packed in 6 bits
        data[:, :, 12:16] = 0x88
    elif quant == "Q6_K":
        data[:, :, 192:208] = (
            (16 * np.where(rng.integers(0, 2, (rows, blocks, 16)) == 1, 1, -1)).astype(np.int8).view(np.uint8)
        )
        put(208, deviation / 18.5 / 16)
    elif quant == "Q2_K":
        data[:, :, 0:16] = 0x88
        put(80, deviation / 1.118 / 8)
        put(82, 1.5 * deviation / 1.118 / 8)
    elif quant == "Q3_K":
        put(108, deviation / 2.3 / 18.5)
    else:  # IQ4_XS: six-bit scales are random and signed
        put(0, deviation / 72.0 / 18.5)
    return data.reshape(rows, blocks * size)


# -------------------------------------------------------------------------------------------- vocabulary and chain


def successors(vocabulary: int, scramble: float = 0.0, seed: int = 1) -> list[int]:
    """The map token -> next token: cycles of ``CYCLE`` over the ordinary tokens, every other token follows itself."""
    import numpy as np

    following = list(range(vocabulary))
    last = FIRST_TOKEN + (vocabulary - FIRST_TOKEN) // CYCLE * CYCLE
    for start in range(FIRST_TOKEN, last, CYCLE):
        for i in range(CYCLE):
            following[start + i] = start + (i + 1) % CYCLE
    if scramble:
        rng = np.random.default_rng(seed)
        chosen = np.flatnonzero(rng.random(last - FIRST_TOKEN) < scramble) + FIRST_TOKEN
        shuffled = rng.permutation([following[t] for t in chosen])
        for token, value in zip(chosen, shuffled, strict=True):
            following[int(token)] = int(value)
    return following


def chain_prompt(vocabulary: int, length: int, start: int = 0) -> list[int]:
    """Token ids that walk along the chain: after :data:`KNOWN` of them every n-gram table knows what comes next."""
    cycles = (vocabulary - FIRST_TOKEN) // CYCLE
    first = FIRST_TOKEN + (start % cycles) * CYCLE
    return [first + i % CYCLE for i in range(length)]


def mixed_prompt(vocabulary: int, length: int, seed: int = 1) -> list[int]:
    """Random ordinary tokens: a context that gives n-gram tables nothing to find."""
    import numpy as np

    rng = np.random.default_rng(seed)
    return [int(t) for t in rng.integers(FIRST_TOKEN, vocabulary, length)]


def _byte_letters() -> list[str]:
    """The printable stand-ins of GPT-2's byte-level vocabulary."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain}
    extra = 0
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + extra)
            extra += 1
    return [letters[b] for b in range(256)]


def _add_tokenizer(writer: Any, vocabulary: int) -> None:
    letters = _byte_letters()
    tokens = [f"<|{i}|>" for i in range(_CONTROL)] + letters
    types = [3] * _CONTROL + [1] * _BYTES
    merges = []
    for i in range(vocabulary - len(tokens)):
        first, second = letters[i // 256 % 256], letters[i % 256]
        tokens.append(first + second)
        merges.append(f"{first} {second}")
        types.append(1)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_mask_token_id(3)
    writer.add_add_bos_token(False)


# -------------------------------------------------------------------------------------------- the file


class _Writer:
    """Tensors of one file, in order."""

    def __init__(self, recipe: Recipe, writer: Any) -> None:
        import gguf
        import numpy as np

        self.recipe, self.writer = recipe, writer
        self.np, self.gguf = np, gguf
        self.rng = np.random.default_rng(recipe.seed)

    def matrix(
        self, name: str, out: int, inside: int, quant: str | None = None, stack: int = 0, deviation: float = _DEVIATION
    ) -> None:
        """A random matrix (or stack of experts) from ``inside`` to ``out`` features."""
        kind = usable_type(quant or self.recipe.quant, inside)
        data = random_rows(kind, out * max(stack, 1), inside, deviation, self.rng)
        self.raw(name, data.reshape((stack, out, -1) if stack else (out, -1)), kind)

    def raw(self, name: str, data: Any, kind: str) -> None:
        quant = self.gguf.GGMLQuantizationType[kind]
        if kind == "F32":
            self.writer.add_tensor(name, data.view(self.np.float32))
        elif kind == "F16":
            self.writer.add_tensor(name, data.view(self.np.float16))
        else:
            self.writer.add_tensor(name, data, raw_dtype=quant)

    def vector(self, name: str, size: int | tuple[int, ...], value: float = 1.0) -> None:
        """A constant vector (norm, bias) in F32."""
        self.writer.add_tensor(name, self.np.full(size, value, dtype=self.np.float32))

    def router(self, name: str, experts: int) -> None:
        """Routers stay F32, and deviate enough that tokens choose different experts."""
        values = self.rng.standard_normal((experts, self.recipe.width), dtype=self.np.float32)
        self.writer.add_tensor(name, values / self.np.float32(math.sqrt(self.recipe.width)))

    def ends(self, final_norm: str = "output_norm.weight") -> None:
        """Embedding, final norm, and the head whose rows are the embedding's, moved along the chain."""
        r, np = self.recipe, self.np
        kind = usable_type(r.head_quant or r.quant, r.width)
        # Everybody needs the same tokens to be neighbours, not the same vectors: own rows per model are fine.
        rows = random_rows(kind, r.vocabulary, r.width, 1.0, self.rng)
        head = np.empty_like(rows)
        order = np.asarray(successors(r.vocabulary, r.scramble, r.seed))
        head[order] = rows
        self.raw("token_embd.weight", rows, kind)
        self.vector(final_norm, r.width)
        self.raw("output.weight", head, kind)

    def attention(self, i: int, *, norms: bool = False, q_factor: int = 1, inside: int | None = None) -> None:
        r = self.recipe
        width = inside or r.width
        self.matrix(f"blk.{i}.attn_q.weight", q_factor * r.heads * r.head_size, width)
        self.matrix(f"blk.{i}.attn_k.weight", r.kv_heads * r.head_size, width)
        self.matrix(f"blk.{i}.attn_v.weight", r.kv_heads * r.head_size, width)
        self.matrix(f"blk.{i}.attn_output.weight", r.width, r.heads * r.head_size)
        if norms:
            self.vector(f"blk.{i}.attn_q_norm.weight", r.head_size)
            self.vector(f"blk.{i}.attn_k_norm.weight", r.head_size)

    def feed_forward(self, i: int, ffn: int | None = None) -> None:
        r = self.recipe
        f = ffn or r.ffn
        self.matrix(f"blk.{i}.ffn_gate.weight", f, r.width)
        self.matrix(f"blk.{i}.ffn_up.weight", f, r.width)
        self.matrix(f"blk.{i}.ffn_down.weight", r.width, f)

    def experts(self, i: int) -> None:
        r = self.recipe
        kind = r.expert_quant or r.quant
        self.router(f"blk.{i}.ffn_gate_inp.weight", r.experts)
        self.matrix(f"blk.{i}.ffn_gate_exps.weight", r.expert_width, r.width, kind, r.experts)
        self.matrix(f"blk.{i}.ffn_up_exps.weight", r.expert_width, r.width, kind, r.experts)
        self.matrix(f"blk.{i}.ffn_down_exps.weight", r.width, r.expert_width, kind, r.experts)


def write_synthetic(recipe: Recipe, path: Path, progress: Callable[[float], None] | None = None) -> Path:
    """Write the model; whole or not at all.

    Args:
        recipe: what to make.
        path: where to; an existing file is replaced.
        progress: called once at the end with 1.0.

    Raises:
        InputError: sizes that do not fit together, or the file cannot be written.
    """
    import gguf

    _check(recipe)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(unfinished, recipe.architecture)
        try:
            _keys(recipe, writer)
            _add_tokenizer(writer, recipe.vocabulary)
            _BUILDERS[recipe.architecture](_Writer(recipe, writer))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        finally:
            writer.close()
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.", "Free some space.") from None
    finally:
        unfinished.unlink(missing_ok=True)
    if progress:
        progress(1.0)
    return path


def _check(r: Recipe) -> None:
    if r.vocabulary < FIRST_TOKEN + 2 * CYCLE or r.vocabulary > FIRST_TOKEN + 65536:
        raise InputError(f"A synthetic vocabulary holds {FIRST_TOKEN + 2 * CYCLE} to {FIRST_TOKEN + 65536} tokens.")
    if r.architecture in ("qwen3moe", "gpt-oss", "deepseek2") and not 0 < r.experts_used <= r.experts:
        raise InputError(f"{r.architecture} needs experts, and some of them used.")
    if r.architecture == "lfm2" and r.head_size * r.heads != r.width:
        raise InputError("In lfm2 the heads must fill the width.")
    if r.mtp and r.architecture not in ("qwen35", "deepseek2"):
        raise InputError(f"{r.architecture} has no MTP layers.")
    if r.architecture == "qwen35" and r.value_heads % r.key_heads:
        raise InputError("In qwen35 the value heads must be a multiple of the key heads.")
    if r.architecture == "eagle3" and len(r.target_layers) != 3:
        raise InputError("An EAGLE-3 head reads exactly three layers of its target.")


def _keys(r: Recipe, w: Any) -> None:
    a = r.architecture
    w.add_name(r.name)

    def number(key: str, value: int) -> None:
        w.add_uint32(f"{a}.{key}", value)

    number("context_length", r.context)
    number("embedding_length", r.width)
    number("block_count", 1 if a == "eagle3" else r.layers + int(r.mtp))
    number("attention.head_count", r.heads)
    w.add_float32(f"{a}.attention.layer_norm_rms_epsilon", 1e-6)
    if a not in ("qwen3moe", "gpt-oss"):
        number("feed_forward_length", r.ffn)
    if a == "lfm2":
        w.add_array(f"{a}.attention.head_count_kv", [0 if _is_convolution(i) else r.kv_heads for i in range(r.layers)])
        number("shortconv.l_cache", 3)
    elif a != "deepseek2":
        number("attention.head_count_kv", r.kv_heads)
        number("attention.key_length", r.head_size)
        number("attention.value_length", r.head_size)
    if a in ("qwen3moe", "gpt-oss", "deepseek2"):
        number("expert_count", r.experts)
        number("expert_used_count", r.experts_used)
        number("expert_feed_forward_length", r.expert_width)
    if a in ("gpt-oss", "gemma3"):
        number("attention.sliding_window", r.window)
    if a == "gpt-oss":
        number("rope.dimension_count", r.head_size)
    if a == "qwen35":
        quarter = r.head_size // 8
        w.add_array("qwen35.rope.dimension_sections", [quarter, quarter, quarter, 0])
        number("rope.dimension_count", r.head_size // 2)
        number("ssm.conv_kernel", 4)
        number("ssm.state_size", r.state)
        number("ssm.group_count", r.key_heads)
        number("ssm.time_step_rank", r.value_heads)
        number("ssm.inner_size", r.state * r.value_heads)
        number("full_attention_interval", 4)
    if a == "deepseek2":
        number("attention.head_count_kv", 1)
        number("attention.q_lora_rank", r.q_rank)
        number("attention.kv_lora_rank", r.kv_rank)
        number("attention.key_length", r.kv_rank + r.rope_size)
        number("attention.value_length", r.kv_rank)
        number("attention.key_length_mla", r.head_size + r.rope_size)
        number("attention.value_length_mla", r.head_size)
        number("rope.dimension_count", r.rope_size)
        number("expert_shared_count", r.shared_experts)
        number("leading_dense_block_count", r.dense_layers)
        number("expert_gating_func", 2)
        w.add_bool("deepseek2.expert_weights_norm", True)
        w.add_float32("deepseek2.expert_weights_scale", 1.0)
    if r.mtp:
        number("nextn_predict_layers", 1)
    if a in ("eagle3", "dflash"):
        w.add_array(f"{a}.target_layers", list(r.target_layers))
        number("target_hidden_size", r.target_width or r.width)
    if a == "dflash":
        number("block_size", r.block_size)


def _is_convolution(layer: int) -> bool:
    """lfm2 in this file: every third block is attention."""
    return layer % 3 != 2


def _llama(w: _Writer) -> None:
    w.ends()
    for i in range(w.recipe.layers):
        w.vector(f"blk.{i}.attn_norm.weight", w.recipe.width)
        w.attention(i)
        w.vector(f"blk.{i}.ffn_norm.weight", w.recipe.width)
        w.feed_forward(i)


def _qwen3moe(w: _Writer) -> None:
    w.ends()
    for i in range(w.recipe.layers):
        w.vector(f"blk.{i}.attn_norm.weight", w.recipe.width)
        w.attention(i, norms=True)
        w.vector(f"blk.{i}.ffn_norm.weight", w.recipe.width)
        w.experts(i)


def _gpt_oss(w: _Writer) -> None:
    r = w.recipe
    w.ends()
    for i in range(r.layers):
        w.vector(f"blk.{i}.attn_norm.weight", r.width)
        w.attention(i)
        w.vector(f"blk.{i}.attn_output.bias", r.width, 0.0)
        w.vector(f"blk.{i}.attn_sinks.weight", r.heads, 0.0)
        w.vector(f"blk.{i}.post_attention_norm.weight", r.width)
        w.experts(i)
        w.vector(f"blk.{i}.ffn_gate_inp.bias", r.experts, 0.0)
        w.vector(f"blk.{i}.ffn_gate_exps.bias", (r.experts, r.expert_width), 0.0)
        w.vector(f"blk.{i}.ffn_up_exps.bias", (r.experts, r.expert_width), 0.0)
        w.vector(f"blk.{i}.ffn_down_exps.bias", (r.experts, r.width), 0.0)


def _gemma3(w: _Writer) -> None:
    r = w.recipe
    w.ends()
    for i in range(r.layers):
        w.vector(f"blk.{i}.attn_norm.weight", r.width)
        w.attention(i, norms=True)
        w.vector(f"blk.{i}.post_attention_norm.weight", r.width, 0.1)
        w.vector(f"blk.{i}.ffn_norm.weight", r.width)
        w.feed_forward(i)
        w.vector(f"blk.{i}.post_ffw_norm.weight", r.width, 0.1)


def _qwen35_attention(w: _Writer, i: int) -> None:
    w.vector(f"blk.{i}.attn_norm.weight", w.recipe.width)
    w.attention(i, norms=True, q_factor=2)
    w.vector(f"blk.{i}.post_attention_norm.weight", w.recipe.width)
    w.feed_forward(i)


def _qwen35(w: _Writer) -> None:
    r = w.recipe
    w.ends()
    inner, keys = r.state * r.value_heads, r.state * r.key_heads
    for i in range(r.layers):
        if (i + 1) % 4 == 0:
            _qwen35_attention(w, i)
            continue
        w.vector(f"blk.{i}.attn_norm.weight", r.width)
        w.matrix(f"blk.{i}.attn_qkv.weight", 2 * keys + inner, r.width)
        w.matrix(f"blk.{i}.attn_gate.weight", inner, r.width)
        w.matrix(f"blk.{i}.ssm_conv1d.weight", 2 * keys + inner, 4, "F32", deviation=0.2)
        w.vector(f"blk.{i}.ssm_dt.bias", r.value_heads, 0.1)
        w.vector(f"blk.{i}.ssm_a", r.value_heads, -0.5)
        w.matrix(f"blk.{i}.ssm_alpha.weight", r.value_heads, r.width)
        w.matrix(f"blk.{i}.ssm_beta.weight", r.value_heads, r.width)
        w.vector(f"blk.{i}.ssm_norm.weight", r.state)
        w.matrix(f"blk.{i}.ssm_out.weight", r.width, inner)
        w.vector(f"blk.{i}.post_attention_norm.weight", r.width)
        w.feed_forward(i)
    if r.mtp:
        _qwen35_attention(w, r.layers)
        _next_token(w, r.layers)


def _next_token(w: _Writer, i: int) -> None:
    """The tensors of an MTP block beyond an ordinary one; its projection passes the embedding half through."""
    r = w.recipe
    kind = usable_type(r.quant if r.quant in ("F32", "F16", "Q8_0", "Q4_0") else "Q8_0", 2 * r.width)
    projection = w.np.zeros((r.width, 2 * r.width), dtype=w.np.float32)
    projection[:, : r.width] = w.np.eye(r.width, dtype=w.np.float32)
    if kind in ("F32", "F16"):
        w.writer.add_tensor(f"blk.{i}.nextn.eh_proj.weight", projection.astype(kind.replace("F", "float")))
    else:
        quant = w.gguf.GGMLQuantizationType[kind]
        w.writer.add_tensor(f"blk.{i}.nextn.eh_proj.weight", w.gguf.quants.quantize(projection, quant), raw_dtype=quant)
    w.vector(f"blk.{i}.nextn.enorm.weight", r.width)
    w.vector(f"blk.{i}.nextn.hnorm.weight", r.width)
    w.vector(f"blk.{i}.nextn.shared_head_norm.weight", r.width)


def _lfm2(w: _Writer) -> None:
    r = w.recipe
    w.ends("token_embd_norm.weight")
    for i in range(r.layers):
        w.vector(f"blk.{i}.attn_norm.weight", r.width)
        if _is_convolution(i):
            w.matrix(f"blk.{i}.shortconv.conv.weight", r.width, 3, "F32", deviation=0.2)
            w.matrix(f"blk.{i}.shortconv.in_proj.weight", 3 * r.width, r.width)
            w.matrix(f"blk.{i}.shortconv.out_proj.weight", r.width, r.width)
        else:
            w.attention(i, norms=True)
        w.vector(f"blk.{i}.ffn_norm.weight", r.width)
        w.feed_forward(i)


def _deepseek2(w: _Writer) -> None:
    r = w.recipe
    w.ends()
    for i in range(r.layers + int(r.mtp)):
        w.vector(f"blk.{i}.attn_norm.weight", r.width)
        w.matrix(f"blk.{i}.attn_q_a.weight", r.q_rank, r.width)
        w.vector(f"blk.{i}.attn_q_a_norm.weight", r.q_rank)
        w.matrix(f"blk.{i}.attn_q_b.weight", r.heads * (r.head_size + r.rope_size), r.q_rank)
        w.matrix(f"blk.{i}.attn_kv_a_mqa.weight", r.kv_rank + r.rope_size, r.width)
        w.vector(f"blk.{i}.attn_kv_a_norm.weight", r.kv_rank)
        w.matrix(f"blk.{i}.attn_k_b.weight", r.kv_rank, r.head_size, stack=r.heads)
        w.matrix(f"blk.{i}.attn_v_b.weight", r.head_size, r.kv_rank, stack=r.heads)
        w.matrix(f"blk.{i}.attn_output.weight", r.width, r.heads * r.head_size)
        w.vector(f"blk.{i}.ffn_norm.weight", r.width)
        if i < r.dense_layers:
            w.feed_forward(i)
            continue
        w.experts(i)
        w.vector(f"blk.{i}.exp_probs_b.bias", r.experts, 0.0)
        if r.shared_experts:
            shared = r.expert_width * r.shared_experts
            w.matrix(f"blk.{i}.ffn_gate_shexp.weight", shared, r.width)
            w.matrix(f"blk.{i}.ffn_up_shexp.weight", shared, r.width)
            w.matrix(f"blk.{i}.ffn_down_shexp.weight", r.width, shared)
    if r.mtp:
        _next_token(w, r.layers)


def _eagle3(w: _Writer) -> None:
    r = w.recipe
    kind = usable_type(r.head_quant or r.quant, r.width)
    w.matrix("fc.weight", r.width, 3 * (r.target_width or r.width))
    w.vector("output_norm.weight", r.width)
    if r.target_width and r.target_width != r.width:
        w.matrix("token_embd.weight", r.vocabulary, r.width, kind)
    w.matrix("output.weight", r.vocabulary, r.width, kind)
    w.vector("blk.0.attn_norm.weight", r.width)
    w.vector("blk.0.attn_norm_2.weight", r.width)
    w.attention(0, inside=2 * r.width)
    w.vector("blk.0.ffn_norm.weight", r.width)
    w.feed_forward(0)


def _dflash(w: _Writer) -> None:
    r = w.recipe
    w.matrix("fc.weight", r.width, len(r.target_layers) * r.width)
    w.vector("enc.output_norm.weight", r.width)
    w.vector("output_norm.weight", r.width)
    for i in range(r.layers):
        w.vector(f"blk.{i}.attn_norm.weight", r.width)
        w.attention(i, norms=True)
        w.vector(f"blk.{i}.ffn_norm.weight", r.width)
        w.feed_forward(i)


_BUILDERS: dict[Architecture, Callable[[_Writer], None]] = {
    "llama": _llama,
    "qwen3moe": _qwen3moe,
    "gpt-oss": _gpt_oss,
    "qwen35": _qwen35,
    "lfm2": _lfm2,
    "gemma3": _gemma3,
    "deepseek2": _deepseek2,
    "eagle3": _eagle3,
    "dflash": _dflash,
}


def tiny(architecture: Architecture, **changes: Any) -> Recipe:
    """The smallest useful model of an architecture: under half a megabyte, for tests."""
    base: dict[str, Any] = {"architecture": architecture, "name": f"tiny-{architecture}", "layers": 4, "width": 128}
    base |= {"heads": 2, "kv_heads": 1, "head_size": 64, "ffn": 256, "vocabulary": 512, "context": 2048}
    if architecture in ("qwen3moe", "gpt-oss", "deepseek2"):
        base |= {"experts": 8, "experts_used": 2, "expert_width": 64}
    if architecture == "deepseek2":
        base |= {"shared_experts": 1, "dense_layers": 1, "layers": 3}
    if architecture == "gpt-oss":
        base |= {"expert_quant": "MXFP4"}
    if architecture in ("eagle3", "dflash"):
        base |= {"target_layers": (1, 2, 3), "target_width": 128, "layers": 1 if architecture == "eagle3" else 2}
    return Recipe(**(base | changes))


def tiny_types(types: Sequence[str] = TYPES) -> list[Recipe]:
    """One tiny dense model per block type."""
    return [tiny("llama", name=f"tiny-{t}", quant=t, width=256, ffn=512, head_size=64, heads=4) for t in types]
