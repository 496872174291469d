"""`advisor scan`: every model on this disk and the best that can be done with what is there."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from advisor.cli import options

app = typer.Typer()


@app.command()
def scan(
    folders: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(
            help="Folders to look through; default: where LM Studio, llama.cpp, Hugging Face, Ollama keep files."
        ),
    ] = None,
    hardware: options.HardwareName = "auto",
    backend: options.BackendName = None,
    bandwidth: options.Bandwidth = None,
    memory: options.Memory = None,
    task: options.TaskName = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0, help="Sampling temperature.")] = 0.0,
    context: options.Context = 0,
    parallel: options.Parallel = 1,
    cache_type_k: options.CacheTypeK = "f16",
    cache_type_v: options.CacheTypeV = "f16",
    json: options.Json = False,
) -> None:
    """List every model on this disk with its best option, and warn of pairs that would be slower.

    Examples:

      advisor scan

      advisor scan ~/models --task code --hardware "RTX 4090"
    """
    from advisor.advice.scan import scan as look
    from advisor.cli.common import setup_of
    from advisor.cli.progress import Progress

    setup = setup_of(
        hardware, backend, bandwidth, memory, parallel=parallel, cache_type_k=cache_type_k, cache_type_v=cache_type_v
    )
    with Progress(json) as progress:
        answer = look(
            folders or [],
            setup=setup,
            task=options.task_of(task),
            temperature=temperature,
            depth=context,
            progress=progress,
        )
    if json:
        typer.echo(answer.model_dump_json(indent=2))
        return
    from advisor.advice.screen import ScanScreen
    from advisor.report.console import console

    console().print(ScanScreen(answer))
