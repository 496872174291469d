"""``advisor check``: will llama.cpp accept this pair, and if not, why really."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from advisor.cli.options import Json, complete_model

if TYPE_CHECKING:
    from advisor.models.pairs import PairReport

app = typer.Typer(rich_markup_mode=None)


@app.command()
def check(
    target: Annotated[
        str,
        typer.Argument(
            help="The model whose output is wanted: path, org/repo or catalogue name.", autocompletion=complete_model
        ),
    ],
    draft: Annotated[
        str,
        typer.Argument(help="The model that guesses: a small model or a drafter head.", autocompletion=complete_model),
    ],
    build: Annotated[
        Optional[int],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Option("--build", help="llama.cpp build number to judge by; default: that of the engine found here."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Do not ask the Hugging Face Hub.")] = False,
    as_json: Json = False,
) -> None:
    """Say whether llama.cpp accepts a target and a draft, with the true reason (exit 0 either way)."""
    from advisor.models.pairs import check_pair
    from advisor.models.reference import describe

    one, two = describe(target, offline=offline), describe(draft, offline=offline)
    engine = None
    if build is None:
        build, engine = _engine_build()
    report = check_pair(one, two, build=build, engine=engine)
    if as_json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _show(report)


def _engine_build() -> tuple[int | None, str | None]:
    """Build number and origin of the engine of this machine, if one is found and tells a plausible number."""
    from advisor.errors import EngineError

    try:
        from advisor.llamacpp.find import find_engine

        engine = find_engine()
    except (ImportError, EngineError):
        return None, None
    digits = "".join(c for c in engine.build if c.isdigit())
    # shallow clones and tarballs call themselves build 1 or 0
    number = int(digits) if digits and len(digits) < 7 else 0
    return (number, engine.origin or engine.kind) if number > 1000 else (None, None)


def _show(report: PairReport) -> None:
    """One short screen."""
    from rich.table import Table

    from advisor.report.console import console as make_console
    from advisor.text import clean

    console = make_console()
    word = {True: "compatible", False: "not compatible", None: "cannot be known"}[report.compatible]
    console.print(f"{clean(report.target)} + {clean(report.draft)}: {word}")
    console.print(clean(report.reason, 400))
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("method", report.method)
    if report.build:
        by = f"b{report.build}" + (f" ({clean(report.engine, 60)})" if report.engine else "")
    else:
        by = "b11434 (no engine found: current rules)"
    table.add_row("judged by llama.cpp", by)
    if report.target_tokens is not None and report.draft_tokens is not None:
        table.add_row("tokens", f"{report.target_tokens:,} and {report.draft_tokens:,}")
        table.add_row("difference", f"{report.size_difference:,} (limit {report.size_limit})")
    if report.first_difference:
        d = report.first_difference
        table.add_row("first difference", f"id {d.id}: {d.target!r} against {d.draft!r}")
    console.print(table)
    for line in (*report.notes, *report.changes):
        console.print(f"- {clean(line, 300)}")
    if report.hint:
        console.print(clean(report.hint, 300))
