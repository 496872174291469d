"""Answers on one terminal screen: verdict first, then why, then what the numbers rest on.

Every screen is a rich renderable that adapts to the console it is printed on: 80 columns or more or fewer, with or
without colour, with or without Unicode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.base import Range
from advisor.report.console import (
    argument,
    command_line,
    format_figure,
    format_memory,
    format_number,
    format_range,
    format_speedup,
    printable,
)
from advisor.speculation.prediction import CurvePoint, ModelSummary, Prediction
from advisor.text import clean

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, OverflowMethod, RenderableType, RenderResult
    from rich.table import Table

METHOD_NAMES: dict[str, str] = {
    "none": "no speculation",
    "draft-simple": "draft model",
    "draft-mtp": "MTP layers",
    "draft-eagle3": "EAGLE-3 head",
    "draft-dflash": "DFlash head",
    "draft-dspark": "DSpark head",
    "ngram-simple": "n-gram lookup",
    "ngram-map-k": "n-gram map (k)",
    "ngram-map-k4v": "n-gram map (k4v)",
    "ngram-mod": "n-gram pool",
    "ngram-cache": "n-gram cache",
}
"""What llama.cpp's method names stand for."""

_STYLES = {
    "faster": "bold green",
    "slower": "bold red",
    "too close to call": "bold yellow",
    "incompatible": "bold red",
    "does not fit": "bold red",
}
_EIGHTHS = " ▏▎▍▌▋▊▉"


def verdict_words(prediction: Prediction) -> tuple[str, str]:
    """The verdict as a headline and one sentence, both plain text."""
    p = prediction
    ratio = format_range(p.speedup, "x")
    level = f"{100 * p.speedup.level:.0f} % range"
    chance = f"{100 * p.probability_faster:.0f} %"
    if not 0.005 <= p.probability_faster <= 0.995:
        chance = "over 99 %" if p.probability_faster > 0.5 else "under 1 %"
    speed = f"{format_speedup(p.speedup.median)} ({level} {p.speedup.low:.2f}-{p.speedup.high:.2f})"
    if p.verdict == "faster":
        return "Faster", f"{speed}; chance that it is faster at all: {chance}."
    if p.verdict == "slower":
        return "Slower", f"{speed}; chance that it is faster after all: {chance}. Leave it off."
    if p.verdict == "too close to call":
        return "Too close to call", f"{speed}; chance that it is faster: {chance}. Measure before you rely on it."
    if p.verdict == "incompatible":
        return "Will not run", p.tokenizer.reason if p.tokenizer.compatible is False else _first(p.reasons)
    tight = [d for d in p.memory.devices if d.fits is False]
    if tight and tight[0].capacity is not None:
        need, have = format_memory(tight[0].need), format_memory(tight[0].capacity)
        return "Does not fit", f"{tight[0].device} would need {need} and has {have}; if it fitted: {ratio}."
    return "Does not fit", f"{format_memory(p.memory.total)} needed; if it fitted: {ratio}."


def _first(reasons: tuple[str, ...]) -> str:
    return reasons[0] if reasons else "llama.cpp would refuse this pair."


def model_name(model: ModelSummary) -> str:
    """Name with the file type, unless the name says it already."""
    name = clean(model.name, 80)
    quant = clean(model.quant, 20)
    return name if not quant or quant.lower() in name.lower() else f"{name} {quant}"


def pair_name(prediction: Prediction) -> str:
    """Target and draft in words: ``A + B``; the target alone if nothing else is loaded."""
    p = prediction
    if p.draft is not None and p.draft.reference != p.target.reference:
        return f"{model_name(p.target)} + {model_name(p.draft)}"
    return model_name(p.target)


def title_of(prediction: Prediction) -> str:
    """The pair, with the method where no second model tells it."""
    name = pair_name(prediction)
    return name if "+" in name and prediction.draft else f"{name}, {METHOD_NAMES.get(prediction.method, 'none')}"


