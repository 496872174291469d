"""A report as Markdown: the same story in headings and tables, for an issue, a wiki or a repository."""

from __future__ import annotations

import re

from advisor.report.console import format_figure, format_memory, format_number, format_range
from advisor.report.document import Report, Sheet
from advisor.report.terminal import METHOD_NAMES, round_rows, title_of, verdict_words
from advisor.text import clean

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~&$@])")


def escape(text: str, limit: int = 1000) -> str:
    """Text that Markdown shows as it is: no markup, no HTML, no table cell, no mention of a user."""
    return _SPECIAL.sub(r"\\\1", clean(text, limit))


def code_block(text: str) -> str:
    """A fenced block that ``text`` cannot close: the fence is longer than any run of backticks inside."""
    lines = "\n".join(clean(line, 4000) for line in text.split("\n"))
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", lines)), default=0))
    return f"{fence}sh\n{lines}\n{fence}"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Lines of a Markdown table; cells must be escaped already."""
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]


def render_markdown(report: Report) -> str:
    """The whole report; every name and sentence is escaped."""
    lines = [f"# {escape(report.title)}", ""]
    lines += [
        f"draft-advisor {report.version}, {report.created}. Ranges hold 80 % of the probability unless another share "
        "is given.",
        "",
    ]
    if report.summary:
        lines += [escape(report.summary), ""]
    if len(report.sheets) > 1:
        lines += _side_by_side(report)
    for sheet in report.sheets:
        lines += _sheet(sheet)
    for extra in report.tables:
        lines += [f"## {escape(extra.title)}", ""]
        if extra.note:
            lines += [escape(extra.note), ""]
        lines += table([escape(x) for x in extra.header], [[escape(x) for x in row] for row in extra.rows])
    return "\n".join(lines).rstrip() + "\n"


def _pair(sheet: Sheet) -> str:
    return escape(title_of(sheet.prediction), 200)


def _side_by_side(report: Report) -> list[str]:
    rows = []
    for number, sheet in enumerate(report.sheets, 1):
        p = sheet.prediction
        rows.append([
            str(number), _pair(sheet), f"{escape(p.hardware, 80)}, {p.backend}", verdict_words(p)[0],
            format_range(p.speedup, "x"), format_range(p.baseline_tps), format_range(p.speculative_tps),
            str(p.best.draft_max or "none"), format_memory(p.memory.total),
        ])  # fmt: skip
    header = ["", "pair", "machine", "verdict", "speedup", "without, tok/s", "with, tok/s", "best k", "memory"]
    return ["## Side by side", "", *table(header, rows)]


def _sheet(sheet: Sheet) -> list[str]:
    p = sheet.prediction
    word, sentence = verdict_words(p)
    length = f", {p.draft_max} tokens per round" if p.method != "none" else ""
    lines = [
        f"## {_pair(sheet)}",
        "",
        f"{METHOD_NAMES.get(p.method, p.method)}{length} on {escape(p.hardware, 80)}, {p.backend}, context {p.context}",
        "",
        f"**{word}.** {escape(sentence)}",
        "",
    ]
    if sheet.confirmed:
        lines += [f"**Measured:** {escape(sheet.confirmed)}", ""]
    lines += [f"- {escape(reason)}" for reason in p.reasons]
    even = p.break_even_acceptance
    facts = [
        ["without a draft", format_range(p.baseline_tps, "tok/s")],
        ["with it", format_range(p.speculative_tps, "tok/s")],
        ["speedup", format_range(p.speedup, "x")],
        ["best draft length", f"{p.best.draft_max} ({p.best.speedup:.2f}x)" if p.best.draft_max else "none"],
        ["acceptance", f"{format_range(p.acceptance.rate, '%')}, {p.acceptance.kind}"],
        ["break-even acceptance", f"{100 * even:.0f} %" if even is not None else "none: it loses at any rate"],
        ["one round", f"{p.round.cost:.2f} decode steps = {format_number(p.round.milliseconds)} ms: "
         + ", ".join(f"{name} {value:.2f}" for name, value in round_rows(p))],
        ["memory", f"{format_memory(p.memory.total)} for a context of {p.memory.context}"],
        ["tokenizer", escape(p.tokenizer.reason)],
    ]  # fmt: skip
    lines += ["", *table(["", ""], facts)]
    if p.curve:
        rows = [
            [str(c.draft_max), f"{c.round_cost:.2f}", f"{c.mean_accepted_length:.2f}", format_range(c.speedup, "x")]
            for c in p.curve
        ]
        lines += ["### By draft length", "", *table(["k", "round cost", "tokens per round", "speedup"], rows)]
    if sheet.roofline:
        rows = [
            [escape(x.name), format_number(x.intensity), format_number(x.rate), format_number(x.milliseconds)]
            for x in sheet.roofline.points
        ]
        lines += ["### Roofline", "", *table(["pass", "FLOP per byte", "TFLOP/s", "ms"], rows)]
    if sheet.compared:
        rows = [
            [
                escape(c.quantity),
                escape(format_range(c.predicted, c.unit)) if c.predicted else "-",
                escape(format_range(c.measured, c.unit)) if c.measured else "-",
            ]
            for c in sheet.compared
        ]
        lines += ["### Predicted against measured", "", *table(["", "predicted", "measured"], rows)]
    if sheet.rules:
        rows = [
            [escape(r.says), r.status, escape(f"{r.fact} {r.why or ''}".strip()), escape(r.source)] for r in sheet.rules
        ]
        lines += ["### Published rules of thumb", "", *table(["rule", "here", "facts", "who says so"], rows)]
    if sheet.commands:
        lines += ["### Commands", ""]
        for command in sheet.commands:
            lines += [escape(command.title), "", code_block(command.text), ""]
    rows = [["acceptance", f"{p.acceptance.rate.median:.0%}", p.acceptance.kind, escape(p.acceptance.evidence)]]
    rows += [[escape(name), escape(format_figure(f)), f.kind, escape(f.source)] for name, f in p.figures.items()]
    rows += [[escape(text), "", "assumed", ""] for text in p.assumptions]
    return [*lines, "### What the numbers rest on", "", *table(["number", "value", "kind", "source"], rows)]
