"""The prediction: acceptance and round cost put together, with their uncertainty, and said in plain words.

``speedup = tau / R(k)``. tau comes from an acceptance estimate, R(k) from the physics; both are uncertain, and the
uncertainty is carried to the answer: in log space the two are independent, so the half-widths add in quadrature.
"""

from __future__ import annotations

import math
from functools import lru_cache

from advisor.base import Figure, Frozen, Range
from advisor.errors import InputError
from advisor.hardware.machine import Setup
from advisor.models.description import ModelDescription
from advisor.performance.costs import CostModel
from advisor.performance.memory import memory_plan
from advisor.performance.passes import CostSource, plan_of
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
    Task,
    TokenizerVerdict,
    Verdict,
)
from advisor.speculation.rounds import Round, round_of

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


def tokenizer_verdict(target: ModelDescription, draft: ModelDescription | None, method: Method) -> TokenizerVerdict:
    """Whether llama.cpp accepts this pair for this method (vocabulary for draft-simple, shapes for heads)."""
    if draft is None or method == "draft-mtp":
        if draft is not None and draft.drafter and draft.drafter.target_width not in (None, target.embedding_length):
            return TokenizerVerdict(compatible=False, reason=_width_reason(target, draft))
        return TokenizerVerdict(compatible=True, reason="No second vocabulary: the target's own is used.")
    if draft.drafter:
        width = draft.drafter.target_width
        if width is not None and target.embedding_length and width != target.embedding_length:
            return TokenizerVerdict(compatible=False, reason=_width_reason(target, draft))
        deepest = max(draft.drafter.target_layers, default=0)
        if target.layers and deepest > len(target.layers):
            return TokenizerVerdict(
                compatible=False,
                reason=f"The head reads layer {deepest} of its target, but {target.name} has {len(target.layers)}.",
            )
        return TokenizerVerdict(
            compatible=True, reason="llama.cpp compares no vocabulary for this method; the widths agree."
        )
    from advisor.models.tokenizer import compare

    return compare(target, draft)


def _width_reason(target: ModelDescription, draft: ModelDescription) -> str:
    assert draft.drafter is not None
    return (
        f"The head was made for a target {draft.drafter.target_width} wide; "
        f"{target.name} is {target.embedding_length} wide."
    )


class _Point(Frozen):
    """One draft length: its round, and ln(speedup) with its spread on both sides (one z each)."""

    k: int
    round: Round
    log_speedup: float
    down: float
    up: float

    def range(self) -> Range:
        return Range(
            median=math.exp(self.log_speedup),
            low=math.exp(self.log_speedup - self.down),
            high=math.exp(self.log_speedup + self.up),
            level=LEVEL,
        )

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
    tokenizer = tokenizer_verdict(target, draft, method)
    at = draft_max or default_draft_max(method)
    estimate = (
        acceptances.given(acceptance, at, method)
        if acceptance is not None
        else acceptances.estimate(target, draft, method, task=task, temperature=temperature, k=at)
    )

    points = {
        k: _point(target, draft, method, setup, k, estimate, depth=depth, p_min=p_min, costs=costs)
        for k in sweep(method, draft_max, target, draft)
    }
    best = max(points.values(), key=lambda p: p.log_speedup)
    chosen = points[draft_max] if draft_max is not None else best
    estimate = acceptances.at_length(estimate, chosen.k)

    slots = setup.parallel
    base_tps = 1 / plan_of(target, setup, costs).seconds(slots, slots, depth, sequences=slots)
    step_sd = charges.step_log_sd(target.architecture)
    ratio = chosen.range()
    speculative = base_tps * ratio.median
    memory = memory_plan(target, draft, method, setup, context=context, draft_max=chosen.k)
    verdict = _verdict(chosen, tokenizer, memory, force)
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
        mean_accepted_length=chosen.round.tokens,
        baseline_tps=_spread(base_tps, Z * step_sd, Z * step_sd),
        speculative_tps=_spread(speculative, math.hypot(chosen.down, Z * step_sd), math.hypot(chosen.up, Z * step_sd)),
        speedup=ratio,
        probability_faster=chosen.probability_faster,
        round=chosen.round.cost,
        best=BestDraftLength(draft_max=best.k, speedup=math.exp(best.log_speedup))
        if best.log_speedup > 0
        else BestDraftLength(draft_max=0, speedup=1.0),
        break_even_acceptance=break_even(target, draft, method, setup, chosen.k, depth=depth, p_min=p_min, costs=costs),
        curve=tuple(
            CurvePoint(
                draft_max=p.k,
                round_cost=p.round.cost.cost,
                mean_accepted_length=p.round.tokens,
                speedup=p.range(),
            )
            for p in sorted(points.values(), key=lambda p: p.k)
        ),
        memory=memory,
        tokenizer=tokenizer,
        verdict=verdict,
        reasons=explain(target, draft, method, chosen, estimate, best, tokenizer, memory, verdict),
        figures=_figures(target, setup, charges),
        assumptions=_assumptions(target, draft, setup),
    )


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