def other_reasons(prediction: Prediction, *told: str) -> list[str]:
    """The reasons without those that repeat the tokenizer verdict or what was ``told`` already."""
    known = [text for text in (*told, prediction.tokenizer.reason) if text]
    return [reason for reason in dict.fromkeys(prediction.reasons) if not any(text in reason for text in known)]


def round_rows(prediction: Prediction) -> list[tuple[str, float]]:
    """What a round consists of [decode steps]; rollback only where the target has to roll back."""
    r = prediction.round
    rows = [("draft", r.draft), ("verify", r.verify), ("overhead", r.overhead - r.rollback)]
    return [*rows, ("rollback", r.rollback)] if r.rollback > 0.005 else rows


def bar(value: float, full: float, width: int, ascii_only: bool = False) -> str:
    """A bar of ``width`` cells at ``full``; eighths of a cell where Unicode is possible."""
    if full <= 0 or value <= 0 or width <= 0:
        return ""
    cells = min(value / full, 1.0) * width
    if ascii_only:
        return "#" * max(1, round(cells))
    whole, rest = int(cells), int((cells - int(cells)) * 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "" if whole else _EIGHTHS[1])


def range_bar(interval: Range, full: float, width: int, mark: float | None, ascii_only: bool = False) -> str:
    """A bar solid to the interval's low end, shaded to the median, light to the high end, with a line at ``mark``."""
    solid, dark, light, line = ("#", "=", "-", "|") if ascii_only else ("█", "▓", "░", "│")

    def column(value: float) -> int:
        return max(0, min(width, round(value / full * width))) if full > 0 else 0

    low, middle, high = column(interval.low), column(interval.median), column(interval.high)
    cells = [solid if i < low else dark if i < middle else light if i < high else " " for i in range(width)]
    if mark is not None and 0 <= column(mark) < width:
        cells[column(mark)] = line
    return "".join(cells).rstrip()


def chosen_lengths(prediction: Prediction, limit: int) -> list[CurvePoint]:
    """At most ``limit`` points of the curve: those near the used and the best length first, in order."""
    keep = {prediction.draft_max, prediction.best.draft_max, 1, 2, 4, 8, 16}
    points = list(prediction.curve)
    while len(points) > limit:
        spare = [x for x in points if x.draft_max not in keep] or points[1:-1]
        points.remove(spare[-1])
    return points


def confirm_command(prediction: Prediction) -> str:
    """The command that proves or refutes this prediction on the user's machine.

    Confirming takes files: a model that was named otherwise stands there under the name its file will probably have.
    """
    p = prediction
    words = ["advisor", "confirm", _file(p.target)]
    if p.draft is not None and p.draft.reference != p.target.reference:
        words.append(_file(p.draft))
    if p.method != "draft-simple":
        words += ["--method", p.method]
    words += ["--draft-max", str(p.draft_max)]
    return command_line(words)


def _file(model: ModelSummary) -> str:
    from advisor.advice.launch import ModelPlace, placeholder

    if model.source == "gguf":
        return argument(model.reference)
    return placeholder(ModelPlace(kind="name", name=model.name, tag=model.quant))


def proof(prediction: Prediction) -> str:
    """Words before :func:`confirm_command`: whether it can be run as it stands."""
    models = [m for m in (prediction.target, prediction.draft) if m is not None]
    return "Prove it" if all(m.source == "gguf" for m in models) else "Prove it, once the files are here"


class PredictionScreen:
    """One prediction on one screen; print it on any rich console."""

    def __init__(self, prediction: Prediction, width: int | None = None, figures: int | None = 8) -> None:
        self.prediction = prediction
        self.width = width
        self.figures = figures

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, self.width or 100)
        yield from _prediction_parts(self.prediction, width, options.ascii_only, self.figures)


def prediction_screen(
    prediction: Prediction, console_width: int | None = None, figures: int | None = 8
) -> PredictionScreen:
    """One screen for one prediction.

    Args:
        prediction: the answer to show.
        console_width: columns to use at most; None = those of the console, up to 100.
        figures: how many of the underlying constants to list; None = all.
    """
    return PredictionScreen(prediction, console_width, figures)


