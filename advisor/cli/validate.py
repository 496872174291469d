"""`advisor validate`: the predictor against a table of measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional, cast

import typer

from advisor.cli import options

if TYPE_CHECKING:
    from rich.console import Group

    from advisor.validation.report import Given, ValidationReport

app = typer.Typer()


@app.command()
def validate(
    file: Annotated[
        Optional[Path],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(help="CSV table of decode speeds, pass times or speculation runs, told apart by its columns."),
    ] = None,
    measurements: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--measurements", help="The same table, as an option."),
    ] = None,
    acceptance: Annotated[
        str, typer.Option("--acceptance", help="given: use the measured acceptance; blind: estimate it too.")
    ] = "given",
    all_rows: Annotated[bool, typer.Option("--all", help="Also rows of low trust or not meant for fitting.")] = False,
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """Predict every row of a table of measurements and say how far off the predictions are.

    Every setup, curve or device counts once in the figures. Rows that cannot be used are counted by reason.

    \b
    Examples:
      advisor validate data/speculation.csv
      advisor validate data/speculation.csv --acceptance blind
      advisor validate my-decode-speeds.csv --json
    """
    from advisor.errors import InputError
    from advisor.validation.report import validate as run

    path = file or measurements
    if path is None or (file is not None and measurements is not None):
        raise InputError("Name one table.", "For example `advisor validate data/speculation.csv`.")
    if acceptance not in ("given", "blind"):
        raise InputError(f"--acceptance is given or blind, not {acceptance!r}.")
    report = run(path, all_rows=all_rows, acceptance=cast("Given", acceptance))
    if html is not None:
        from advisor.report.html import write_html

        write_html(html, [report])
    if json:
        typer.echo(report.model_dump_json(indent=2))
        return
    from advisor.report.console import console

    console().print(screen(report))


def screen(report: ValidationReport) -> Group:
    """Totals, groups, and what was left out and why."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from advisor.text import clean

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.0%}"

    def per_cent(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} %"

    r = report
    mode = f", acceptance {r.acceptance}" if r.acceptance else ""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "rows", "of", "median", "90th pct", "right side", "in range"):
        table.add_column(name, justify="right" if name else "left", no_wrap=bool(name), overflow="fold")
    table.add_row(
        "all", str(r.used), "", per_cent(r.median_error_pct), per_cent(r.p90_error_pct), share(r.sign_accuracy),
        share(r.interval_coverage), style="bold",
    )  # fmt: skip
    for g in r.groups:
        table.add_row(
            clean(g.name, 44), str(g.rows), str(g.clusters), per_cent(g.median_error_pct), per_cent(g.p90_error_pct),
            share(g.sign_accuracy), share(g.interval_coverage),
        )  # fmt: skip
    skipped = [Text(f"{s.count:5}  {clean(s.reason, 160)}") for s in r.skipped]
    note = (
        "error = |ln(predicted / measured)|; of = setups, curves or devices, each counting once; right side = "
        "faster or slower, outside 1 +- 3 %; in range = inside the stated "
        f"{r.interval_level:.0%} interval."
    )
    return Group(
        Text(f"{r.table} table{mode}: {r.used} of {r.rows} rows used", style="bold"),
        Text(),
        table,
        Text(),
        Text(note, style="dim"),
        *([Text(), Text("Not used:"), *skipped] if skipped else []),
    )
