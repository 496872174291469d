"""The answer: a versioned, documented JSON contract. Launchers depend on these names."""

from __future__ import annotations

from typing import Literal

from advisor.base import Figure, Frozen, Provenance, Range
from advisor.hardware.machine import Backend

SCHEMA_VERSION = 1

Method = Literal[
    "none", "draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark",
    "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache",
]  # fmt: skip
Task = Literal["code-edit", "code", "chat", "summarise", "extract", "math", "reasoning", "prose", "translate", "mixed"]
Verdict = Literal["faster", "slower", "too close to call", "incompatible", "does not fit"]


class ModelSummary(Frozen):
    """A model as the answer quotes it. Bytes are weights read per decode step."""

    name: str
    reference: str
    architecture: str
    quant: str
    size_bytes: int
    total_parameters: int
    active_parameters: int
    decode_bytes: int
    source: str


class AcceptanceEstimate(Frozen):
    """Accepted / drafted with its range, and what the range rests on.

    ``positions[i]`` is the conditional chance that draft i+1 is accepted given that all before it were.
    """

    rate: Range
    positions: tuple[float, ...]
    kind: Literal["given", "measured", "published", "fitted", "assumed"]
    evidence: str
    task: Task | None = None
    logit_mean: float | None = None
    """Latent behind ``positions``: ``logit a_i = logit_mean + z * logit_sd + offsets[i-1]``, z standard normal."""
    logit_sd: float | None = None
    offsets: tuple[float, ...] = ()
    draft_share: float = 1.0
    """Share of rounds that draft anything at all; below 1 for n-gram methods, which draft only where text repeats."""


class RoundCost(Frozen):
    """Time of one round in units of one decode step of the target; ``cost`` = draft + verify + overhead.

    ``overhead`` holds catch-up, rollback, sampling and transfers; ``rollback`` is the part of it that saving,
    restoring and replaying a recurrent state takes. ``milliseconds`` is ``cost`` in absolute time.
    """

    cost: float
    draft: float
    verify: float
    overhead: float
    rollback: float = 0.0
    milliseconds: float


class TokenizerVerdict(Frozen):
    """Whether llama.cpp will accept the pair; None = cannot be known from what was read."""

    compatible: bool | None
    reason: str


class DeviceMemory(Frozen):
    """Need against capacity of one device [bytes]."""

    device: str
    need: int
    capacity: int | None
    fits: bool | None


class MemoryItem(Frozen):
    """One thing that is kept on one device: ``how`` it was reckoned, ``kind`` how far to trust it."""

    what: str
    device: str
    bytes: int
    kind: Provenance
    how: str


class MemoryPlan(Frozen):
    """What the run keeps in memory [bytes], and whether it fits.

    ``context`` is what each slot must hold [tokens]. The sums are over all devices; ``items`` add up to ``total``.
    """

    target_weights: int
    draft_weights: int
    target_kv: int
    draft_kv: int
    state: int
    compute: int
    total: int
    context: int
    devices: tuple[DeviceMemory, ...]
    fits: bool | None
    advice: tuple[str, ...] = ()
    items: tuple[MemoryItem, ...] = ()


class BestDraftLength(Frozen):
    """The draft length with the highest expected speed (0 = do not speculate)."""

    draft_max: int
    speedup: float


class CurvePoint(Frozen):
    """One draft length of the sweep."""

    draft_max: int
    round_cost: float
    mean_accepted_length: float
    speedup: Range


class Prediction(Frozen):
    """What will happen if this target is run with this draft on this machine."""

    schema_version: int = SCHEMA_VERSION
    target: ModelSummary
    draft: ModelSummary | None
    hardware: str
    backend: Backend
    method: Method
    draft_max: int
    p_min: float = 0.0
    context: int
    depth: int = 0
    """Tokens already in the context when the speeds apply; ``context`` is what memory is planned for."""
    parallel: int = 1
    acceptance: AcceptanceEstimate
    mean_accepted_length: float
    baseline_tps: Range
    speculative_tps: Range
    speedup: Range
    probability_faster: float
    round: RoundCost
    best: BestDraftLength
    break_even_acceptance: float | None
    """Acceptance below which the pair loses at this draft length; None = no acceptance up to 1 wins."""
    curve: tuple[CurvePoint, ...]
    memory: MemoryPlan
    tokenizer: TokenizerVerdict
    verdict: Verdict
    reasons: tuple[str, ...]
    figures: dict[str, Figure]
    """The constants and facts the numbers rest on, each with unit, kind and source."""
    assumptions: tuple[str, ...] = ()
