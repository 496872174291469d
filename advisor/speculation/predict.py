"""The prediction: acceptance and round cost put together, with their uncertainty, and said in plain words.

``speedup = tau / R(k)``. tau comes from an acceptance estimate, R(k) from the physics; both are uncertain, and the
uncertainty is carried to the answer: in log space the two are independent, so the half-widths add in quadrature.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from advisor.base import Figure, Range
from advisor.errors import InputError
from advisor.hardware.machine import Setup
from advisor.models.description import ModelDescription
from advisor.performance.costs import CostModel
from advisor.performance.identity import IdentityCache
from advisor.performance.memory import memory_plan
from advisor.performance.passes import CostSource
from advisor.performance.select import cost_model, fitted_costs
from advisor.speculation import acceptance as acceptances
from advisor.speculation.prediction import (
    AcceptanceEstimate,
    BestDraftLength,
    CurvePoint,
    MemoryPlan,
    Method,
    ModelSummary,
    Prediction,
    RoundCost,
    Task,
    TokenizerVerdict,
    Verdict,
)
from advisor.speculation.rounds import Expected, Rounds, gate, gated_rate, positions_behind_gate, rounds_of

LEVEL = 0.8
"""Every range is the central 80 % interval."""
Z = 1.2815515655446004
"""Standard normal quantile of the 90th percentile, the upper end of a central 80 % interval."""
SURE = 0.8
"""From this probability on the verdict is *faster* (or, below 1 - SURE, *slower*)."""
MARGIN = math.log(1.03)
"""Speedups within 3 % of 1 are not worth a switch and not distinguishable from noise."""
NGRAM = ("ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")

_SWEEP = (1, 2, 3, 4, 5, 6, 7, 8)
_NGRAM_SWEEP = (2, 4, 8, 12, 16, 24, 32, 48, 64)


def default_draft_max(method: Method) -> int:
    """The draft length llama.cpp (and LM Studio) use when nothing is said, by method [tokens].

    Source: llama.cpp common/common.h: ``--spec-draft-n-max`` 3, n-gram size-m 48, ngram-mod n-max 64,
    ngram-cache fixed at 8.
    """
    return {"none": 0, "ngram-mod": 64, "ngram-cache": 8}.get(method, 48 if method in NGRAM else 3)


def infer_method(target: ModelDescription, draft: ModelDescription | None) -> Method:
    """The method llama.cpp would need for such a pair: by the draft's kind, else MTP if the target holds it.

    Raises:
        InputError: the draft is not something that can draft, or there is neither a draft nor MTP layers.
    """
    if draft is None:
        if target.mtp:
            return "draft-mtp"
        raise InputError(
            f"{target.name} holds no MTP layers, so there is nothing to draft with.",
            "Name a draft, or an n-gram method such as --method ngram-mod.",
        )
    if draft.drafter:
        return draft.drafter.method
    if draft.kind != "model":
        raise InputError(
            f"{draft.name} is a {draft.kind} file and cannot draft.", "Give a small model or a drafter head."
        )
    return "draft-simple"


def tokenizer_verdict(
    target: ModelDescription, draft: ModelDescription | None, method: Method, build: int | None = None
) -> TokenizerVerdict:
    """Whether llama.cpp runs this pair with this method: vocabularies for draft-simple, shapes for heads.

    Raises:
        InputError: the draft is no model at all.
    """
    if draft is None:
        return TokenizerVerdict(compatible=True, reason="No second vocabulary: the target's own is used.")
    return _PAIRS.get((target, draft), build, lambda: _checked(target, draft, build))


def _checked(target: ModelDescription, draft: ModelDescription, build: int | None) -> TokenizerVerdict:
    from advisor.models.pairs import check_pair

    report = check_pair(target, draft, build=build)
    return TokenizerVerdict(compatible=report.compatible, reason=report.reason)


class Point(NamedTuple):
    """One draft length: the average round, and ln(speedup) with its spread on both sides (one z each)."""

    k: int
    expected: Expected
    cost: float
    """R(k) [decode steps]."""
    log_speedup: float
    down: float
    up: float

    def range(self) -> Range:
        """The speedup with its 80 % interval."""
        return _spread(math.exp(self.log_speedup), self.down, self.up)

    @property
    def probability_faster(self) -> float:
        """P(speedup > 1), a normal in log space with the half-width of the side that faces 1."""
        side = self.down if self.log_speedup > 0 else self.up
        sd = max(side / Z, 1e-9)
        return 0.5 * (1 + math.erf(self.log_speedup / sd / math.sqrt(2)))


def predict(
    target: ModelDescription,
    draft: ModelDescription | None = None,
    *,
    setup: Setup,
    method: Method | None = None,
    draft_max: int | None = None,
    acceptance: float | None = None,
    task: Task | None = None,
    depth: int = 0,
    context: int | None = None,
    p_min: float = 0.0,
    temperature: float = 0.0,
    calibrated: bool = True,
    force: bool = False,
) -> Prediction:
    """Predict the speed of ``target`` with and without drafting.

    Args:
        target: the model whose output is wanted.
        draft: a draft model or drafter head; None = MTP inside the target, or an n-gram method.
        setup: machine, backend, placement, cache types, slots.
        method: llama.cpp's method name; None = inferred from the pair.
        draft_max: most tokens drafted per round; None = the best length of the sweep.
        acceptance: accepted / drafted, 0..1, as llama.cpp and LM Studio report it, at ``draft_max`` (at the
            method's default length if ``draft_max`` is None); None = estimated from published and own runs.
        task: kind of text, for the estimate.
        depth: tokens already in the context.
        context: context size to plan memory for [tokens]; None = depth + 4096.
        p_min: the draft stops when its own probability falls below this.
        temperature: sampling temperature of the target.
        calibrated: use this machine's calibration when one applies.
        force: predict although the tokenizers are incompatible.

    Raises:
        InputError: values out of range, or a file that cannot play its part.
    """
    _check(target, draft_max, acceptance, depth, p_min, temperature)
    method = method or infer_method(target, draft)
    context = context if context is not None else depth + 4096
    costs: CostSource | None = None if calibrated else fitted_costs
    charges = cost_model(setup, calibrated=calibrated)
    tokenizer = tokenizer_verdict(target, draft, method, setup.build)
    at = draft_max or default_draft_max(method)
    if acceptance is not None:
        estimate = acceptances.given(acceptance, at, method)
        # What was reported with a gate describes the tokens the gate let through; the model wants all of them.
        ungated = acceptances.given(ungated_rate(acceptance, at, p_min), at, method) if p_min > 0 else estimate
    else:
        estimate = ungated = acceptances.estimate(target, draft, method, task=task, temperature=temperature, k=at)

    rounds = rounds_of(target, draft, method, setup, depth=depth, parallel=setup.parallel, costs=costs)
    points = {k: point_of(rounds, k, ungated, p_min) for k in sweep(method, draft_max, target, draft)}
    best = max(points.values(), key=lambda p: p.log_speedup)
    chosen = points[draft_max] if draft_max is not None else best
    estimate = acceptances.at_length(estimate, chosen.k)
    if p_min > 0 and acceptance is None:
        estimate = _as_counted(estimate, chosen.k, p_min)

    base_tps = 1 / rounds.base
    step_sd = charges.step_log_sd(target.architecture)
    ratio = chosen.range()
    speculative = base_tps * ratio.median
    memory = _memory(target, draft, method, setup, context, chosen.k)
    verdict = _verdict(chosen, tokenizer, memory, force)
    reasons = explain(
        target, draft, method, chosen, rounds.cost_of(chosen.expected), estimate, best, tokenizer, memory, verdict
    )
    if setup.parallel > 1:
        gains = gains_by_slots(target, draft, method, setup, chosen.k, ungated, depth=depth, p_min=p_min, costs=costs)
        reasons = (*reasons, *_fading(gains))
    return Prediction(
        target=summarise(target),
        draft=summarise(draft) if draft is not None else None,
        hardware=setup.hardware.name,
        backend=setup.backend,
        method=method,
        draft_max=chosen.k,
        p_min=p_min,
        context=context,
        depth=depth,
        parallel=setup.parallel,
        acceptance=estimate,
        mean_accepted_length=chosen.expected.tokens,
        baseline_tps=_spread(base_tps, Z * step_sd, Z * step_sd),
        speculative_tps=_spread(speculative, math.hypot(chosen.down, Z * step_sd), math.hypot(chosen.up, Z * step_sd)),
        speedup=ratio,
        probability_faster=chosen.probability_faster,
        round=rounds.cost_of(chosen.expected),
        best=BestDraftLength(draft_max=best.k, speedup=math.exp(best.log_speedup))
        if best.log_speedup > 0
        else BestDraftLength(draft_max=0, speedup=1.0),
        break_even_acceptance=break_even(rounds, chosen.k, p_min),
        curve=tuple(
            CurvePoint(
                draft_max=p.k,
                round_cost=p.cost,
                mean_accepted_length=p.expected.tokens,
                speedup=p.range(),
            )
            for p in sorted(points.values(), key=lambda p: p.k)
        ),
        memory=memory,
        tokenizer=tokenizer,
        verdict=verdict,
        reasons=reasons,
        figures=_figures(target, setup, charges),
        assumptions=_assumptions(target, draft, setup),
    )


def ungated_rate(acceptance: float, k: int, p_min: float) -> float:
    """Acceptance of all ``k`` tokens when ``acceptance`` was reported behind a gate ``p_min``."""
    return gated_rate(positions_behind_gate(acceptance, k, p_min)[0], k, 0.0)


def _as_counted(estimate: AcceptanceEstimate, k: int, p_min: float) -> AcceptanceEstimate:
    """The estimate as the engine will count it: accepted / drafted of the tokens the gate lets through."""

    def counted(rate: float) -> float:
        return gated_rate(positions_behind_gate(rate, k, 0.0)[0], k, p_min)

    r = estimate.rate
    rate = Range(median=counted(r.median), low=counted(r.low), high=counted(r.high), level=r.level)
    return estimate.model_copy(update={"rate": rate})


def _check(
    target: ModelDescription,
    draft_max: int | None,
    acceptance: float | None,
    depth: int,
    p_min: float,
    temperature: float,
) -> None:
    if target.kind != "model":
        raise InputError(
            f"{target.name} is a {target.kind} file, not a model that writes text.", "Name the target model itself."
        )
    if draft_max is not None and not 1 <= draft_max <= 256:
        raise InputError(f"A draft length of {draft_max} makes no sense.", "Use 1 to 256; 2 to 5 is usual.")
    if acceptance is not None and not 0 <= acceptance <= 1:
        raise InputError(
            f"An acceptance of {acceptance:g} is not a share.", "Give accepted / drafted, e.g. 0.64 for 64 %."
        )
    if depth < 0 or not 0 <= p_min <= 1 or temperature < 0:
        raise InputError("Context and temperature cannot be negative, and --p-min lies between 0 and 1.")


def sweep(
    method: Method, draft_max: int | None, target: ModelDescription, draft: ModelDescription | None
) -> tuple[int, ...]:
    """Draft lengths worth looking at, the asked one among them, capped where the method caps it."""
    lengths: tuple[int, ...] = _NGRAM_SWEEP if method in NGRAM else _SWEEP
    if method == "ngram-cache":
        lengths = (8,)  # llama.cpp fixes it
    if draft is not None and draft.drafter and draft.drafter.block_size and method in ("draft-dflash", "draft-dspark"):
        cap = draft.drafter.block_size - (method == "draft-dflash")
        lengths = tuple(sorted({k for k in (*lengths, cap) if k <= cap}))
    if method == "draft-mtp" and draft is None and target.mtp and target.mtp.layers > 1:
        lengths = tuple(k for k in lengths if k <= target.mtp.layers)  # chained heads: one position each
    if draft_max is not None and draft_max not in lengths:
        lengths = (*lengths, draft_max)
    return lengths


def point_of(rounds: Rounds, k: int, estimate: AcceptanceEstimate, p_min: float) -> Point:
    """The round at the median acceptance, and how far ln(speedup) moves at both ends of its range."""

    def at(shift: float) -> Expected:
        positions = acceptances.positions(estimate, k, shift)
        return rounds.expected(k, [gate(a, p_min) for a in positions], estimate.draft_share)

    middle = at(0.0)
    centre = _log_gain(rounds, middle)
    down = up = 0.0
    if estimate.rate.high > estimate.rate.low:
        down = max(0.0, centre - _log_gain(rounds, at(-Z)))
        up = max(0.0, _log_gain(rounds, at(Z)) - centre)
    # Rounds that draft nothing are ordinary decode steps: there is nothing uncertain about their relative cost.
    drafting = 1.0 - (1.0 - estimate.draft_share) * rounds.base / middle.seconds
    physics = Z * rounds.log_sd(gated=p_min > 0) * drafting
    return Point(k, middle, middle.seconds / rounds.base, centre, math.hypot(down, physics), math.hypot(up, physics))


def _log_gain(rounds: Rounds, e: Expected) -> float:
    return math.log(e.tokens * rounds.base / e.seconds)


COLUMNS = 64
"""Longest pass that published curves reach [tokens]; what more slots would do is not said."""


def gains_by_slots(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    k: int,
    estimate: AcceptanceEstimate,
    *,
    depth: int = 0,
    p_min: float = 0.0,
    costs: CostSource | None = None,
) -> dict[int, float]:
    """Speedup of drafting ``k`` tokens by requests decoded at once (1, 2, 4 ... while a pass has at most 64 tokens).

    All slots share one pass: its columns are paid once per slot, so what was free for one request is not for many.
    """
    gates = [gate(a, p_min) for a in acceptances.positions(estimate, k)]
    found = {}
    for slots in (1, 2, 4, 8, 16, 32):
        if slots * (k + 1) <= COLUMNS:
            rounds = rounds_of(target, draft, method, setup, depth=depth, parallel=slots, costs=costs)
            found[slots] = math.exp(_log_gain(rounds, rounds.expected(k, gates, estimate.draft_share)))
    return found


def break_even(rounds: Rounds, k: int, p_min: float = 0.0) -> float | None:
    """Acceptance (accepted / drafted) at which this pair neither gains nor loses at draft length ``k``.

    Bisection on the constant conditional rate; None if even perfect acceptance loses, 0 if it never loses.
    """

    def gain(rate: float) -> float:
        return _log_gain(rounds, rounds.expected(k, [gate(rate, p_min)] * k))

    low, high = 0.0, 1.0
    if gain(1.0) <= 0:
        return None
    if gain(0.0) >= 0:
        return 0.0
    for _ in range(11):  # 2^-11: finer than any acceptance is known
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) > 0 else (middle, high)
    return gated_rate(high, k, p_min)


def _spread(value: float, down: float, up: float) -> Range:
    return Range(median=value, low=value * math.exp(-down), high=value * math.exp(up), level=LEVEL)


def _verdict(point: Point, tokenizer: TokenizerVerdict, memory: MemoryPlan, force: bool) -> Verdict:
    if tokenizer.compatible is False and not force:
        return "incompatible"
    if memory.fits is False:
        return "does not fit"
    if point.probability_faster >= SURE and point.log_speedup > MARGIN:
        return "faster"
    if point.probability_faster <= 1 - SURE and point.log_speedup < -MARGIN:
        return "slower"
    return "too close to call"


_SUMMARIES: IdentityCache[ModelSummary] = IdentityCache(512)
_PLANS: IdentityCache[MemoryPlan] = IdentityCache(2048)
_PAIRS: IdentityCache[TokenizerVerdict] = IdentityCache(4096)


def summarise(model: ModelDescription) -> ModelSummary:
    """What an answer quotes of a model."""
    names = tuple(ModelSummary.model_fields)
    return _SUMMARIES.get((model,), None, lambda: ModelSummary(**{n: getattr(model, n) for n in names}))


def _memory(
    target: ModelDescription, draft: ModelDescription | None, method: Method, setup: Setup, context: int, k: int
) -> MemoryPlan:
    owners = (target, setup) if draft is None else (target, setup, draft)
    return _PLANS.get(
        owners,
        (method, context, k),
        lambda: memory_plan(target, draft, method, setup, context=context, draft_max=k),
    )


def distinct_experts(count: int, used: float, tokens: int) -> float:
    """Expected distinct experts that ``tokens`` tokens touch per layer if they route independently.

    ``N (1 - (1 - u/N)^n)``, the expected union of n random subsets of size u out of N.
    """
    return count * (1 - (1 - used / count) ** tokens)


def explain(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    point: Point,
    cost: RoundCost,
    estimate: AcceptanceEstimate,
    best: Point,
    tokenizer: TokenizerVerdict,
    memory: MemoryPlan,
    verdict: Verdict,
) -> tuple[str, ...]:
    """The reasons in plain words, the decisive one first."""
    lines: list[str] = []
    if verdict == "incompatible":
        lines.append(f"llama.cpp refuses this pair: {tokenizer.reason}")
    if memory.fits is False:
        lines.append(f"It does not fit: {memory.advice[0]}" if memory.advice else "It does not fit in memory.")
    k = point.k
    lines.append(
        f"A round yields {point.expected.tokens:.2f} tokens and costs {cost.cost:.2f} decode steps "
        f"(draft {cost.draft:.2f}, checking {cost.verify:.2f}, the rest {cost.overhead:.2f})."
    )
    moe = next((x for x in target.layers if x.expert_count), None)
    drafted = max(1, round(point.expected.drafted))
    if moe:
        touched = distinct_experts(moe.expert_count, moe.expert_used, drafted + 1)
        lines.append(
            f"{drafted + 1} tokens touch {touched:.0f} of {moe.expert_count} experts per layer instead of "
            f"{moe.expert_used}, so checking costs {cost.verify:.1f} steps."
        )
    else:
        lines.append(
            f"Checking {drafted + 1} tokens at once costs {cost.verify:.1f} decode steps here; it is not free."
        )
    if draft is not None and method == "draft-simple":
        share = draft.decode_bytes / max(1, target.decode_bytes)
        active = f"{draft.active_parameters / 1e9:.3g}B of {target.active_parameters / 1e9:.3g}B"
        lines.append(
            f"Per token the draft reads {share * 100:.0f} % of what the target reads ({active} active parameters): "
            f"each drafted token costs {cost.draft / drafted:.2f} steps."
        )
    elif method == "draft-mtp" and draft is None:
        lines.append(
            f"Each MTP token runs one block and the whole output head: {cost.draft / drafted:.2f} steps per token."
        )
    if cost.rollback > 0.005:
        lines.append(
            f"The target keeps a recurrent state: saving it and decoding again after a rejection costs "
            f"{cost.rollback:.2f} steps per round."
        )
    if best.k != k and best.log_speedup > max(0.0, point.log_speedup) + MARGIN / 3:
        lines.append(f"A draft length of {best.k} would do better: {math.exp(best.log_speedup):.2f}x.")
    if tokenizer.compatible is None:
        lines.append(f"Tokenizer not proven compatible: {tokenizer.reason}")
    if estimate.kind == "assumed" and verdict == "too close to call":
        lines.append("Acceptance is a guess here: only `advisor confirm` can tell.")
    return tuple(lines)


def _fading(gains: dict[int, float]) -> tuple[str, ...]:
    """How the gain fades with requests decoded at the same time, and from how many on it is gone."""
    if not gains:
        return ()
    told = ", ".join(f"{gain:.2f}x with {slots}" for slots, gain in gains.items())
    lost = next((slots for slots, gain in gains.items() if gain <= 1.0), None)
    end = f"gone from {lost} on" if lost is not None else f"not yet gone with {max(gains)}"
    return (f"Requests at once share a pass, so the gain changes: {told}; {end}.",)


def _figures(target: ModelDescription, setup: Setup, costs: CostModel) -> dict[str, Figure]:
    figures = dict(costs.figures(target.architecture, target.quant))
    for device in setup.hardware.devices[:1]:
        if device.bandwidth:
            figures["bandwidth"] = device.bandwidth
    return figures


def _assumptions(target: ModelDescription, draft: ModelDescription | None, setup: Setup) -> tuple[str, ...]:
    lines = [*setup.hardware.assumptions]
    for model in (target, draft):
        if model is not None:
            lines += [f"{model.name}: {a}" for a in model.assumptions]
    return tuple(dict.fromkeys(lines))