def _prediction_parts(p: Prediction, width: int, ascii_only: bool, limit: int | None) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    def safe(text: str, cut: int = 600) -> str:
        return printable(text, ascii_only, cut)

    dot = " - " if ascii_only else " · "
    pair = safe(pair_name(p), 140)
    length = f", {p.draft_max} per round" if p.method != "none" else ""
    slots = f"{dot}{p.parallel} slots" if p.parallel > 1 else ""
    place = f"{safe(p.hardware, 60)}{dot}{p.backend}{dot}context {p.context}{slots}"
    parts: list[RenderableType] = [
        Text(f"{pair}{dot}{METHOD_NAMES.get(p.method, p.method)}{length}", style="bold"),
        Text(place, style="dim"),
        Text(),
    ]
    word, sentence = verdict_words(p)
    parts += [Text.assemble((f"{word.upper()}: ", _STYLES[p.verdict]), safe(sentence)), Text()]

    speeds, rounds = _speeds(p), _round(p, ascii_only)
    chart = _chart(p, (width - 40 if width >= 72 else width) - 12, ascii_only)
    if width >= 72 and p.curve:
        left = Table.grid(padding=0)
        left.add_row(speeds)
        left.add_row(Text())
        left.add_row(rounds)
        both = Table.grid(padding=(0, 2))
        both.add_column(width=36, no_wrap=True)
        both.add_column()
        both.add_row(left, chart)
        parts.append(both)
    else:
        parts += [speeds, Text(), rounds, *([Text(), chart] if p.curve else [])]
    parts += [Text(), _facts(p, ascii_only), Text()]

    reasons = Table.grid(padding=(0, 1))
    shown = other_reasons(p, sentence)
    for reason in shown:
        reasons.add_row("-", safe(reason))
    if shown:
        parts += [Text("Why", style="bold"), reasons, Text()]
    if p.figures:
        parts += [_provenance(p, width, ascii_only, limit), Text()]
    if p.assumptions:
        assumed = Table.grid(padding=(0, 1))
        for text in dict.fromkeys(p.assumptions):
            assumed.add_row("-", safe(text))
        parts += [Text("Assumed", style="bold"), assumed, Text()]
    if p.verdict in ("faster", "slower", "too close to call") and p.method != "none":
        # Never wrapped or cut: a command with a line break in it is a wrong command once it is copied.
        command = Text.assemble(
            (f"{proof(p)}:\n  ", "bold"), safe(confirm_command(p), 4000), no_wrap=True, overflow="ignore"
        )
        parts.append(command)
    return parts


def _speeds(p: Prediction) -> Table:
    from rich.table import Table

    table = Table.grid(padding=(0, 1))
    table.add_column(width=9)
    table.add_column(justify="right", width=6)
    table.add_column()
    table.add_row("tok/s", "", f"{100 * p.baseline_tps.level:.0f} % range", style="bold")
    for label, interval in (("without", p.baseline_tps), ("with", p.speculative_tps)):
        ends = f"{format_number(interval.low)}-{format_number(interval.high)}"
        table.add_row(label, format_number(interval.median), ends)
    return table


def _round(p: Prediction, ascii_only: bool) -> Table:
    from rich.table import Table

    r = p.round
    table = Table.grid(padding=(0, 1))
    table.add_column(width=9)
    table.add_column(justify="right", width=6)
    table.add_column()
    table.add_row("one round", format_number(r.cost), f"steps = {format_number(r.milliseconds)} ms", style="bold")
    rows = round_rows(p)
    full = max(value for _, value in rows)
    for label, value in rows:
        table.add_row(label, f"{value:.2f}", bar(value, full, 18, ascii_only))
    table.add_row("yields", format_number(p.mean_accepted_length), "tokens")
    return table


