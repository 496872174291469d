"""`advisor confirm`: llama.cpp really runs, with and without drafting, on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Optional

import typer

from advisor.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from advisor.llamacpp.confirm import Confirmation, Predictor
    from advisor.llamacpp.prompts import Prompt
    from advisor.report.build import Reportable
    from advisor.speculation.prediction import Method, Prediction

app = typer.Typer()


@app.command()
def confirm(
    target: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(help="GGUF file of the target, on this disk (with --url: LM Studio's key of a model)."),
    ] = None,
    draft: Annotated[
        Optional[str],  # noqa: UP045
        typer.Argument(help="GGUF file of the draft or drafter head; leave out for MTP inside the target and n-gram."),
    ] = None,
    method: options.MethodName = None,
    draft_max: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--draft-max", "-k", help="Draft length, or several to sweep: 3, 1,2,4,8 or 1-8."),
    ] = None,
    engine: Annotated[
        str, typer.Option("--engine", "-e", help="auto, embedded, or the path of a llama-server.")
    ] = "auto",
    url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--url", help="Measure a running llama-server or LM Studio instead, e.g. http://localhost:8080."),
    ] = None,
    baseline_url: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--baseline-url", help="With --url: a second llama-server, same model, no drafting."),
    ] = None,
    api_key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--api-key", envvar="LM_API_TOKEN", help="With --url: its API token."),
    ] = None,
    task: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--task", "-t", help="Kinds of text, comma separated; default code,chat,summarise. mixed = all."),
    ] = None,
    prompts: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--prompts", help="Own prompts: .jsonl, .json, or text separated by lines of ---."),
    ] = None,
    per_task: Annotated[int, typer.Option("--per-task", min=1, help="Shipped prompts per task.")] = 2,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=8, help="Most tokens generated per request.")] = 96,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Most repetitions; stops earlier when sure.")] = 5,
    precision: Annotated[
        float, typer.Option("--precision", min=0.005, max=0.5, help="Interval half-width that is narrow enough.")
    ] = 0.05,
    force_acceptance: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(
            "--force-acceptance",
            min=0,
            max=1,
            help="Pretend this acceptance: measures the round cost R(k) apart from content (recent builds).",
        ),
    ] = None,
    context: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--context", "-c", min=256, help="Context size of the servers; default: what the prompts need."),
    ] = None,
    threads: Annotated[Optional[int], typer.Option("--threads", min=1, help="CPU threads.")] = None,  # noqa: UP045
    gpu_layers: options.GpuLayers = None,
    engine_args: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--engine-arg", help="One more llama-server argument for both arms; repeatable."),
    ] = None,
    hardware: options.HardwareName = "auto",
    backend: options.BackendName = None,
    force: Annotated[bool, typer.Option("--force", help="Run although the pair is known not to work.")] = False,
    save: Annotated[bool, typer.Option(help="Append the result to the local results file.")] = True,
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """Prove a prediction: run llama.cpp with and without drafting on the same prompts and compare.

    Exit codes: 0 confirmed, 10 refuted, 11 inconclusive, 12 nothing was drafted, 4 engine trouble, 2 bad input.

    \b
    Examples:
      advisor confirm target.gguf draft.gguf
      advisor confirm target.gguf draft.gguf --draft-max 1-8 --task code
      advisor confirm target.gguf --method ngram-simple --task code-edit
      advisor confirm --url http://localhost:1234 qwen2.5-7b qwen2.5-0.5b -k 1-8

    LM Studio takes a draft length per request through its SDK only: pip install 'draft-advisor[lmstudio]'.
    """
    from advisor.errors import InputError
    from advisor.llamacpp.confirm import confirm as run
    from advisor.llamacpp.find import find_engine
    from advisor.llamacpp.prompts import DEFAULT_TASKS, prompts_for, read_prompts

    if prompts is not None and task is not None:
        raise InputError("Give --task or --prompts, not both.")
    tasks = [t for name in (task or "").split(",") if name.strip() and (t := options.task_of(name.strip()))]
    asked = read_prompts(prompts) if prompts is not None else prompts_for(tasks or DEFAULT_TASKS, per_task)
    chosen = options.method_of(method)
    if url is not None:
        if engine != "auto" or engine_args or force_acceptance is not None or html is not None:
            raise InputError(
                "--engine, --engine-arg, --force-acceptance and --html have no meaning for a server that already runs.",
                "Leave them out, or leave --url out.",
            )
        result = _running(
            url, baseline_url, api_key, target, draft, chosen, draft_max, asked, tokens, repeat, precision, hardware,
            backend, tasks[0] if len(tasks) == 1 else None, json,
        )  # fmt: skip
        _finish(result, save, json)
    if target is None:
        raise InputError("No target was named.", "Give a GGUF file, or --url of a running server.")
    found = find_engine(engine)
    with progress_bar(quiet=json) as report:
        result = run(
            target,
            draft,
            method=chosen,
            draft_max=lengths(draft_max),
            engine=found,
            prompts=asked,
            max_tokens=tokens,
            repetitions=(min(2, repeat), repeat),
            precision=precision,
            forced_acceptance=force_acceptance,
            context=context,
            threads=threads,
            gpu_layers=gpu_layers,
            extra=tuple(engine_args or ()),
            predictor=_predictor(
                target, draft, chosen, hardware, backend, gpu_layers, tasks[0] if len(tasks) == 1 else None
            ),
            progress=report,
            force=force,
        )
    if html is not None:
        from advisor.report.html import write_html

        shown = tasks[0] if len(tasks) == 1 else None
        write_html(html, _parts(result, target, draft, chosen, hardware, backend, gpu_layers, shown))
    _finish(result, save, json)


def _finish(result: Confirmation, save: bool, json: bool) -> NoReturn:
    """Store, show, and end with the exit code of the verdict."""
    if save:
        from advisor.llamacpp.results import append_result

        append_result(result)
    if json:
        typer.echo(result.model_dump_json(indent=2))
    else:
        from advisor.report.console import console

        out = console()
        out.print(screen(result))
    if not result.complete:
        from advisor.errors import EXIT_INTERRUPTED

        raise typer.Exit(EXIT_INTERRUPTED)
    raise typer.Exit(result.exit_code)


def _running(
    url: str,
    baseline_url: str | None,
    api_key: str | None,
    target: str | None,
    draft: str | None,
    method: Method | None,
    draft_max: str | None,
    prompts: Sequence[Prompt],
    tokens: int,
    repeat: int,
    precision: float,
    hardware: str,
    backend: str | None,
    task: str | None,
    quiet: bool,
) -> Confirmation:
    """A server that somebody else started."""
    from advisor.errors import AdvisorError
    from advisor.llamacpp.remote import confirm_server, describe_server

    predictor = None
    served = describe_server(url, api_key)
    if served is not None and Path(served).is_file():
        try:
            predictor = _predictor(served, draft, method, hardware, backend, None, task)
        except AdvisorError:
            predictor = None  # without a description there is a measurement, only no comparison
    with progress_bar(quiet=quiet) as report:
        return confirm_server(
            url,
            target=target,
            draft=draft,
            method=method or "draft-simple",
            draft_max=lengths(draft_max) or 3,
            baseline_url=baseline_url,
            api_key=api_key,
            prompts=prompts,
            max_tokens=tokens,
            repetitions=(min(2, repeat), repeat),
            precision=precision,
            predictor=predictor,
            progress=report,
        )


def lengths(text: str | None) -> tuple[int, ...] | None:
    """Draft lengths from ``3``, ``1,2,4`` or ``1-8``.

    Raises:
        InputError: not of that form.
    """
    from advisor.errors import InputError
    from advisor.text import clean

    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InputError(f"{clean(text)!r} is no draft length.", "Write 3, or 1,2,4,8, or 1-8.")
        found += range(int(first), int(last if dash else first) + 1)
    if not found or len(found) > 64:
        raise InputError(f"{clean(text)!r} is no usable list of draft lengths.", "Write 3, or 1,2,4,8, or 1-8.")
    return tuple(found)


def _predictor(
    target: str,
    draft: str | None,
    method: Method | None,
    hardware: str,
    backend: str | None,
    gpu_layers: int | None,
    task: str | None,
) -> Predictor:
    """What the advisor would have said, asked before and after the acceptance is known."""
    from advisor.cli.common import setup_of
    from advisor.models.reference import describe
    from advisor.speculation.predict import predict

    models = describe(target), describe(draft) if draft else None
    setup = setup_of(hardware, backend, None, None, gpu_layers=gpu_layers)

    def ask(k: int, acceptance: float | None) -> Prediction:
        return predict(
            *models,
            setup=setup,
            method=method,
            draft_max=k,
            acceptance=acceptance,
            task=options.task_of(task) if acceptance is None else None,
            depth=128,
            context=2048,
            force=True,
        )

    return ask


def _parts(
    result: Confirmation,
    target: str,
    draft: str | None,
    method: Method | None,
    hardware: str,
    backend: str | None,
    gpu_layers: int | None,
    task: str | None,
) -> list[Reportable]:
    """What the report shows: the blind prediction with the measurement beside it, and the measured tables."""
    from advisor.cli.common import setup_of
    from advisor.models.reference import describe
    from advisor.report.build import confirmed, sheet_of

    told = result.comparison.draft_max if result.comparison else result.measurement.draft_max
    prediction = _predictor(target, draft, method, hardware, backend, gpu_layers, task)(told, None)
    models = describe(target), describe(draft) if draft else None
    setup = setup_of(hardware, backend, None, None, gpu_layers=gpu_layers)
    sheet = sheet_of(prediction, *models, setup, task=options.task_of(task), temperature=0.0)
    return [confirmed(sheet, result), result]


class progress_bar:  # noqa: N801 - used like a function
    """A bar on standard error; nothing when the answer is for a program or nobody looks."""

    def __init__(self, quiet: bool) -> None:
        import sys

        self._show = not quiet and sys.stderr.isatty()

    def __enter__(self):  # type: ignore[no-untyped-def]  # rich is imported late
        if not self._show:
            return None
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(20),
            TextColumn("{task.fields[left]}", markup=False),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("starting", total=None, left="")
        self._bar.start()

        def report(p):  # type: ignore[no-untyped-def]
            left = "" if p.remaining is None else f"about {p.remaining:.0f} s left"
            self._bar.update(self._task, completed=p.done, total=p.total, description=p.message[:50], left=left)

        return report

    def __exit__(self, *_: object) -> None:
        if self._show:
            self._bar.stop()


def screen(result: Confirmation) -> Group:
    """The result as one screen."""
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from advisor.text import clean

    words = {
        "confirmed": "Confirmed: the measurement bears the prediction out.",
        "refuted": "Refuted: the measurement contradicts the prediction.",
        "inconclusive": "Inconclusive: the measurement does not decide.",
        "measured": "Measured.",
    }
    pair = clean(result.target, 60) + (f" + {clean(result.draft, 60)}" if result.draft else "")
    parts: list[RenderableType] = [
        Text(words[result.verdict], style="bold"),
        Text(f"{pair}, {result.method}, {clean(result.engine)} (measured here)"),
        Text(),
    ]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("k", "plain", "drafting", "speedup", "95 % range", "accepted", "tau", "R(k)"):
        table.add_column(name, justify="right", no_wrap=True)
    for m in result.measurements:
        table.add_row(
            str(m.draft_max),
            f"{m.baseline_tps:.1f}",
            f"{m.speculative_tps:.1f}",
            f"{m.speedup.median:.2f}x",
            f"{m.speedup.low:.2f}-{m.speedup.high:.2f}",
            f"{m.acceptance:.0%}" + (" forced" if result.forced_acceptance is not None else ""),
            f"{m.mean_accepted_length:.2f}",
            f"{m.round_cost.median:.2f}",
        )
    parts += [
        table,
        Text("plain, drafting: tok/s; tau: tokens per round; R(k): decode steps per round", style="dim"),
        Text(),
    ]
    m = result.measurement
    prompts = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("prompt", "plain", "drafting", "speedup", "accepted", "same text"):
        prompts.add_column(name, justify="left" if name == "prompt" else "right", no_wrap=True)
    for p in m.prompts:
        same = "-" if result.forced_acceptance is not None else "yes" if p.identical else f"to token {p.divergence}"
        prompts.add_row(
            clean(p.id, 24),
            f"{p.baseline_tps:.1f}",
            f"{p.speculative_tps:.1f}",
            f"{p.speedup:.2f}x",
            f"{p.accepted}/{p.drafted}",
            same,
        )
    parts += [prompts, Text()]
    # A server that somebody else started does not tell its memory.
    memory = (
        f"; memory {m.baseline_memory / 1e6:.0f} and {m.speculative_memory / 1e6:.0f} MB" if m.baseline_memory else ""
    )
    first = f"First token after {m.baseline_ttft_ms:.0f} ms plain, {m.speculative_ttft_ms:.0f} ms drafting"
    parts.append(Text(f"{first}{memory}."))
    if len(result.measurements) > 1:
        best = result.best_draft_max
        parts.append(
            Text(f"Fastest draft length here: {best}." if best else "No draft length is faster than plain decoding.")
        )
    parts += [Text(clean(r, 400)) for r in result.reasons]
    return Group(*parts)
