"""`advisor predict`: what a pair will do on a machine, before anything is downloaded or started."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from advisor.cli import options

app = typer.Typer()


@app.command()
def predict(
    target: Annotated[str, typer.Argument(help=options.MODEL_HELP, autocompletion=options.complete_model)],
    draft: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(
            help="Draft model or drafter head; leave out for MTP inside the target or an n-gram method.",
            autocompletion=options.complete_model,
        ),
    ] = None,
    hardware: options.HardwareName = "auto",
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
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """Predict the speedup of a target/draft pair on a machine, with its range and the reasons.

    \b
    Examples:
      advisor predict qwen3.5-27b:Q8_0 qwen3.5-2b:Q8_0 -H 395 -a 0.643
      advisor predict gpt-oss-120b:MXFP4 gpt-oss-20b:MXFP4 -H 395 -a 0.718
      advisor predict my-model.gguf draft.gguf --task code
    """
    if acceptance is not None and task is not None:
        raise typer.BadParameter("give --acceptance or --task, not both: a task is only used to estimate acceptance")
    from advisor.cli.common import setup_of
    from advisor.models.reference import describe
    from advisor.speculation.predict import default_draft_max, infer_method
    from advisor.speculation.predict import predict as predict_pair

    target_model = describe(target)
    draft_model = describe(draft) if draft is not None else None
    setup = setup_of(
        hardware, backend, bandwidth, memory, parallel=parallel, gpu_layers=gpu_layers, cpu_moe=cpu_moe,
        n_cpu_moe=n_cpu_moe, cache_type_k=cache_type_k, cache_type_v=cache_type_v,
    )  # fmt: skip
    chosen = options.method_of(method) or infer_method(target_model, draft_model)
    prediction = predict_pair(
        target_model,
        draft_model,
        setup=setup,
        method=chosen,
        draft_max=None if best else draft_max if draft_max is not None else default_draft_max(chosen),
        acceptance=acceptance,
        task=options.task_of(task),
        depth=context,
        context=max(context, 4096),
        temperature=temperature,
        p_min=p_min,
        force=force,
    )
    if html is not None:
        from advisor.report.build import sheet_of
        from advisor.report.html import write_html

        sheet = sheet_of(
            prediction, target_model, draft_model, setup, task=options.task_of(task), temperature=temperature
        )
        write_html(html, [sheet])
    if json:
        typer.echo(prediction.model_dump_json(indent=2))
        return
    from advisor.report.console import console
    from advisor.report.terminal import prediction_screen

    out = console()
    out.print(prediction_screen(prediction, out.width))
