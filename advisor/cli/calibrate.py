"""`advisor calibrate`: measure this machine once, so that predictions rest on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from advisor.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from advisor.performance.measured import Calibration

app = typer.Typer()


@app.command()
def calibrate(
    models: Annotated[
        Optional[list[Path]],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(help="GGUF files of yours to measure as well; without any, small models are made and deleted."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", "-e", help="auto, embedded, or the path of a llama-server.")
    ] = "auto",
    threads: Annotated[Optional[int], typer.Option("--threads", min=1, help="CPU threads.")] = None,  # noqa: UP045
    gpu_layers: options.GpuLayers = None,
    patience: Annotated[
        float, typer.Option("--patience", min=0.1, max=20, help="1 = three to four minutes; 2 = twice as long.")
    ] = 1.0,
    show: Annotated[bool, typer.Option("--show", help="Show the stored calibrations and measure nothing.")] = False,
    save: Annotated[bool, typer.Option(help="Store the calibration for later predictions.")] = True,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Forget earlier calibrations of the same machine and engine, if this one works."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Measure what llama.cpp charges on this machine: streaming, extra columns, experts, overheads.

    Later predictions for this machine use it by themselves and say "measured here". What a machine gives changes from
    minute to minute: calibrations of the last 30 days with the same engine are averaged, so running it again at other
    times makes predictions better. After a change of hardware or drivers use --replace.

    \b
    Examples:
      advisor calibrate
      advisor calibrate --replace
      advisor calibrate my-model.gguf --patience 2
      advisor calibrate --show
    """
    from advisor.cli.confirm import progress_bar
    from advisor.errors import InputError
    from advisor.performance.measured import (
        alike,
        comparable,
        forget_calibrations,
        load_calibrations,
        save_calibration,
    )

    if replace and not save:
        raise InputError("--replace would forget earlier calibrations, and --no-save would store none.", "Choose one.")
    if show:
        stored = load_calibrations()
        if json:
            typer.echo("[" + ",\n".join(c.model_dump_json(indent=2) for c in stored) + "]")
            return
        if not stored:
            typer.echo("There is no calibration yet; make one with: advisor calibrate")
            return
        from advisor.report.console import console

        out = console()
        for screenful in (*_means(stored), *stored):
            out.print(screen(screenful))
        return

    from advisor.llamacpp.calibrate import calibrate as measure
    from advisor.llamacpp.calibrate import try_describe

    for model in models or ():
        # Found out now, not after minutes.
        if reason := try_describe(model):
            raise InputError(reason)
    with progress_bar(quiet=json) as report:
        result = measure(
            models or (), engine=engine, threads=threads, gpu_layers=gpu_layers, patience=patience, progress=report
        )
    path = save_calibration(result) if save else None
    if replace and not result.disturbed:
        forget_calibrations([c for c in alike(result, load_calibrations()) if c != result])
    if json:
        typer.echo(result.model_dump_json(indent=2))
        return
    from advisor.report.console import console
    from advisor.text import clean

    out = console()
    out.print(screen(result))
    if path is not None:
        used = comparable(result, load_calibrations())
        what = (
            f"the mean of {len(used)} calibrations" if len(used) > 1 else "it" if result in used else "an earlier one"
        )
        typer.echo(f"Stored as {clean(str(path))}; predictions for this machine now use {what}.")
        if replace and result.disturbed:
            typer.echo("Earlier calibrations were kept, because this one was disturbed.")


def _means(stored: Sequence[Calibration]) -> list[Calibration]:
    """What predictions use where several calibrations are averaged, one per machine, backend and engine."""
    from advisor.performance.measured import comparable, mean_of

    found, left = [], list(stored)
    while left:
        group = comparable(left[0], left)
        left = [c for c in left[1:] if c not in group]
        if len(group) > 1:
            found.append(mean_of(group))
    return found


def screen(calibration: Calibration) -> Group:
    """A calibration as one screen."""
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from advisor.llamacpp.calibrate import disturbed
    from advisor.text import clean

    c = calibration
    parts: list[RenderableType] = [
        Text(f"{clean(c.machine.processor)}, {c.backend}, {clean(c.engine)}", style="bold"),
        Text(
            f"measured here on {c.created[:16].replace('T', ' ')} UTC in {c.seconds:.0f} s"
            if c.averaged == 1
            else f"mean of {c.label}: what predictions use"
        ),
        Text(),
    ]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("type", "GB/s", "n=2", "3", "4", "5", "8", "9", "16", "spread"):
        table.add_column(name, justify="left" if name == "type" else "right", no_wrap=True)
    for m in c.matrices:
        one = m.seconds_per_byte.at(1)
        table.add_row(
            m.quant,
            f"{1e-9 / one:.1f}",
            *(f"{m.seconds_per_byte.at(n) / one:.2f}" for n in (2, 3, 4, 5, 8, 9, 16)),
            f"{m.seconds_per_byte.spread:.0%}",
        )
    parts += [table, Text("n: cost of a pass of n tokens in passes of one", style="dim"), Text()]
    lines = [f"Time per layer [us]: {', '.join(f'{k} {v.at(1) * 1e6:.0f}' for k, v in c.layers.items())}."]
    if c.rows is not None:
        lines.append(f"Per row of a matrix [ns]: {', '.join(f'n={n} {c.rows.at(n) * 1e9:.0f}' for n in (1, 4, 8))}.")
    lines.append(f"Per step {c.step * 1e6:.0f} us; sampling {c.sampling * 32768e6:.0f} us per row of 32768.")
    if c.drafting:
        tokens = ", ".join(
            f"{k} {(v.constant + v.per_entry * 32768 + v.per_layer * 12) * 1e6:.0f}" for k, v in c.drafting.items()
        )
        lines.append(f"Per drafted token beyond its pass [us]: {tokens}.")
    if c.checks:
        errors = ", ".join(f"{k.method} {k.predicted / k.measured - 1:+.0%}" for k in c.checks)
        lines.append(f"Rounds of other models, predicted against measured: {errors}.")
    for correction in c.corrections:
        ratio = correction.ratio
        lines.append(
            f"{clean(correction.model)} costs {ratio.at(1):.2f} of the sum of its parts "
            f"({ratio.at(4):.2f} with four tokens)."
        )
    if warning := disturbed(c):
        lines.append(warning)
    return Group(*parts, *(Text(line) for line in lines))
