"""`advisor roofline`: where decode, verify and draft passes sit below a machine's ceilings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from advisor.cli import options

if TYPE_CHECKING:
    from rich.console import Group

    from advisor.performance.roofline import Roofline

app = typer.Typer()
_HEIGHT = 14


@app.command()
def roofline(
    target: Annotated[str, typer.Argument(help=options.MODEL_HELP, autocompletion=options.complete_model)],
    draft: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(help="Draft model.", autocompletion=options.complete_model),
    ] = None,
    hardware: options.HardwareName = "auto",
    backend: options.BackendName = None,
    bandwidth: options.Bandwidth = None,
    memory: options.Memory = None,
    draft_max: Annotated[int, typer.Option("--draft-max", "-k", min=1, max=64, help="Draft length.")] = 3,
    context: options.Context = 0,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", help="Also write the picture to this .svg or .png file."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Draw a machine's roofline with the passes of a round: what they could reach, and what they do.

    \b
    Examples:
      advisor roofline gpt-oss-120b:MXFP4 gpt-oss-20b:MXFP4 --hardware 395
      advisor roofline qwen3.5-27b:Q8_0 --hardware "RTX 3090" -o roofline.svg
    """
    from advisor.cli.common import setup_of
    from advisor.errors import InputError
    from advisor.models.pairs import require_target
    from advisor.models.reference import describe
    from advisor.performance.roofline import roofline as compute

    if output is not None and output.suffix.lower() not in (".svg", ".png"):
        raise InputError(f"{output} is neither .svg nor .png.", "Choose one of the two endings.")
    target_model = describe(target)
    require_target(target_model)
    setup = setup_of(hardware, backend, bandwidth, memory)
    result = compute(target_model, describe(draft) if draft else None, setup, draft_max=draft_max, depth=context)
    if output is not None:
        from advisor.report.picture import write_roofline

        write_roofline(result, output)
    if json:
        typer.echo(result.model_dump_json(indent=2))
        return
    from advisor.report.console import console

    out = console()
    out.print(screen(result, min(out.width, 100), ascii_only=not (out.encoding or "").lower().startswith("utf")))


def screen(result: Roofline, width: int, ascii_only: bool = False) -> Group:
    """Drawing on logarithmic axes, then a table of the passes."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from advisor.report.console import format_bytes, format_number
    from advisor.text import clean

    r = result
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "pass", "FLOP/byte", "moves", "TFLOP/s", "of the roof", "time", "limited by"):
        table.add_column(name, justify="left" if name in ("", "pass", "limited by") else "right", no_wrap=True)
    for i, p in enumerate(r.points):
        table.add_row(
            chr(ord("A") + i),
            p.name,
            format_number(p.intensity),
            format_bytes(p.bytes),
            format_number(p.rate),
            f"{p.rate / p.attainable:.0%}",
            f"{format_number(p.milliseconds)} ms",
            p.bound,
        )
    lines = drawing(result, width, "/-" if ascii_only else "╱─")
    return Group(
        Text(f"{clean(r.hardware, 60)}, {r.backend}: {format_number(r.bandwidth.value)} GB/s ({r.bandwidth.kind}), "
             f"{format_number(r.peak.value)} TFLOP/s ({r.peak.kind}), ridge at {format_number(r.ridge)} FLOP/byte"),
        Text(),
        *(Text(line) for line in lines),
        Text(),
        table,
        Text("Times are predicted; 'of the roof' is the share of what bandwidth and peak would allow.", style="dim"),
    )  # fmt: skip


def drawing(result: Roofline, width: int, strokes: str = "╱─") -> list[str]:
    """The roof and the passes (letters A, B, C) as ``_HEIGHT`` lines of text, both axes logarithmic."""
    from math import log10

    r = result
    xs = [log10(p.intensity) for p in r.points] + [log10(r.ridge)]
    left, right = min(xs) - 0.5, max(xs) + 0.6
    top = log10(r.peak.value) + 0.2
    roof_left = left + log10(r.bandwidth.value / 1e3)
    bottom = min([log10(p.rate) for p in r.points] + [roof_left]) - 0.2
    columns = max(30, width - 12)
    grid = [[" "] * columns for _ in range(_HEIGHT)]

    def line_of(y: float) -> int:
        return min(_HEIGHT - 1, max(0, round((top - y) / (top - bottom) * (_HEIGHT - 1))))

    for c in range(columns):
        x = left + (right - left) * c / (columns - 1)
        slope = x + log10(r.bandwidth.value / 1e3)
        y = min(slope, log10(r.peak.value))
        grid[line_of(y)][c] = strokes[0] if slope < log10(r.peak.value) else strokes[1]
    for i, p in enumerate(r.points):
        c = round((log10(p.intensity) - left) / (right - left) * (columns - 1))
        cells = grid[line_of(log10(p.rate))]
        while c + 1 < columns and cells[c].isalpha():
            c += 1  # two passes at one place stand side by side
        cells[c] = chr(ord("A") + i)
    lines = []
    for row, line in enumerate(grid):
        y = top - (top - bottom) * row / (_HEIGHT - 1)
        label = f"{10**y:9.2g} " if row % 4 == 0 else " " * 10
        lines.append((label + "".join(line)).rstrip())
    first, last = f"{10**left:.2g}", f"{10**right:.2g} FLOP/byte"
    lines.append(" " * 10 + first + " " * max(1, columns - len(first) - len(last)) + last)
    lines[0] = lines[0].ljust(10) + (" TFLOP/s" if len(lines[0]) <= 10 else "")
    return lines
