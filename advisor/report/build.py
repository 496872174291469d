"""From answers of the package to the sheets of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor.base import Range
from advisor.errors import AdvisorError
from advisor.report.console import format_bytes, format_memory, format_number, format_range
from advisor.report.document import (
    Command,
    Compared,
    Report,
    RooflineView,
    Scatter,
    ScatterPoint,
    Sheet,
    Table,
    report_of,
)
from advisor.speculation.prediction import Prediction

if TYPE_CHECKING:
    from advisor.advice.recommendation import Recommendation
    from advisor.hardware.machine import Setup
    from advisor.llamacpp.confirm import Confirmation
    from advisor.models.description import ModelDescription
    from advisor.performance.passes import CostSource
    from advisor.speculation.prediction import Task
    from advisor.validation.report import ValidationReport

    Reportable = Prediction | Sheet | Recommendation | Confirmation | ValidationReport
    """What reports are made of: predictions, whole sheets, and the answers of recommend, confirm and validate."""


def sheet_of(
    prediction: Prediction,
    target: ModelDescription,
    draft: ModelDescription | None,
    setup: Setup,
    *,
    task: Task | None = None,
    temperature: float | None = None,
    costs: CostSource | None = None,
) -> Sheet:
    """A full sheet: the prediction with what-if curves, roofline, checked rules and the commands.

    Args:
        prediction: what was answered.
        target: the model it speaks of.
        draft: its draft, if it has one.
        setup: the machine and placement of the prediction.
        task: kind of text, for the rules.
        temperature: sampling temperature, for the rules.
        costs: the cost model used, if it was not the usual one.
    """
    from advisor.advice.rules import check_rules
    from advisor.report.whatif import what_if

    return Sheet(
        prediction=prediction,
        what_if=what_if(prediction, target, draft, setup, costs=costs),
        roofline=roofline_view(prediction, target, draft, setup),
        rules=check_rules(target, draft, prediction, task=task, temperature=temperature),
        commands=commands(prediction, target, draft, setup),
    )


def commands(
    prediction: Prediction, target: ModelDescription, draft: ModelDescription | None, setup: Setup
) -> tuple[Command, ...]:
    """How to run the pair with llama-server, how to run it plain, and how to prove the prediction."""
    from advisor.advice.launch import NGRAM_METHODS, Run, command, place_of
    from advisor.report.terminal import confirm_command, proof

    p = prediction
    speculating = p.method != "none"
    ngram = p.method in NGRAM_METHODS
    run = Run(
        target=place_of(target),
        draft=place_of(draft) if draft is not None and speculating else None,
        methods=(p.method,) if speculating else (),
        draft_max=p.draft_max if speculating and not ngram else 3,
        ngram_max=p.draft_max if ngram else None,
        p_min=p.p_min,
        context=p.context,
        setup=setup,
    )
    plain = run.model_copy(update={"draft": None, "methods": ()})
    found: list[Command] = []
    arms = [("Run it without a draft", plain)]
    if speculating and p.verdict != "incompatible":
        arms.insert(0, ("Run it with the draft", run))
    for title, arm in arms:
        try:
            made = command(arm)
        except AdvisorError:
            continue  # a build or shell that cannot express it; the other commands still help
        if made.text:
            notes = f" ({' '.join(made.notes)})" if made.notes else ""
            found.append(Command(title=f"{title}{notes}:", text=made.text))
    if speculating and p.verdict not in ("incompatible", "does not fit"):
        found.append(Command(title=f"{proof(p)}, on your machine:", text=confirm_command(p)))
    return tuple(found)


def roofline_view(
    prediction: Prediction, target: ModelDescription, draft: ModelDescription | None, setup: Setup
) -> RooflineView | None:
    """Where the passes of one round sit under the ceilings of the machine; None if those are not known."""
    from advisor.errors import InputError
    from advisor.performance.roofline import roofline
    from advisor.report.picture import view_of

    try:
        result = roofline(target, draft, setup, draft_max=prediction.draft_max, depth=prediction.depth)
    except InputError:  # no bandwidth is known: there is no roof to draw
        return None
    return view_of(
        result,
        f"Ceilings: {result.bandwidth.kind} bandwidth, {result.peak.kind} compute rate; times predicted.",
    )


def recommended(recommendation: Recommendation, setup: Setup) -> list[Reportable]:
    """A recommendation as parts of a report: the sheet of its prediction (if it has one), then its tables."""
    from advisor.models.reference import describe
    from advisor.speculation.prediction import ModelSummary

    def again(model: ModelSummary | None) -> ModelDescription | None:
        return describe(model.reference) if model is not None else None

    r, p = recommendation, recommendation.prediction
    if p is None:
        return [r]
    target, draft = describe(p.target.reference), again(p.draft)
    placed = setup.model_copy(update={"placement": r.best.placement})
    sheet = sheet_of(p, target, draft, placed, task=r.task, temperature=r.temperature)
    own = [Command(title="Recommended:", text=r.command.text)] if r.command is not None and r.command.text else []
    entries = [Command(title=f"{e.launcher}, {e.where}:", text=e.content) for e in r.launchers if e.content]
    update = {"rules": r.rules or sheet.rules, "commands": (*own, *sheet.commands, *entries)}
    return [sheet.model_copy(update=update), r]


def recommendation_tables(recommendation: Recommendation) -> tuple[Table, ...]:
    """All options, what was excluded and what would change the answer, as plain tables."""
    r = recommendation
    tables = [
        Table(
            title="Every option",
            note=r.margin,
            header=("", "option", "tok/s", "speedup", "chance to be faster", "k", "memory", "to download"),
            rows=tuple(
                (
                    str(o.rank),
                    o.label,
                    format_range(o.speed),
                    format_range(o.speedup, "x"),
                    f"{o.probability_faster:.0%}",
                    str(o.draft_max) if o.methods else "",
                    format_memory(o.memory_total),
                    format_bytes(o.download_bytes) if o.download_bytes else "",
                )
                for o in r.options
            ),
        )
    ]
    if r.outlook:
        tasks = tuple((o.task, format_range(o.speedup, "x"), f"{o.probability_faster:.0%}") for o in r.outlook)
        tables.append(Table(title="By kind of text", header=("task", "speedup", "chance to be faster"), rows=tasks))
    if r.changes:
        tables.append(Table(title="What would change the answer", header=("",), rows=tuple((c,) for c in r.changes)))
    if r.excluded:
        left = tuple((x.name, x.kind, x.reason) for x in r.excluded)
        tables.append(Table(title="Looked at and left out", header=("what", "kind", "reason"), rows=left))
    return tuple(tables)


def confirmed(sheet: Sheet, confirmation: Confirmation) -> Sheet:
    """The sheet of a prediction with what llama.cpp really did beside it."""
    c = confirmation
    m = next((x for x in c.measurements if c.comparison and x.draft_max == c.comparison.draft_max), c.measurement)
    p = sheet.prediction

    def point(value: float) -> Range:
        return Range(median=value, low=value, high=value, level=0.95)

    told = c.comparison
    rows = [
        Compared(
            quantity="speedup", unit="x", predicted=told.predicted_speedup if told else p.speedup, measured=m.speedup
        ),
        Compared(quantity="without a draft", unit="tok/s", predicted=p.baseline_tps, measured=point(m.baseline_tps)),
        Compared(quantity="with it", unit="tok/s", predicted=p.speculative_tps, measured=point(m.speculative_tps)),
        Compared(quantity="round cost", unit="steps", predicted=point(p.round.cost), measured=m.round_cost),
        Compared(
            quantity="tokens per round", unit="", predicted=point(p.mean_accepted_length),
            measured=point(m.mean_accepted_length),
        ),
        Compared(quantity="acceptance", unit="%", predicted=p.acceptance.rate, measured=point(m.acceptance)),
    ]  # fmt: skip
    if told is not None and told.speedup_at_measured_acceptance is not None:
        known = point(told.speedup_at_measured_acceptance)
        rows.insert(1, Compared(quantity="acceptance known", unit="x", predicted=known, measured=m.speedup))
    words = {
        "confirmed": "The measurement bears the prediction out.",
        "refuted": "The measurement contradicts the prediction.",
        "inconclusive": "The measurement does not decide.",
    }
    sentence = (
        f"{words.get(c.verdict, 'Measured.')} {format_range(m.speedup, 'x')} with {c.engine}. {' '.join(c.reasons)}"
    )
    run = tuple(
        Command(title=f"Measured with ({arm}):", text=line) for arm, line in zip(_arms(c), c.commands, strict=False)
    )
    return sheet.model_copy(
        update={"compared": tuple(rows), "confirmed": sentence.strip(), "commands": (*sheet.commands, *run)}
    )


def _arms(confirmation: Confirmation) -> tuple[str, ...]:
    return ("without drafting", "with drafting", *(f"command {i}" for i in range(3, len(confirmation.commands) + 1)))


def confirmation_tables(confirmation: Confirmation) -> tuple[Table, ...]:
    """Every draft length and every prompt of a measurement."""
    c = confirmation
    lengths = Table(
        title="Measured by draft length",
        note=f"{c.engine}, build {c.build}, {c.created}. Speedup and round cost with their 95 % intervals.",
        header=(
            "k",
            "speedup",
            "round cost",
            "acceptance",
            "tokens per round",
            "without, tok/s",
            "with, tok/s",
            "same text",
        ),
        rows=tuple(
            (
                str(m.draft_max),
                format_range(m.speedup, "x"),
                format_range(m.round_cost),
                f"{m.acceptance:.0%}",
                f"{m.mean_accepted_length:.2f}",
                format_number(m.baseline_tps),
                format_number(m.speculative_tps),
                "yes" if m.identical else "no",
            )
            for m in c.measurements
        ),
    )  # fmt: skip
    prompts = Table(
        title=f"Measured by prompt, k = {c.measurement.draft_max}",
        header=("prompt", "task", "speedup", "without, tok/s", "with, tok/s", "accepted / drafted"),
        rows=tuple(
            (
                x.id,
                x.task or "",
                f"{x.speedup:.2f}x",
                format_number(x.baseline_tps),
                format_number(x.speculative_tps),
                f"{x.accepted} / {x.drafted}",
            )
            for x in c.measurement.prompts
        ),
    )
    return lengths, prompts


def validation_parts(validation: ValidationReport) -> tuple[str, tuple[Table, ...], tuple[Scatter, ...]]:
    """Summary, group table and scatter of a validation."""
    v = validation
    given = {"given": ", acceptance given", "blind": ", blind"}.get(v.acceptance or "", "")
    summary = (
        f"{v.used} of {v.rows} rows of a {v.table} table{given}. Half of the predictions are within "
        f"{_percent(v.median_error_pct)} of the measurement, nine of ten within {_percent(v.p90_error_pct)}; "
        f"{_share(v.interval_coverage)} lie inside the stated {v.interval_level:.0%} interval"
        + (f", {_share(v.sign_accuracy)} have the right sign." if v.sign_accuracy is not None else ".")
    )
    groups = Table(
        title="By group",
        note="Errors are |ln(predicted / measured)| in per cent; every setup counts once.",
        header=("group", "rows", "median error", "90th percentile", "right sign", "inside the interval"),
        rows=tuple(
            (
                g.name,
                str(g.rows),
                _percent(g.median_error_pct),
                _percent(g.p90_error_pct),
                _share(g.sign_accuracy),
                _share(g.interval_coverage),
            )
            for g in v.groups
        ),
    )
    tables = [groups]
    if v.skipped:
        rows = tuple((x.reason, str(x.count)) for x in v.skipped)
        tables.append(Table(title="Rows not used", header=("reason", "rows"), rows=rows))
    unit = {"decode": "tok/s", "speculation": "speedup"}.get(v.table, "decode steps")
    points = tuple(ScatterPoint(**x.model_dump()) for x in v.predictions)
    scatter = Scatter(title="Predicted against measured", note="On the line is right.", unit=unit, points=points)
    return summary, tuple(tables), (scatter,) if points else ()


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def report_from(items: Sequence[Reportable], title: str | None = None) -> Report:
    """Any answers as one report, in the order given: predictions and sheets first, tables after them."""
    from advisor.advice.recommendation import Recommendation
    from advisor.llamacpp.confirm import Confirmation
    from advisor.validation.report import ValidationReport

    sheets: list[Sheet] = []
    tables: list[Table] = []
    scatters: list[Scatter] = []
    told: list[str] = []
    for item in items:
        if isinstance(item, Prediction):
            sheets.append(Sheet(prediction=item))
        elif isinstance(item, Sheet):
            sheets.append(item)
        elif isinstance(item, Recommendation):
            told += [item.headline, *item.why]
            tables += recommendation_tables(item)
        elif isinstance(item, Confirmation):
            tables += confirmation_tables(item)
        elif isinstance(item, ValidationReport):
            summary, more, plots = validation_parts(item)
            told.append(summary)
            tables += more
            scatters += plots
            title = title or "Predicted against measured"
    return report_of(sheets, title, summary=" ".join(told), tables=tables, scatters=scatters)
