"""What must be known of a model to say how fast it runs: the vocabulary of the whole package.

A description comes from a GGUF header, a Hub repository's config, or the catalogue. It holds no weights and
no file handle, and everything downstream (memory, pass times, round costs) is a pure function of it.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from pydantic import Field

from advisor.base import Frozen

Kind = Literal["model", "drafter", "mmproj", "lora", "imatrix", "vocabulary", "shard", "other"]
"""Only ``model`` can be a target; ``drafter`` (EAGLE-3, DFlash, gemma4-assistant, MTP sidecar) only helps one."""

Role = Literal[
    "embedding",  # input table: a row lookup, not streamed (absent when tied: then it is the head)
    "head",  # output matrix; the tied embedding is counted here
    "attention",
    "ffn",  # dense feed-forward
    "experts",  # routed experts, all of them
    "shared_experts",
    "router",
    "norm",
    "recurrent",  # delta net, Mamba, RWKV
    "convolution",  # LFM2 short convolution
    "per_layer_embedding",  # Gemma 3n/4 table: looked up only
    "mtp",  # everything of the MTP block except experts and head
    "mtp_experts",
    "mtp_head",  # an MTP block's own head or embedding copy
    "fusion",  # EAGLE-3, DFlash: takes in the target's features, once per round
    "unused",  # in the file, never read
    "other",
]
LOOKED_UP: frozenset[str] = frozenset({"embedding", "per_layer_embedding", "unused"})
MTP_ROLES: frozenset[str] = frozenset({"mtp", "mtp_experts", "mtp_head"})
Mixer = Literal["full", "sliding", "mla", "recurrent", "convolution", "none", "hybrid"]


class WeightGroup(Frozen):
    """All weights of one role and one ggml type. ``parameters`` counts weights, ``bytes`` their size in the file.

    ``rows`` are outputs of its matrices together (0 = unknown): short rows cost more per byte than long ones.
    """

    role: Role
    quant: str
    parameters: int
    bytes: int
    rows: int = 0


class Layer(Frozen):
    """One block of the trunk (MTP blocks are not layers here).

    ``bytes`` are all weights of the block that are ever read, ``expert_bytes`` the routed experts among them (all of
    them, used or not).
    ``key_width``/``value_width`` are cached elements per position (0 = no cache; MLA caches K only),
    ``window`` the sliding window in tokens, ``state_elements`` recurrent or convolution state (float32 each).
    """

    index: int
    mixer: Mixer
    bytes: int
    parameters: int
    expert_bytes: int = 0
    expert_parameters: int = 0
    expert_count: int = 0
    expert_used: int = 0
    key_width: int = 0
    value_width: int = 0
    window: int | None = None
    state_elements: int = 0


class MtpBlock(Frozen):
    """The multi-token-prediction layers that really are in the file (key > 0 and tensors present)."""

    layers: int
    bytes: int
    """Dense weights of the block(s), without experts and without an own head [bytes]."""
    parameters: int
    expert_bytes: int = 0
    expert_parameters: int = 0
    expert_count: int = 0
    expert_used: int = 0
    head_bytes: int = 0
    """An own head or embedding copy; 0 = shares the trunk's head [bytes]."""
    head_parameters: int = 0
    key_width: int = 0
    value_width: int = 0


class Drafter(Frozen):
    """What a drafter-only file says of the targets it fits."""

    method: Literal["draft-eagle3", "draft-dflash", "draft-dspark", "draft-mtp"]
    target_width: int | None = None
    """Hidden width the target must have."""
    target_layers: tuple[int, ...] = ()
    block_size: int | None = None
    vocabulary: int | None = None
    """Rows of the drafter's own head; smaller than the target's when trimmed (d2t)."""
    own_head: bool = False
    own_embedding: bool = False


class Tokenizer(Frozen):
    """Identity of a vocabulary, as far as llama.cpp compares it. ``digest`` is SHA-256 over the token bytes."""

    type: Literal["SPM", "BPE", "WPM", "UGM", "RWKV", "PLaMo2", "none", "unknown"]
    model: str | None = None
    pre: str | None = None
    size: int
    digest: str | None = None
    add_bos: bool | None = None
    add_eos: bool | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    family: str | None = None
    """Catalogue name of the vocabulary (``qwen3.5``) when no token list was read."""


