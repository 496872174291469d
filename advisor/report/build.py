"""From answers of the package to the sheets of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advisor.errors import AdvisorError
from advisor.report.console import format_bytes, format_range
from advisor.report.document import Command, Report, Reportable, RooflineView, Sheet, Table, report_of
from advisor.speculation.prediction import Prediction

if TYPE_CHECKING:
    from advisor.advice.recommendation import Recommendation
    from advisor.hardware.machine import Setup
    from advisor.models.description import ModelDescription
    from advisor.performance.passes import CostSource
    from advisor.speculation.prediction import Task


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
    from advisor.report.terminal import confirm_command

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
        found.append(Command(title="Prove it on your machine:", text=confirm_command(p)))
    return tuple(found)


def roofline_view(
    prediction: Prediction, target: ModelDescription, draft: ModelDescription | None, setup: Setup
) -> RooflineView | None:
    """Where the passes of one round sit under the ceilings of the machine; None if those are not known."""
    return None


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
                    format_bytes(o.memory_total),
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


def report_from(items: Sequence[Reportable], title: str | None = None) -> Report:
    """Any answers as one report, in the order given."""
    sheets = [Sheet(prediction=item) if isinstance(item, Prediction) else item for item in items]
    return report_of(sheets, title)