def _chart(p: Prediction, width: int, ascii_only: bool) -> RenderableType:
    from rich.text import Text

    points = chosen_lengths(p, 8)
    if not points:
        return Text()
    width = max(10, min(width, 40))
    full = max(max(x.speedup.high for x in points), 1.1)
    line = "|" if ascii_only else "│"
    rows = [Text(f"speedup by draft length k ({line} = 1x)", style="bold")]
    for point in points:
        marker = ">" if point.draft_max == p.draft_max else "*" if point.draft_max == p.best.draft_max else " "
        label = f"{marker}{point.draft_max:>2} {format_speedup(point.speedup.median):>6} "
        rows.append(Text(label + range_bar(point.speedup, full, width, 1.0, ascii_only), no_wrap=True))
    rows.append(Text("> this one  * best  shaded: range" if not ascii_only else "> this one  * best  =-: range", "dim"))
    return Text("\n").join(rows)


def _facts(p: Prediction, ascii_only: bool) -> Table:
    from rich.table import Table

    def safe(text: str) -> str:
        return printable(text, ascii_only)

    table = Table.grid(padding=(0, 1))
    table.add_column(width=11, no_wrap=True)
    table.add_column()
    if p.best.draft_max == 0:
        table.add_row("best", "no drafting at all")
    elif p.method != "none":
        table.add_row("best", f"{p.best.draft_max} per round: {format_speedup(p.best.speedup)}")
    rate, a = p.acceptance.rate, p.acceptance
    stated = a.kind == "given" and rate.high <= rate.low
    text = safe(a.evidence) if stated else f"{format_range(rate, '%')}; {a.kind}: {safe(a.evidence)}"
    table.add_row("acceptance", text)
    if p.method != "none":
        even = p.break_even_acceptance
        table.add_row(
            "break-even",
            f"below {100 * even:.0f} % accepted it is slower than no draft"
            if even is not None
            else f"no acceptance rate wins at {p.draft_max} per round",
        )
    table.add_row("memory", _memory(p))
    known = {True: "compatible", False: "not compatible", None: "not known"}[p.tokenizer.compatible]
    table.add_row("tokenizer", f"{known}: {safe(p.tokenizer.reason)}" if p.tokenizer.reason else known)
    return table


def _memory(p: Prediction) -> str:
    m = p.memory
    kv = f"{format_memory(m.target_kv + m.draft_kv)} cache for {m.context} tokens"
    weights = f"{format_memory(m.target_weights + m.draft_weights)} weights"
    fits = {True: "fits", False: "does not fit", None: "capacity not known"}[m.fits]
    room = [f" of {format_memory(d.capacity)}" for d in m.devices if d.capacity is not None]
    return f"{format_memory(m.total)}{room[0] if len(m.devices) == 1 and room else ''}, {fits} ({weights}, {kv})"


def _provenance(p: Prediction, width: int, ascii_only: bool, limit: int | None) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="bold", width=width)
    cut: OverflowMethod = "crop" if ascii_only else "ellipsis"
    table.add_column("rests on", max_width=22, no_wrap=True, overflow=cut)
    table.add_column("", justify="right", no_wrap=True, max_width=22, overflow=cut)
    table.add_column("kind", no_wrap=True)
    table.add_column("source", no_wrap=True, ratio=1, overflow=cut)
    figures = list(p.figures.items())
    for name, figure in figures[:limit]:
        table.add_row(
            printable(name.replace("_", " "), ascii_only, 60),
            printable(format_figure(figure), ascii_only),
            figure.kind,
            printable(figure.source, ascii_only, 200),
        )
    if limit is not None and len(figures) > limit:
        table.add_row(f"and {len(figures) - limit} more: --json", "", "", "", style="dim")
    return table


__all__ = [
    "METHOD_NAMES",
    "PredictionScreen",
    "bar",
    "chosen_lengths",
    "confirm_command",
    "model_name",
    "other_reasons",
    "pair_name",
    "prediction_screen",
    "proof",
    "range_bar",
    "round_rows",
    "title_of",
    "verdict_words",
]
