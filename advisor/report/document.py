"""What a report holds, whatever it is written as: one sheet per pair and machine."""

from __future__ import annotations

from collections.abc import Sequence

from advisor.advice.rules import RuleCheck
from advisor.base import Frozen, Range
from advisor.speculation.prediction import Prediction

SCHEMA_VERSION = 1


class Command(Frozen):
    """A command to copy, and what it is for."""

    title: str
    text: str


class Compared(Frozen):
    """One quantity predicted and measured; either may be missing."""

    quantity: str
    unit: str
    predicted: Range | None
    measured: Range | None


class PassPoint(Frozen):
    """Where one pass sits: ``intensity`` [FLOP/byte], ``rate`` achieved [TFLOP/s], ``milliseconds`` it takes."""

    name: str
    intensity: float
    rate: float
    milliseconds: float


class RooflineView(Frozen):
    """A machine's two ceilings, ``bandwidth`` [GB/s] and ``peak`` [TFLOP/s], and the passes under them."""

    bandwidth: float
    peak: float
    points: tuple[PassPoint, ...]
    note: str = ""


class WhatIfContext(Frozen):
    """Costs at one context depth [tokens].

    ``step_ms`` time of one decode step [ms]; ``cost[i][j]`` round cost [decode steps] at ``lengths[i]`` and
    ``rates[j]`` of the owning :class:`WhatIf`; a row of one entry holds for every rate.
    """

    depth: int
    step_ms: float
    cost: tuple[tuple[float, ...], ...]


class WhatIf(Frozen):
    """Everything the page needs to answer other acceptance rates, draft lengths and contexts by itself.

    ``rates`` are accepted / drafted at draft length ``reported_at``; ``offsets`` shape acceptance along the draft as
    in :func:`advisor.speculation.conversions.positions_from_acceptance`; ``draft_share`` of the rounds draft at all.
    """

    reported_at: int
    rate: float
    depth: int
    rates: tuple[float, ...]
    lengths: tuple[int, ...]
    offsets: tuple[float, ...] = ()
    draft_share: float = 1.0
    yields: tuple[tuple[float, ...], ...] = ()
    """Tokens per round by length and rate where a gate or a rollback changes them; empty = the plain formula holds."""
    contexts: tuple[WhatIfContext, ...]


class Sheet(Frozen):
    """One pair on one machine."""

    prediction: Prediction
    what_if: WhatIf | None = None
    roofline: RooflineView | None = None
    rules: tuple[RuleCheck, ...] = ()
    compared: tuple[Compared, ...] = ()
    confirmed: str | None = None
    """One sentence: what the measurement said of the prediction."""
    commands: tuple[Command, ...] = ()


class Table(Frozen):
    """A plain table of text, e.g. the groups of a validation."""

    title: str
    note: str = ""
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class ScatterPoint(Frozen):
    """One predicted value with its range, and what was measured."""

    id: str
    predicted: float
    low: float
    high: float
    measured: float


class Scatter(Frozen):
    """Predicted against measured for many rows; ``unit`` of both axes."""

    title: str
    note: str = ""
    unit: str
    points: tuple[ScatterPoint, ...]


class Report(Frozen):
    """A whole report."""

    schema_version: int = SCHEMA_VERSION
    title: str
    summary: str = ""
    version: str
    created: str
    """ISO date of the report; the numbers do not depend on it."""
    sheets: tuple[Sheet, ...]
    tables: tuple[Table, ...] = ()
    scatters: tuple[Scatter, ...] = ()


def report_of(
    sheets: Sequence[Sheet],
    title: str | None = None,
    *,
    summary: str = "",
    tables: Sequence[Table] = (),
    scatters: Sequence[Scatter] = (),
) -> Report:
    """Put sheets together under a title made of what they compare."""
    from datetime import date

    from advisor import __version__

    if title is None:
        from advisor.report.terminal import title_of

        names = list(dict.fromkeys(s.prediction.target.name for s in sheets))
        title = f"Draft models for {', '.join(names)}" if names else "Draft models"
        if len(sheets) == 1:
            title = f"{title_of(sheets[0].prediction)} on {sheets[0].prediction.hardware}"
    return Report(
        title=title,
        summary=summary,
        version=__version__,
        created=date.today().isoformat(),
        sheets=tuple(sheets),
        tables=tuple(tables),
        scatters=tuple(scatters),
    )
