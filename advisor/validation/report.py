"""The predictor against a measurement table: every line predicted, errors by group, honest counts of what was left."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from math import exp, hypot, log
from pathlib import Path
from typing import Any, Literal

from advisor.base import Frozen
from advisor.errors import AdvisorError, InputError
from advisor.performance.constants import Constants, load_constants
from advisor.performance.fitted import OLD_EXPERT_BUILDS, Kernel
from advisor.performance.passes import plan_of
from advisor.performance.select import FittedSource
from advisor.validation import cases as build
from advisor.validation.cases import BatchCase, Case, DecodeCase, Skipped, SpeculationCase
from advisor.validation.tables import TableKind, read_table

LEVEL = 0.8
"""Probability that a stated interval means to hold."""
Z = 1.2815515655446004
"""Standard normal quantile of the upper end of the central 80 %."""
NEUTRAL = 0.03
"""Measured speedups this close to 1 are neither faster nor slower."""

Given = Literal["given", "blind"]


class SkipCount(Frozen):
    """Lines not used, by reason."""

    reason: str
    count: int


class Group(Frozen):
    """Accuracy of one group of lines; figures as in the report."""

    name: str
    rows: int
    clusters: int
    median_error_pct: float
    p90_error_pct: float
    sign_accuracy: float | None
    interval_coverage: float


class LinePrediction(Frozen):
    """One line: predicted with its 80 % interval, and what was measured."""

    id: str
    predicted: float
    low: float
    high: float
    measured: float


class ValidationReport(Frozen):
    """Errors are \\|ln(predicted / measured)\\| in per cent.

    Every cluster (``setup`` of a speculation table, curve of a batch table, device of a decode table) counts once
    in the medians, percentiles and shares. ``sign_accuracy`` is the share of lines outside 1 +- 3 % that were put on
    the right side of 1 (None for decode); ``interval_coverage`` the share of lines inside the stated 80 % interval.
    """

    table: TableKind
    rows: int
    used: int
    skipped: tuple[SkipCount, ...]
    acceptance: Given | None
    median_error_pct: float | None
    p90_error_pct: float | None
    sign_accuracy: float | None
    interval_coverage: float | None
    interval_level: float = LEVEL
    groups: tuple[Group, ...]
    predictions: tuple[LinePrediction, ...]


class Scored(Frozen):
    """A prediction with what is needed to group it."""

    line: LinePrediction
    cluster: str
    tags: tuple[str, ...]

    @property
    def error(self) -> float:
        """|ln(predicted / measured)|."""
        return abs(log(self.line.predicted / self.line.measured))


def weighted_quantile(values: Sequence[float], weights: Sequence[float], level: float) -> float:
    """Quantile of weighted values: the middle of the steps of the distribution function, interpolated.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("no values")
    ordered = sorted(zip(values, weights, strict=True))
    total = sum(weights)
    passed = 0.0
    before: tuple[float, float] | None = None
    for value, weight in ordered:
        middle = (passed + 0.5 * weight) / total
        if middle >= level:
            if before is None:
                return value
            place = (level - before[0]) / (middle - before[0])
            return before[1] + place * (value - before[1])
        before = (middle, value)
        passed += weight
    return ordered[-1][0]


def summarise(name: str, scored: Sequence[Scored], *, signed: bool) -> Group:
    """Accuracy of some lines, every cluster weighing the same."""
    sizes: dict[str, int] = {}
    for s in scored:
        sizes[s.cluster] = sizes.get(s.cluster, 0) + 1
    weights = [1.0 / sizes[s.cluster] for s in scored]
    errors = [s.error for s in scored]
    inside = sum(w for s, w in zip(scored, weights, strict=True) if s.line.low <= s.line.measured <= s.line.high)
    clear = [(s, w) for s, w in zip(scored, weights, strict=True) if signed and abs(s.line.measured - 1) > NEUTRAL]
    right = sum(1 for s, _ in clear if (s.line.predicted > 1) == (s.line.measured > 1))
    return Group(
        name=name,
        rows=len(scored),
        clusters=len(sizes),
        median_error_pct=100 * weighted_quantile(errors, weights, 0.5),
        p90_error_pct=100 * weighted_quantile(errors, weights, 0.9),
        sign_accuracy=right / len(clear) if clear else None,
        interval_coverage=inside / sum(weights),
    )


