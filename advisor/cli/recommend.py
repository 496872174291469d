"""`advisor recommend`: what to use with one model on one machine, and how to start it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from advisor.cli import options

if TYPE_CHECKING:
    from advisor.advice.recommendation import Recommendation
    from advisor.advice.watch import Finding, Observation
    from advisor.hardware.machine import Setup
    from advisor.llamacpp.find import Engine

app = typer.Typer()


@app.command()
def recommend(
    target: Annotated[str, typer.Argument(help=options.MODEL_HELP, autocompletion=options.complete_model)],
    hardware: options.HardwareName = "auto",
    backend: options.BackendName = None,
    bandwidth: options.Bandwidth = None,
    memory: options.Memory = None,
    task: options.TaskName = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0, help="Sampling temperature.")] = 0.0,
    context: options.Context = 0,
    drafts: Annotated[
        Optional[list[str]],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Option("--drafts", "-d", help="File or folder with drafts; may be given several times."),
    ] = None,
    local: Annotated[
        bool,
        typer.Option("--local/--no-local", help="Look where LM Studio, llama.cpp, Hugging Face, Ollama keep files."),
    ] = True,
    catalogue: Annotated[
        bool, typer.Option("--catalogue/--no-catalogue", help="Also weigh models that would have to be downloaded.")
    ] = True,
    hub: Annotated[bool, typer.Option("--hub", help="Also search the Hugging Face Hub (network).")] = False,
    parallel: options.Parallel = 1,
    gpu_layers: options.GpuLayers = None,
    cpu_moe: options.CpuMoe = False,
    n_cpu_moe: options.NCpuMoe = 0,
    cache_type_k: options.CacheTypeK = "f16",
    cache_type_v: options.CacheTypeV = "f16",
    rpc: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--rpc", help="HOST:PORT=MACHINE of a machine that lends its memory through rpc-server."),
    ] = None,
    network: Annotated[
        str, typer.Option("--network", help="GBIT[,MS] of the network to the --rpc hosts: speed and one-way latency.")
    ] = "1,0.2",
    engine: Annotated[
        str, typer.Option("--engine", "-e", help="auto, embedded, or the path of the llama-server to write for.")
    ] = "auto",
    launcher: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--for", help="Show the entry for llama-swap, jan, localai, lemonade, docker-model-runner, ..."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every option and everything left out.")] = False,
    execute: Annotated[
        bool, typer.Option("--exec", help="Start the recommended command and watch what it really does.")
    ] = False,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port for --exec.")] = 8080,
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """Say what to use with this model on this machine: a draft, MTP, n-grams, or nothing, and how to start it.

    Examples:

      advisor recommend my-model.gguf --task code

      advisor recommend qwen3.5-27b:Q8_0 --hardware "RTX 3090" --task chat

      advisor recommend gpt-oss-120b --hardware 395 --for llama-swap
    """
    from advisor.advice.launchers import LAUNCHERS
    from advisor.cli.common import setup_of
    from advisor.errors import InputError

    if launcher is not None and launcher not in LAUNCHERS:
        raise InputError(f"There is no entry for {launcher!r}.", f"Use one of {', '.join(LAUNCHERS)}.")
    setup = setup_of(
        hardware, backend, bandwidth, memory, parallel=parallel, gpu_layers=gpu_layers, cpu_moe=cpu_moe,
        n_cpu_moe=n_cpu_moe, cache_type_k=cache_type_k, cache_type_v=cache_type_v,
    )  # fmt: skip
    if rpc:
        setup = with_rpc(setup, rpc, network)
    found = _engine(engine, hardware, execute)
    answer = _ask(target, setup, task, temperature, context, drafts or [], local, catalogue, hub, found, quiet=json)
    if html is not None:
        from advisor.report.build import recommended
        from advisor.report.html import write_html

        write_html(html, recommended(answer, setup))
    if json:
        typer.echo(answer.model_dump_json(indent=2))
    else:
        from advisor.advice.screen import RecommendationScreen
        from advisor.report.console import console

        console().print(RecommendationScreen(answer, everything, launcher))
    if execute:
        if found is None:
            raise InputError(
                "--exec needs a llama.cpp on this machine.", "Use --hardware auto, or name one by --engine."
            )
        run(answer, found, port)


def _engine(wanted: str, hardware: str, execute: bool) -> Engine | None:
    """The llama.cpp to write the command for; None = a current one (asked for another machine, or none found)."""
    from advisor.errors import EngineError
    from advisor.llamacpp.find import find_engine

    if wanted == "auto" and hardware.strip().lower() not in ("", "auto") and not execute:
        return None
    try:
        return find_engine(wanted)
    except EngineError:
        if wanted != "auto" or execute:
            raise
        return None


def _ask(
    target: str,
    setup: Setup,
    task: str | None,
    temperature: float,
    depth: int,
    drafts: list[str],
    local: bool,
    catalogue: bool,
    hub: bool,
    engine: Engine | None,
    quiet: bool,
) -> Recommendation:
    from advisor.advice.builds import flags_of, methods_of
    from advisor.advice.recommend import recommend as ask
    from advisor.cli.progress import Progress

    with Progress(quiet) as progress:
        return ask(
            target,
            setup=setup,
            task=options.task_of(task),
            temperature=temperature,
            depth=depth,
            drafts=drafts,
            local=local,
            catalogue=catalogue,
            hub=hub,
            build=flags_of(engine) if engine is not None else None,
            methods=methods_of(engine) if engine is not None else None,
            progress=progress,
        )


def with_rpc(setup: Setup, hosts: list[str], network: str) -> Setup:
    """The setup with RPC hosts, each given as ``HOST:PORT=MACHINE``.

    Raises:
        InputError: a host or network that cannot be read.
        UnknownHardwareError: no profile of that name.
    """
    import math
    import re

    from advisor.base import Figure
    from advisor.errors import InputError
    from advisor.hardware.machine import RpcHost
    from advisor.hardware.profiles import find

    speed, _, delay = network.partition(",")
    try:
        gbit, milliseconds = float(speed), float(delay or 0.2)
    except ValueError:
        gbit = milliseconds = math.nan
    if not (math.isfinite(gbit) and math.isfinite(milliseconds) and gbit > 0 and milliseconds >= 0):
        raise InputError(f"--network {network!r} is not a speed.", 'Give Gbit/s and ms, for example "10,0.1".')
    found = []
    for host in hosts:
        address, _, name = host.partition("=")
        match = re.fullmatch(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):(\d{1,5})", address)
        if match is None or not 0 < int(match.group(1)) < 65536 or not name:
            raise InputError(
                f"--rpc {host!r} names no host.", 'Give HOST:PORT=MACHINE, e.g. "10.0.0.2:50052=RTX 3090".'
            )
        found.append(
            RpcHost(
                hardware=find(name),
                bandwidth=Figure(value=gbit / 8, unit="GB/s", kind="assumed", source=f"--network {network}"),
                latency=Figure(value=milliseconds, unit="ms", kind="assumed", source=f"--network {network}"),
                address=address,
            )
        )
    return setup.model_copy(update={"placement": setup.placement.model_copy(update={"rpc": tuple(found)})})


def run(answer: Recommendation, engine: Engine, port: int) -> None:
    """Start what was recommended and tell what it really does, until Ctrl-C.

    Raises:
        InputError: a model that is not on this disk, a port that is taken.
        EngineError: the server did not start, or went away.
    """
    from advisor.advice.execute import start
    from advisor.advice.screen import finding_line
    from advisor.advice.watch import watch
    from advisor.report.console import console

    out = console(stderr=True)

    def report(seen: Observation, findings: tuple[Finding, ...]) -> None:
        out.print(finding_line(seen, findings))

    with start(answer, engine, port, progress=lambda text: out.print(text + " ...")) as server:
        out.print(f"Ready: {server.url} (Ctrl-C ends it)")
        try:
            watch(server.url, answer.expected(), report=report, alive=server.alive)
        except KeyboardInterrupt:
            out.print("Stopped.")
