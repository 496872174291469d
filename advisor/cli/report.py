"""`advisor report`: the whole story of one or several pairs and machines in a file to look at or pass on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from advisor.cli import options

if TYPE_CHECKING:
    from advisor.models.description import ModelDescription

app = typer.Typer()


@app.command()
def report(
    target: Annotated[str, typer.Argument(help=options.MODEL_HELP, autocompletion=options.complete_model)],
    drafts: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(
            help="Draft models or heads to compare; leave out for MTP inside the target or an n-gram method.",
            autocompletion=options.complete_model,
        ),
    ] = None,
    output: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--output", "-o", help="FILE.html, FILE.md or FILE.json; default: Markdown on standard output."),
    ] = None,
    hardware: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--hardware",
            "-H",
            help='Machine: "auto" (this one) or a profile; give it several times to compare machines.',
            autocompletion=options.complete_hardware,
        ),
    ] = None,
    backend: options.BackendName = None,
    bandwidth: options.Bandwidth = None,
    memory: options.Memory = None,
    method: options.MethodName = None,
    draft_max: options.DraftMax = None,
    best: options.Best = False,
    acceptance: options.Acceptance = None,
    task: options.TaskName = None,
    temperature: options.Temperature = 0.0,
    p_min: options.PMin = 0.0,
    context: options.Context = 0,
    parallel: options.Parallel = 1,
    gpu_layers: options.GpuLayers = None,
    cpu_moe: options.CpuMoe = False,
    n_cpu_moe: options.NCpuMoe = 0,
    cache_type_k: options.CacheTypeK = "f16",
    cache_type_v: options.CacheTypeV = "f16",
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Write a report on one or several pairs and machines: HTML to look at, Markdown or JSON to pass on.

    The HTML file is complete in itself: it opens offline and computes what-ifs in the page.

    \b
    Examples:
      advisor report qwen3.5-27b qwen3.5-2b qwen3.5-0.8b -H 395 -o report.html
      advisor report my.gguf draft.gguf -H auto -H "RTX 3090" -o report.md
    """
    if acceptance is not None and task is not None:
        raise typer.BadParameter("give --acceptance or --task, not both: a task is only used to estimate acceptance")
    if json and output is not None:
        raise typer.BadParameter("--json prints the report; to write it to a file, end the name after -o in .json")
    from advisor.cli.common import setup_of
    from advisor.models.reference import describe
    from advisor.report.build import report_from, sheet_of
    from advisor.report.write import form_of, render, write_report
    from advisor.speculation.predict import default_draft_max, infer_method, predict
    from advisor.text import clean

    if output is not None:
        form_of(output)  # a wrong ending should not cost the time of the predictions
    kind, asked = options.task_of(task), options.method_of(method)
    target_model = describe(target)
    draft_models: list[ModelDescription | None] = [describe(draft) for draft in drafts or []]
    setups = [
        setup_of(
            name, backend, bandwidth, memory, parallel=parallel, gpu_layers=gpu_layers, cpu_moe=cpu_moe,
            n_cpu_moe=n_cpu_moe, cache_type_k=cache_type_k, cache_type_v=cache_type_v,
        )
        for name in hardware or ["auto"]
    ]  # fmt: skip
    sheets = []
    for setup in setups:
        for draft_model in draft_models or [None]:
            chosen = asked or infer_method(target_model, draft_model)
            prediction = predict(
                target_model,
                draft_model,
                setup=setup,
                method=chosen,
                draft_max=None if best else draft_max if draft_max is not None else default_draft_max(chosen),
                acceptance=acceptance,
                task=kind,
                depth=context,
                context=max(context, 4096),
                temperature=temperature,
                p_min=p_min,
                force=force,
            )
            sheets.append(sheet_of(prediction, target_model, draft_model, setup, task=kind, temperature=temperature))
    whole = report_from(sheets)
    if output is not None:
        write_report(output, whole)
        typer.echo(f"Wrote {clean(str(output))}.")
    else:
        typer.echo(render(whole, ".json" if json else ".md"), nl=False)
