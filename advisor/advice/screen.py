"""Recommendations and scans on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from advisor.advice.launchers import Entry
from advisor.advice.recommendation import Exclusion, Option, Recommendation, Scan, ScanRow
from advisor.advice.watch import Finding, Observation
from advisor.base import Range
from advisor.report.console import format_memory, printable

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text


class Safe(Protocol):
    """Text made printable for a console, at most ``limit`` long."""

    def __call__(self, text: str, limit: int = 800) -> str:
        """See the class."""


SHOWN = 8
"""Options listed unless all are asked for."""
_STATUS = {"met": "green", "not met": "yellow", "unknown": "dim", "not applicable": "dim"}


class RecommendationScreen:
    """One recommendation; print it on any rich console."""

    def __init__(self, answer: Recommendation, everything: bool = False, launcher: str | None = None) -> None:
        self.answer, self.everything, self.launcher = answer, everything, launcher

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _recommendation(self.answer, options.ascii_only, self.everything, self.launcher)


class ScanScreen:
    """One scan; print it on any rich console."""

    def __init__(self, answer: Scan) -> None:
        self.answer = answer

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from _scan(self.answer, options.ascii_only)


def _recommendation(
    r: Recommendation, ascii_only: bool, everything: bool, launcher: str | None
) -> list[RenderableType]:
    from rich.text import Text

    def safe(text: str, limit: int = 800) -> str:
        return printable(text, ascii_only, limit)

    dot = " - " if ascii_only else " · "
    task = r.task or "any text"
    place = f"{safe(r.hardware, 60)}{dot}{r.backend}{dot}{task}{dot}context {r.context}"
    style = "bold green" if r.speculate else "bold yellow"
    shown = r.options if everything else _leading(r.options)
    parts: list[RenderableType] = [
        Text(f"{safe(r.target.name, 80)} {safe(r.target.quant, 20)}", style="bold"),
        Text(place, style="dim"),
        Text(),
        Text(safe(r.headline), style=style),
        Text(),
        _options(shown, safe),
    ]
    hidden = len(r.options) - len(shown)
    if hidden > 0 and not everything:
        parts.append(Text(f"   and {hidden} more (--all)", style="dim"))
    if any(o.download_bytes for o in r.options):
        parts.append(Text("   * must be downloaded first", style="dim"))
    parts += [
        Text(),
        *_list("Why", (*r.why, *r.best.notes), safe),
        *_list("What would change the answer", r.changes, safe),
    ]
    parts += [*_rules(r, safe), Text(f"Margin: {safe(r.margin)}", style="dim"), Text()]
    parts += _left_out(r.excluded, safe, everything)
    parts += _run_it(r, safe, launcher)
    if r.assumptions:
        parts += _list("Assumed", r.assumptions, safe)
    return parts


def _leading(options: tuple[Option, ...]) -> tuple[Option, ...]:
    """The first few, one of n-gram methods that come out alike, and always the run without speculation."""
    distinct: list[Option] = []
    for option in options:
        grams = option.draft is None and len(option.methods) == 1 and option.methods[0].startswith("ngram")
        if not (grams and any(o.speed == option.speed for o in distinct)):
            distinct.append(option)
    shown = tuple(distinct[:SHOWN])
    plain = next((o for o in options if not o.methods), None)
    return shown if plain is None or plain in shown else (*shown[:-1], plain)


def _options(options: tuple[Option, ...], safe: Safe) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("option", overflow="fold")
    table.add_column("tok/s", justify="right", no_wrap=True)
    table.add_column("speedup (80 %)", no_wrap=True)
    table.add_column("gains", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    for option in options:
        mark = " *" if option.download_bytes else ""
        table.add_row(
            str(option.rank),
            safe(option.label, 120) + mark,
            f"{option.speed.median:.1f}",
            _ratio(option.speedup) if option.methods else "-",
            f"{min(0.99, option.probability_faster):.0%}" if option.methods else "-",
            format_memory(option.memory_total) + ("" if option.fits is not False else " !"),
        )
    return table


def _ratio(interval: Range) -> str:
    return f"{interval.median:.2f}x ({interval.low:.2f}-{interval.high:.2f})"


def _list(title: str, lines: tuple[str, ...], safe: Safe) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    if not lines:
        return []
    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("-", safe(line))
    return [Text(title, style="bold"), grid, Text()]


def _rules(r: Recommendation, safe: Safe) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    rules = [c for c in r.rules if c.status != "not applicable"]
    if not rules:
        return []
    grid = Table.grid(padding=(0, 1))
    for check in rules:
        text = f"{check.says} {check.fact}"
        if check.physics == "disagrees" and check.why:
            text += f" The physics disagrees: {check.why}"
        grid.add_row(Text(check.status, style=_STATUS[check.status]), safe(text))
    pair = next((o.draft for o in r.options if o.draft is not None and "draft-simple" in o.methods), None)
    title = f"Published rules, for {safe(pair.name, 60)} {safe(pair.quant, 16)}" if pair else "Published rules"
    return [Text(title, style="bold"), grid, Text()]


def _left_out(excluded: tuple[Exclusion, ...], safe: Safe, everything: bool) -> list[RenderableType]:
    if not excluded:
        return []
    shown = excluded if everything else excluded[:5]
    lines = [f"{x.name}: {x.reason}" for x in shown]
    if len(excluded) > len(shown):
        lines.append(f"and {len(excluded) - len(shown)} more (--all)")
    return _list("Left out", tuple(lines), safe)


def _run_it(r: Recommendation, safe: Safe, launcher: str | None) -> list[RenderableType]:
    from rich.text import Text

    parts: list[RenderableType] = []
    chosen = next((e for e in r.launchers if e.launcher == launcher), None)
    if chosen is not None:
        return _entry(chosen, safe)
    if r.command is not None:
        parts.append(Text(f"Run it ({safe(r.command.build, 80)})", style="bold"))
        # A command is never wrapped by us: a line break inside it would be a wrong command once it is copied.
        text = r.command.text if r.command.text is not None else "(this shell cannot express the file name)"
        parts += [Text(text, no_wrap=True, overflow="ignore"), *[Text(f"  {safe(n)}") for n in r.command.notes], Text()]
    studio = next((e for e in r.launchers if e.launcher == "lm-studio"), None)
    if studio is not None:
        words = (studio.content or "").replace("\n", "; ") if studio.possible else " ".join(studio.missing)
        parts.append(Text.assemble(("LM Studio: ", "bold"), safe(words)))
    if r.prediction is not None and r.best.methods and r.command is not None and r.command.ready:
        from advisor.report.terminal import confirm_command

        proof = Text.assemble(("Prove it: ", "bold"), confirm_command(r.prediction), no_wrap=True, overflow="ignore")
        parts.append(proof)
    others = ", ".join(e.launcher for e in r.launchers if e.possible and e.launcher != "lm-studio")
    if others:
        parts.append(Text.assemble(("Entries for: ", "bold"), f"{others} (--for NAME)"))
    return [*parts, Text()]


def _entry(entry: Entry, safe: Safe) -> list[RenderableType]:
    from rich.text import Text

    parts: list[RenderableType] = [Text(f"{entry.launcher}: {safe(entry.where)}", style="bold")]
    if entry.content is not None:
        parts.append(Text(entry.content, no_wrap=True, overflow="ignore"))
    parts += [Text(f"  cannot express: {safe(m)}", style="yellow") for m in entry.missing]
    parts += [Text(f"  {safe(n)}") for n in entry.notes]
    return [*parts, Text(f"  fields: {safe(entry.source)}", style="dim"), Text()]


def finding_line(seen: Observation, findings: tuple[Finding, ...]) -> Text:
    """One line of a watched run: what was seen, and where it left the prediction."""
    from rich.text import Text

    parts = [f"{seen.tokens:.0f} tokens"]
    if seen.tps is not None:
        parts.append(f"{seen.tps:.1f} tok/s")
    if seen.acceptance is not None:
        parts.append(f"{seen.acceptance:.0%} accepted")
    if seen.mean_accepted_length is not None:
        parts.append(f"{seen.mean_accepted_length:.2f} per round")
    text = Text("  ".join(parts))
    for finding in findings:
        style = "green" if finding.kind == "as predicted" else "bold yellow"
        text.append(f"  {finding.message}", style=style)
    return text


def _scan(s: Scan, ascii_only: bool) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    def safe(text: str, limit: int = 800) -> str:
        return printable(text, ascii_only, limit)

    dot = " - " if ascii_only else " · "
    parts: list[RenderableType] = [
        Text(f"{len(s.targets)} models{dot}{safe(s.hardware, 60)}{dot}{s.backend}", style="bold"),
        Text(),
    ]
    if not s.targets:
        looked = ", ".join(s.folders) or "the usual places"
        return [*parts, Text(f"No model was found in {safe(looked)}."), Text()]
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("target", overflow="fold")
    table.add_column("plain", justify="right", no_wrap=True)
    table.add_column("best option here", overflow="fold")
    table.add_column("tok/s", justify="right", no_wrap=True)
    table.add_column("speedup (80 %)", no_wrap=True)
    for row in s.targets:
        best = row.best
        table.add_row(
            f"{safe(row.target.name, 60)} {safe(row.target.quant, 16)}",
            f"{best.speed.median / best.speedup.median:.1f}",
            safe(best.label, 100),
            f"{best.speed.median:.1f}" if best.fits is not False else "does not fit",
            _ratio(best.speedup) if best.methods else "-",
        )
    parts += [table, Text()]
    losing = [line for row in s.targets for line in _losing(row)]
    parts += _list("Would be slower than no speculation", tuple(losing), safe)
    hidden = [f"{n.draft} for {row.target.name}: {n.reason}" for row in s.targets for n in row.lm_studio]
    parts += _list("What LM Studio's draft list does not tell", tuple(hidden), safe)
    others = [f"{x.name}: {x.reason}" for x in s.excluded if x.kind == "unreadable"]
    return [*parts, *_list("Not readable", tuple(others), safe)]


def _losing(row: ScanRow) -> list[str]:
    return [f"{row.target.name} with {o.draft.name if o.draft else o.label}: {_ratio(o.speedup)}" for o in row.losing]
