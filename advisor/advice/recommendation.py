"""The answer of ``recommend``: a versioned, documented JSON contract, like the prediction it is built from."""

from __future__ import annotations

from typing import Literal

from advisor.advice.launch import Command
from advisor.advice.launchers import Entry
from advisor.advice.rules import RuleCheck
from advisor.base import Frozen, Range
from advisor.hardware.machine import Backend, Placement
from advisor.speculation.prediction import SCHEMA_VERSION, Method, ModelSummary, Prediction, Task, Verdict

Origin = Literal["given", "file", "beside the target", "inside the target", "catalogue", "hub", "nothing needed"]
ExclusionKind = Literal[
    "tokenizer", "memory", "does not work", "not smaller", "not a draft", "unreadable", "engine", "duplicate",
]  # fmt: skip


class Option(Frozen):
    """One way to run the target, with its expected speed."""

    rank: int
    """1 = best by expected speed among those worth considering."""
    label: str
    methods: tuple[Method, ...]
    """Enabled methods in llama.cpp's order; empty = no speculation."""
    spec_default: bool = False
    draft: ModelSummary | None = None
    draft_max: int = 0
    p_min: float = 0.0
    ngram_max: int | None = None
    """Most tokens an n-gram method drafts, where one is enabled beside another method."""
    placement: Placement
    speed: Range
    """Tokens per second."""
    speedup: Range
    """Against running the target without speculation, placed as well as it can be."""
    probability_faster: float
    verdict: Verdict
    acceptance: Range | None = None
    mean_accepted_length: float = 1.0
    round_cost: float = 1.0
    """Time of one round in decode steps of the target."""
    break_even_acceptance: float | None = None
    memory_total: int
    """Bytes of memory the whole run needs."""
    fits: bool | None
    origin: Origin
    download_bytes: int = 0
    """What has to be downloaded first."""
    notes: tuple[str, ...] = ()


class Exclusion(Frozen):
    """Something that was looked at and is not an option."""

    name: str
    reference: str
    kind: ExclusionKind
    reason: str


class TaskOutlook(Frozen):
    """The recommended run against no speculation for one kind of text."""

    task: Task
    speedup: Range
    probability_faster: float


class Expectation(Frozen):
    """What a running server is compared with."""

    speculates: bool
    speed: Range
    """Tokens per second."""
    acceptance: Range | None = None
    """Accepted / drafted; None = not compared (n-grams mixed with a draft are counted together)."""
    break_even_acceptance: float | None = None


class Recommendation(Frozen):
    """What to use with one target on one machine."""

    schema_version: int = SCHEMA_VERSION
    target: ModelSummary
    hardware: str
    backend: Backend
    task: Task | None
    temperature: float
    depth: int
    context: int
    speculate: bool
    """Whether the best option drafts at all."""
    best: Option
    runner_up: Option | None
    options: tuple[Option, ...]
    """All options, best first; "nothing" is always among them."""
    excluded: tuple[Exclusion, ...] = ()
    prediction: Prediction | None = None
    """The full prediction of the best option, if it drafts; else of the best one that does."""
    headline: str
    why: tuple[str, ...]
    """Why the winner wins, against the runner-up."""
    changes: tuple[str, ...]
    """What would change the answer."""
    outlook: tuple[TaskOutlook, ...] = ()
    rules: tuple[RuleCheck, ...] = ()
    """Published rules applied to the best pair with a draft model."""
    margin: str
    """The rule by which a gain counts."""
    command: Command | None = None
    launchers: tuple[Entry, ...] = ()
    considered: int = 0
    """How many candidates were looked at."""
    seconds: float = 0.0
    """Time spent on predictions."""
    assumptions: tuple[str, ...] = ()

    def expected(self) -> Expectation:
        """What a server started as recommended should show, for watching it."""
        best, p = self.best, self.prediction
        alone = len(best.methods) == 1
        return Expectation(
            speculates=bool(best.methods),
            speed=best.speed,
            acceptance=best.acceptance if alone else None,
            break_even_acceptance=p.break_even_acceptance if p is not None and alone else None,
        )


class DropdownNote(Frozen):
    """Why LM Studio's draft list and llama.cpp disagree about a file."""

    draft: str
    reference: str
    works: bool | None
    """Whether llama.cpp itself would run the pair."""
    offered: bool | None
    """Whether LM Studio is likely to list it."""
    reason: str
    source: str


class ScanRow(Frozen):
    """One target on this disk and the best that can be done with what is there."""

    target: ModelSummary
    path: str
    found_in: str
    """Program or kind of place the file belongs to."""
    best: Option
    headline: str
    losing: tuple[Option, ...] = ()
    """Compatible pairs that would be slower than no speculation."""
    lm_studio: tuple[DropdownNote, ...] = ()
    """Files LM Studio's draft list leaves out or offers wrongly, with the reason."""


class Scan(Frozen):
    """Every target found on this disk."""

    schema_version: int = SCHEMA_VERSION
    hardware: str
    backend: Backend
    folders: tuple[str, ...]
    targets: tuple[ScanRow, ...]
    excluded: tuple[Exclusion, ...] = ()
    """Files that are no targets, and why."""
    seconds: float = 0.0
