"""The curves a report ships, so that its page can answer other acceptance rates, draft lengths and contexts."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.errors import InputError
from advisor.hardware.machine import Setup
from advisor.models.description import ModelDescription
from advisor.performance.passes import CostSource
from advisor.report.document import Sheet, WhatIf, WhatIfContext
from advisor.speculation.prediction import Prediction

RATES = tuple(i / 20 for i in range(21))
DEPTHS = (0, 2048, 8192, 32768, 131072)


def what_if(
    prediction: Prediction,
    target: ModelDescription,
    draft: ModelDescription | None,
    setup: Setup,
    *,
    costs: CostSource | None = None,
) -> WhatIf | None:
    """Round costs around a prediction, over depths, draft lengths and acceptance rates; None if nothing drafts.

    The costs are those of :func:`advisor.speculation.rounds.round_of`; where they do not depend on acceptance (no
    rollback, no gate) one number per draft length is kept.
    """
    from advisor.speculation.conversions import mean_length
    from advisor.speculation.predict import ungated_rate
    from advisor.speculation.rounds import round_of

    p = prediction
    if p.method == "none" or not p.curve:
        return None
    lengths = tuple(sorted({c.draft_max for c in p.curve}))
    offsets, share, at = p.acceptance.offsets, p.acceptance.draft_share, p.draft_max
    limit = target.context_length or max(DEPTHS)

    def cut(row: list[float]) -> tuple[float, ...]:
        rounded = tuple(round(x, 7) for x in row)
        return rounded[:1] if max(rounded) - min(rounded) <= 1e-6 else rounded

    contexts, yields, plain = [], [], True
    for depth in sorted({p.depth, *(d for d in DEPTHS if d <= limit)}):
        rows, step_ms = [], 0.0
        tokens: list[tuple[float, ...]] = []
        for k in lengths:
            # A reported rate is that of the tokens a gate let through; the rounds want it for all of them.
            shapes = [shape(ungated_rate(r, at, p.p_min) if p.p_min > 0 else r, at, k, offsets) for r in RATES]
            rounds = [
                round_of(target, draft, p.method, setup, k, positions=one, depth=depth, p_min=p.p_min,
                         parallel=p.parallel, hit_rate=share, costs=costs)
                for one in shapes
            ]  # fmt: skip
            rows.append(cut([r.cost.cost for r in rounds]))
            tokens.append(tuple(round(r.tokens, 7) for r in rounds))
            expected = [1 + share * (mean_length(one) - 1) for one in shapes]
            plain = plain and all(abs(r.tokens - e) < 1e-6 for r, e in zip(rounds, expected, strict=True))
            step_ms = rounds[0].cost.milliseconds / rounds[0].cost.cost
        contexts.append(WhatIfContext(depth=depth, step_ms=step_ms, cost=tuple(rows)))
        yields = tokens
    return WhatIf(
        reported_at=at, rate=p.acceptance.rate.median, depth=p.depth, rates=RATES, lengths=lengths, offsets=offsets,
        draft_share=share, yields=() if plain else tuple(yields), contexts=tuple(contexts),
    )  # fmt: skip


def shape(rate: float, at: int, k: int, offsets: Sequence[float]) -> tuple[float, ...]:
    """Conditional acceptances at length ``k`` of text that shows ``rate`` = accepted / drafted at length ``at``."""
    from advisor.speculation.conversions import positions_from_theta, theta_from_acceptance

    if rate <= 0.0 or rate >= 1.0:
        return (rate,) * k
    return positions_from_theta(theta_from_acceptance(rate, at, offsets), k, offsets)


def answer(curves: WhatIf, depth: int, k: int, rate: float) -> tuple[float, float]:
    """Tokens per round and speedup, computed exactly as the page's script does it.

    Raises:
        InputError: a depth or draft length that was not shipped.
    """
    from advisor.speculation.conversions import mean_length

    context = next((c for c in curves.contexts if c.depth == depth), None)
    if context is None or k not in curves.lengths:
        raise InputError(f"The report holds no curve for draft length {k} at {depth} tokens of context.")
    i = curves.lengths.index(k)
    if curves.yields:
        tokens = between(curves.yields[i], curves.rates, rate)
    else:
        steps = shape(rate, curves.reported_at, k, curves.offsets)
        tokens = 1 + curves.draft_share * (mean_length(steps) - 1)
    return tokens, tokens / between(context.cost[i], curves.rates, rate)


def between(row: Sequence[float], rates: Sequence[float], rate: float) -> float:
    """Linear between the shipped rates; a row of one entry holds for all."""
    if len(row) == 1:
        return row[0]
    j = 1
    while j < len(rates) - 1 and rates[j] < rate:
        j += 1
    part = (rate - rates[j - 1]) / (rates[j] - rates[j - 1])
    return row[j - 1] + part * (row[j] - row[j - 1])


def speedup_at(sheet: Sheet, rate: float) -> float:
    """Speedup at another acceptance, draft length and context as predicted.

    Without shipped curves the round cost is taken as it is and ``tau = 1 + k * rate``, which is exact where nothing
    is rolled back.
    """
    p = sheet.prediction
    if sheet.what_if is not None and p.draft_max in sheet.what_if.lengths:
        return answer(sheet.what_if, p.depth, p.draft_max, rate)[1]
    return (1 + p.acceptance.draft_share * p.draft_max * rate) / p.round.cost