def validate(
    path: str | Path,
    *,
    all_rows: bool = False,
    acceptance: Given = "given",
    costs: Any = None,
) -> ValidationReport:
    """Run the predictor over a table of measurements.

    Args:
        path: CSV with the columns of ``data/measurements.md``; which table it is follows from its columns.
        all_rows: also the lines that are marked low in trust or unfit for fitting.
        acceptance: for speculation tables, whether the acceptance of the line may be used (tests the physics) or has
            to be estimated (tests everything).
        costs: cost model or source of cost models instead of the fitted constants; a calibration of this machine is
            never used, because tables come from other machines.

    Raises:
        InputError: the file cannot be read or is no known table.
    """
    if acceptance not in ("given", "blind"):
        raise InputError(f"Acceptance is either given or blind, not {acceptance}.")
    table = read_table(Path(path))
    skipped: dict[str, int] = {}
    scored: list[Scored] = []
    blind = acceptance == "blind"
    want: Callable[..., str | None] = {
        "decode": build.wanted_decode,
        "batch": build.wanted_batch,
        "speculation": build.wanted_speculation,
    }[table.kind]
    for row in table.rows:
        reason = None if all_rows else want(row)
        if reason is None:
            case: Case | Skipped
            if table.kind == "decode":
                case = build.decode_case(row)
            elif table.kind == "batch":
                case = build.batch_case(row)
            else:
                case = build.speculation_case(row, blind=blind)
            if isinstance(case, Skipped):
                reason = case.reason
            else:
                try:
                    scored.append(score(case, blind=blind, costs=costs))
                    continue
                except AdvisorError as error:
                    reason = error.message.rstrip(".")
        skipped[reason] = skipped.get(reason, 0) + 1
    signed = table.kind != "decode"
    whole = summarise("all", scored, signed=signed) if scored else None
    return ValidationReport(
        table=table.kind,
        rows=len(table.rows),
        used=len(scored),
        skipped=tuple(
            SkipCount(reason=r, count=n) for r, n in sorted(skipped.items(), key=lambda item: (-item[1], item[0]))
        ),
        acceptance=acceptance if table.kind == "speculation" else None,
        median_error_pct=whole.median_error_pct if whole else None,
        p90_error_pct=whole.p90_error_pct if whole else None,
        sign_accuracy=whole.sign_accuracy if whole else None,
        interval_coverage=whole.interval_coverage if whole else None,
        groups=tuple(_groups(scored, signed)),
        predictions=tuple(s.line for s in scored),
    )


def _groups(scored: Sequence[Scored], signed: bool) -> Iterable[Group]:
    found: dict[str, list[Scored]] = {}
    for s in scored:
        for tag in s.tags:
            found.setdefault(tag, []).append(s)
    for name in sorted(found):
        yield summarise(name, found[name], signed=signed)


def score(case: Case, *, blind: bool = False, costs: Any = None) -> Scored:
    """Predict one case.

    Raises:
        AdvisorError: nothing can be said, for instance because acceptance cannot be estimated.
    """
    source = costs or _source(case)
    if isinstance(case, DecodeCase):
        predicted, low, high = _decode(case, source)
    elif isinstance(case, BatchCase):
        predicted, low, high = _batch(case, source)
    elif blind:
        predicted, low, high = _blind(case, source)
    else:
        predicted, low, high = _speculation(case, source)
    line = LinePrediction(id=case.id, predicted=predicted, low=low, high=high, measured=case.measured)
    return Scored(line=line, cluster=case.cluster, tags=tags_of(case))


def _source(case: Case) -> Any:
    """Fitted costs for the build of the line, and for the kernels it forced, never a calibration."""
    kernel = case.kernel if isinstance(case, BatchCase) else "auto"
    return source_for(case.setup.build, kernel, None)


@lru_cache(maxsize=256)
def _kept_source(old: bool, kernel: Kernel) -> FittedSource:
    return FittedSource(build=OLD_EXPERT_BUILDS - 1 if old else None, kernel=kernel)