def _point(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    k: int,
    estimate: AcceptanceEstimate,
    *,
    depth: int,
    p_min: float,
    costs: CostSource | None,
) -> _Point:
    """The round at the median acceptance, and how far ln(speedup) moves at both ends of its range."""

    def at(shift: float) -> tuple[Round, float]:
        positions = acceptances.positions(estimate, k, shift)
        one = round_of(
            target, draft, method, setup, k, positions=positions, depth=depth, p_min=p_min,
            parallel=setup.parallel, hit_rate=estimate.draft_share, costs=costs,
        )  # fmt: skip
        return one, math.log(one.tokens / one.cost.cost)

    middle, centre = at(0.0)
    down = up = 0.0
    if estimate.rate.high > estimate.rate.low:
        down = max(0.0, centre - at(-Z)[1])
        up = max(0.0, at(Z)[1] - centre)
    physics = Z * middle.log_sd
    return _Point(k=k, round=middle, log_speedup=centre, down=math.hypot(down, physics), up=math.hypot(up, physics))


def break_even(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    k: int,
    *,
    depth: int = 0,
    p_min: float = 0.0,
    costs: CostSource | None = None,
) -> float | None:
    """Acceptance (accepted / drafted) at which this pair neither gains nor loses at draft length ``k``.

    Bisection on the constant conditional rate; None if even perfect acceptance loses. 0 if it never loses.
    """

    def gain(rate: float) -> float:
        one = round_of(
            target, draft, method, setup, k, positions=(rate,) * k, depth=depth, p_min=p_min,
            parallel=setup.parallel, costs=costs,
        )  # fmt: skip
        return one.tokens - one.cost.cost

    low, high = 0.0, 1.0
    if gain(1.0) <= 0:
        return None
    if gain(0.0) >= 0:
        return 0.0
    for _ in range(12):  # 2^-12: finer than any acceptance is known
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) > 0 else (middle, high)
    return sum(high**i for i in range(1, k + 1)) / k


def _spread(value: float, down: float, up: float) -> Range:
    return Range(median=value, low=value * math.exp(-down), high=value * math.exp(up), level=LEVEL)


def _verdict(point: _Point, tokenizer: TokenizerVerdict, memory: MemoryPlan, force: bool) -> Verdict:
    if tokenizer.compatible is False and not force:
        return "incompatible"
    if memory.fits is False:
        return "does not fit"
    if point.probability_faster >= SURE and point.log_speedup > MARGIN:
        return "faster"
    if point.probability_faster <= 1 - SURE and point.log_speedup < -MARGIN:
        return "slower"
    return "too close to call"


@lru_cache(maxsize=256)
def _summary(key: int, holder: _Holder) -> ModelSummary:
    model = holder.model
    return ModelSummary(
        name=model.name,
        reference=model.reference,
        architecture=model.architecture,
        quant=model.quant,
        size_bytes=model.size_bytes,
        total_parameters=model.total_parameters,
        active_parameters=model.active_parameters,
        decode_bytes=model.decode_bytes,
        source=model.source,
    )


class _Holder:
    """Keeps the model alive as long as its cached summary, so that an id is never reused meanwhile."""

    def __init__(self, model: ModelDescription) -> None:
        self.model = model

    def __hash__(self) -> int:
        return id(self.model)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Holder) and other.model is self.model


def summarise(model: ModelDescription) -> ModelSummary:
    """What an answer quotes of a model."""
    return _summary(id(model), _Holder(model))


def distinct_experts(count: int, used: float, tokens: int) -> float:
    """Expected distinct experts that ``tokens`` tokens touch per layer if they route independently.

    ``N (1 - (1 - u/N)^n)``, the expected union of n random subsets of size u out of N.
    """
    return count * (1 - (1 - used / count) ** tokens)


def explain(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    point: _Point,
    estimate: AcceptanceEstimate,
    best: _Point,
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
    k, cost = point.k, point.round.cost
    lines.append(
        f"A round yields {point.round.tokens:.2f} tokens and costs {cost.cost:.2f} decode steps "
        f"(draft {cost.draft:.2f}, checking {cost.verify:.2f}, the rest {cost.overhead:.2f})."
    )
    moe = next((x for x in target.layers if x.expert_count), None)
    drafted = max(1, round(point.round.drafted))
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
            f"Per token the draft reads {share:.0%} of what the target reads ({active} active parameters): "
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