_KV_BYTES = {  # bytes per element; ggml block sizes
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip


def cache_element_bytes(cache_type: str) -> float:
    """Bytes of one cached element in a llama.cpp cache type such as ``f16`` or ``q8_0``.

    Raises:
        KeyError: unknown cache type.
    """
    return _KV_BYTES[cache_type.lower()]


class ModelDescription(Frozen):
    """One model (or drafter, or whatever a file turned out to be)."""

    name: str
    reference: str
    """What the user wrote, or the path: how to find it again."""
    source: Literal["gguf", "hub-gguf", "hub-config", "catalogue"]
    kind: Kind = "model"
    architecture: str
    quant: str
    """File type label, e.g. ``Q4_K_M``: a label only, ``weights`` decide."""
    size_bytes: int
    embedding_length: int = 0
    head_count: int = 0
    vocabulary_size: int = 0
    context_length: int | None = None
    """Trained context [tokens]."""
    tied_head: bool = False
    weights: tuple[WeightGroup, ...] = ()
    layers: tuple[Layer, ...] = ()
    mtp: MtpBlock | None = None
    drafter: Drafter | None = None
    tokenizer: Tokenizer | None = None
    loops: int = 1
    """How often the trunk is run per token (looped models)."""
    catalogue_slug: str | None = None
    """Catalogue entry this file was recognised as, for families and published acceptance."""
    files: tuple[str, ...] = ()
    header_file: str | None = None
    """A local file that begins with the header (the model itself, or a cached copy): token texts are read from it."""
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = Field(default=())
    """Facts worth showing: byte order, foreign types, companions."""

    def _sum(self, *roles: str, parameters: bool = False) -> int:
        return sum(g.parameters if parameters else g.bytes for g in self.weights if g.role in roles)

    @cached_property
    def total_parameters(self) -> int:
        """Every weight in the file, MTP included."""
        return sum(g.parameters for g in self.weights)

    @cached_property
    def expert_bytes_used(self) -> float:
        """Routed-expert bytes that one token reads."""
        return sum(x.expert_bytes * x.expert_used / x.expert_count for x in self.layers if x.expert_count)

    @cached_property
    def active_parameters(self) -> int:
        """Weights multiplied for one token: no lookup tables, used experts only, head once, no MTP."""
        skip = LOOKED_UP | MTP_ROLES | {"experts"}
        dense = sum(g.parameters for g in self.weights if g.role not in skip)
        routed = sum(x.expert_parameters * x.expert_used / x.expert_count for x in self.layers if x.expert_count)
        return round((dense + routed) * 1)

    @cached_property
    def dense_bytes(self) -> int:
        """Bytes of one decode step that do not depend on routing: everything streamed except routed experts."""
        skip = LOOKED_UP | MTP_ROLES | {"experts"}
        return sum(g.bytes for g in self.weights if g.role not in skip)

    @cached_property
    def decode_bytes(self) -> int:
        """Weight bytes read by one decode step of one sequence (KV cache and state not included)."""
        body = self.dense_bytes - self.head_bytes + self.expert_bytes_used
        return round(body * self.loops + self.head_bytes)

    @cached_property
    def head_bytes(self) -> int:
        """Output matrix; the tied embedding if there is no own one [bytes]."""
        return self._sum("head")

    @cached_property
    def head_parameters(self) -> int:
        """Output matrix [weights]."""
        return self._sum("head", parameters=True)

    @cached_property
    def is_moe(self) -> bool:
        """Whether any layer routes tokens to experts."""
        return any(x.expert_count > 0 for x in self.layers)

    @cached_property
    def is_recurrent(self) -> bool:
        """Whether any layer keeps a state that cannot be cut back token by token."""
        return any(x.state_elements > 0 for x in self.layers)

    @cached_property
    def state_bytes(self) -> int:
        """Recurrent and convolution state of one sequence, float32 as llama.cpp keeps it [bytes]."""
        return 4 * sum(x.state_elements for x in self.layers)

    @cached_property
    def mtp_layers(self) -> int:
        """MTP blocks that can really be run from this file."""
        return self.mtp.layers if self.mtp else 0

    @cached_property
    def kv_bytes_per_token(self) -> int:
        """f16 K+V bytes of one position while it lies inside every window."""
        return 2 * sum(x.key_width + x.value_width for x in self.layers)

    def kv_bytes(self, depth: int, type_k: str = "f16", type_v: str = "f16") -> float:
        """Cache bytes that one sequence of ``depth`` positions needs (and that one pass reads).

        Sliding layers hold at most their window.

        Raises:
            KeyError: unknown cache type.
        """
        k, v = cache_element_bytes(type_k), cache_element_bytes(type_v)
        return sum(
            min(depth, x.window if x.window else depth) * (x.key_width * k + x.value_width * v) for x in self.layers
        )