def source_for(build: int | None, kernel: Kernel, constants: Constants | None) -> FittedSource:
    """Fitted costs of a build and kernel family; with other ``constants`` a new source every time."""
    old = build is not None and build < OLD_EXPERT_BUILDS
    if constants is None:
        return _kept_source(old, kernel)
    return FittedSource(constants, OLD_EXPERT_BUILDS - 1 if old else None, kernel)


def _spread(predicted: float, sd: float) -> tuple[float, float, float]:
    """A prediction with its central 80 % interval, log-normal with standard deviation ``sd``."""
    return predicted, predicted * exp(-Z * sd), predicted * exp(Z * sd)


def _decode(case: DecodeCase, source: Any) -> tuple[float, float, float]:
    plan = plan_of(case.model, case.setup, source)
    return _spread(1.0 / plan.seconds(1, None, case.depth), plan.costs.step_log_sd(case.model.architecture))


def _batch(case: BatchCase, source: Any) -> tuple[float, float, float]:
    plan = plan_of(case.model, case.setup, source)
    one = plan.parts(1, min(case.logits, 1), case.depth)
    many = plan.seconds(case.n, case.logits, case.depth, 0, case.sequences)
    constants: Constants = getattr(plan.costs, "constants", None) or load_constants()
    if case.sequences == 1 and case.model.is_moe:
        # llama-bench shows a jump from one to two tokens that neither batched decoding nor a server shows.
        many += (
            one.experts
            * constants.factor(f"bench_jump.{case.setup.backend}")
            * (1.0 if f"bench_jump.{case.setup.backend}" in constants.values else 0.0)
        )
    sd = plan.costs.log_sd(case.model.architecture, "verify")
    if case.n > 8:
        sd = hypot(sd, constants["scatter.mat_mat"])
    if case.model.is_moe:
        sd = hypot(sd, constants["scatter.verify_experts"])
        if case.setup.build is not None and case.setup.build < OLD_EXPERT_BUILDS:
            sd = hypot(sd, constants["scatter.old_build"])
    if case.model.is_recurrent and case.sequences > 1:
        sd = hypot(sd, constants["scatter.batched_state"])
    return _spread(many / sum(one), sd)


def _speculation(case: SpeculationCase, source: Any) -> tuple[float, float, float]:
    rounds = build.rounds_for(case, source)
    told = build.published_yield(case, rounds.rollback)
    one = rounds.round(case.k, told.gates, told.hit_rate)
    return _spread(one.tokens / one.cost.cost, one.log_sd)


def _blind(case: SpeculationCase, source: Any) -> tuple[float, float, float]:
    """As `advisor predict` would say it before anything ran: the same estimate, the same combination."""
    from advisor.speculation.acceptance import estimate
    from advisor.speculation.predict import point_of

    task: Any = case.task if case.task in TASKS else "mixed"
    guess = estimate(
        case.target, case.draft, case.method, task=task, k=case.k, temperature=case.temperature or 0.0, results=()
    )
    found = point_of(build.rounds_for(case, source), case.k, guess, case.p_min).range()
    return found.median, found.low, found.high


TASKS = frozenset(
    {"code-edit", "code", "chat", "summarise", "extract", "math", "reasoning", "prose", "translate", "mixed"}
)


def tags_of(case: Case) -> tuple[str, ...]:
    """Groups a case belongs to, as ``kind: value``."""
    setup = case.setup
    tags = [f"backend: {setup.backend}", f"device: {'+'.join(sorted({d.slug for d in setup.hardware.devices}))}"]
    model = case.target if isinstance(case, SpeculationCase) else case.model
    tags.append("model: MoE" if model.is_moe else "model: dense")
    if model.is_recurrent:
        tags.append("model: hybrid or recurrent")
    if isinstance(case, SpeculationCase):
        tags += [f"method: {case.method}", f"source: {case.source}"]
        if abs(case.measured - 1) <= 0.15:
            tags.append("speedup: within 15 % of 1")
        if case.p_min > 0:
            tags.append("gated: p-min above 0")
    return tuple(tags)
