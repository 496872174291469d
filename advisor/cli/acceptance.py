"""`advisor acceptance`: what share of drafts will be accepted, what that rests on, and what it is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from advisor.cli import options

if TYPE_CHECKING:
    from advisor.hardware.machine import Setup
    from advisor.models.description import ModelDescription
    from advisor.speculation.overview import AcceptanceReport, ReplayOutlook, TaskOutlook
    from advisor.speculation.prediction import Task

app = typer.Typer()


@app.command()
def acceptance(
    target: Annotated[str, typer.Argument(help=options.MODEL_HELP, autocompletion=options.complete_model)],
    draft: Annotated[
        Optional[str],  # noqa: UP045 - typer reads the annotation at run time, on Python 3.10 too
        typer.Argument(
            help="Draft model or drafter head; leave out for MTP inside the target or an n-gram method.",
            autocompletion=options.complete_model,
        ),
    ] = None,
    method: options.MethodName = None,
    task: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--task", "-t", help="Kind of text, or all for a table over all kinds; default: any text."),
    ] = None,
    draft_max: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--draft-max", "-k", min=1, help="Most tokens drafted per round; default: llama.cpp's."),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="Sampling temperature.")] = 0.0,
    sample: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--sample", help="Replay the n-gram methods on this chat, text file or folder."),
    ] = None,
    hardware: options.HardwareName = "auto",
    backend: options.BackendName = None,
    bandwidth: options.Bandwidth = None,
    memory: options.Memory = None,
    json: options.Json = False,
) -> None:
    """Say which acceptance to expect of a pair, by task, with the evidence, and from which acceptance on it wins.

    \b
    Examples:
      advisor acceptance qwen3.8-27b:Q4_K_M --task all -H "RTX 3090"
      advisor acceptance qwen3.5-27b:Q8_0 qwen3.5-2b:Q8_0 --task code-edit
      advisor acceptance my-model.gguf --sample chats.jsonl
    """
    from advisor.errors import InputError
    from advisor.models.reference import describe
    from advisor.speculation.overview import TASKS, overview
    from advisor.speculation.predict import default_draft_max, infer_method

    tasks: tuple[Task | None, ...] = TASKS if task == "all" else (options.task_of(task),)
    target_model = describe(target)
    draft_model = describe(draft) if draft is not None else None
    chosen = options.method_of(method)
    if chosen == "none":
        raise InputError("Without speculation nothing is drafted or accepted.", "Name another method.")
    if chosen is None:
        without = draft_model is None and target_model.mtp is None
        chosen = "ngram-mod" if sample is not None and without else infer_method(target_model, draft_model)
    setup, notes = _setup(hardware, backend, bandwidth, memory)
    report = overview(
        target_model,
        draft_model,
        chosen,
        tasks=tasks,
        draft_max=draft_max if draft_max is not None else default_draft_max(chosen),
        temperature=temperature,
        setup=setup,
    )
    if sample is not None:
        replays, more = _replays(target_model, sample, None if task == "all" else tasks[0], setup)
        report = report.model_copy(update={"replays": replays})
        notes += more
    report = report.model_copy(update={"notes": notes})
    if json:
        typer.echo(report.model_dump_json(indent=2))
    else:
        _show(report)


def _setup(
    hardware: str, backend: str | None, bandwidth: float | None, memory: float | None
) -> tuple[Setup | None, tuple[str, ...]]:
    """The machine; None with a note if this one is not recognised: acceptance does not depend on it."""
    from advisor.cli.common import setup_of
    from advisor.errors import UnknownHardwareError

    try:
        return setup_of(hardware, backend, bandwidth, memory), ()
    except UnknownHardwareError as error:
        if hardware != "auto":
            raise
        return None, (f"No speeds: {error}",)


def _replays(
    target: ModelDescription, sample: Path, task: Task | None, setup: Setup | None
) -> tuple[tuple[ReplayOutlook, ...], tuple[str, ...]]:
    from advisor.errors import InputError
    from advisor.speculation.overview import replay_outlook, replay_sample
    from advisor.speculation.rounds import rollback_class
    from advisor.speculation.vocabulary import read_vocabulary
    from advisor.text import clean

    if not target.files:
        raise InputError(
            f"{clean(target.name)} is known by name only, and its vocabulary is needed to replay text.",
            "Give the .gguf file as the target.",
        )
    vocabulary = read_vocabulary(target.files[0])
    sums = replay_sample(sample, vocabulary, task=task, checkpoint=rollback_class(target, "ngram-mod") == "checkpoint")
    notes = () if vocabulary.exact else ("The pre-tokenizer of this model is not known here: token counts are near.",)
    lines = tuple(replay_outlook(replay, kind, target, setup) for (kind, _), replay in sorted(sums.items()))
    return lines, notes


def _show(report: AcceptanceReport) -> None:
    from rich.table import Table

    from advisor.report.console import console as make_console
    from advisor.report.console import format_range, kind_note, printable
    from advisor.report.terminal import METHOD_NAMES

    console = make_console()
    plain = console.encoding.lower() != "utf-8"
    pair = report.target + (f" + {report.draft}" if report.draft else "")
    where = f", {report.hardware}" if report.hardware else ""
    console.print(
        printable(
            f"{pair}: {METHOD_NAMES[report.method]}, draft length {report.draft_max}, "
            f"temperature {report.temperature:g}{where}",
            plain,
        )
    )
    if len(report.tasks) == 1:
        for line in _details(report.tasks[0]):
            console.print(printable(line, plain))
    else:
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        for name in ("task", "accepted", "tokens/round"):
            table.add_column(name, no_wrap=True)
        if report.hardware:
            for name in ("speedup", "faster", "wins from"):
                table.add_column(name, no_wrap=True)
        for one in report.tasks:
            cells = [one.task or "any", format_range(one.acceptance.rate, "%"), _tokens(one)]
            if one.speedup is not None and one.probability_faster is not None:
                cells += [format_range(one.speedup, "x"), _chance(one.probability_faster), _even(one)]
            table.add_row(*(printable(cell, plain) for cell in cells))
        console.print(table)
        console.print("Ranges hold 80 %. faster: how likely it gains at all; wins from: break-even acceptance.")
        for kind, evidence, tasks in _sources(report.tasks):
            console.print(printable(f"{', '.join(tasks)}: {kind_note(kind)}: {evidence}", plain))
    if report.replays:
        console.print()
        console.print("N-gram methods replayed on your text:")
        table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
        for name in ("task", "method", "drafted", "accepted", "per pass", "rounds"):
            table.add_column(name, no_wrap=True, justify="left" if name in ("task", "method") else "right")
        if report.hardware:
            table.add_column("speedup", no_wrap=True)
        for r in report.replays:
            share = f"{r.acceptance:.0%}" if r.acceptance is not None else "-"
            cells = [r.task, r.replay.method, f"{r.replay.drafted:,}", f"{r.replay.accepted:,} ({share})"]
            cells += [f"{r.mean_accepted_length:.2f}", f"{r.draft_share:.1%}"]
            if r.speedup is not None:
                cells.append(format_range(r.speedup, "x"))
            table.add_row(*cells)
        console.print(table)
        console.print("per pass: tokens per pass of the target; rounds: share of rounds that drafted anything.")
    for note in report.notes:
        console.print(printable(note, plain))


def _tokens(one: TaskOutlook) -> str:
    m = one.mean_accepted_length
    return f"{m.median:.2f} ({m.low:.2f}-{m.high:.2f})"


def _chance(p: float) -> str:
    return "<1%" if p < 0.005 else ">99%" if p > 0.995 else f"{p:.0%}"


def _even(one: TaskOutlook) -> str:
    return "never" if one.break_even_acceptance is None else f"{one.break_even_acceptance:.0%}"


def _details(one: TaskOutlook) -> list[str]:
    from advisor.report.console import format_range, kind_note

    estimate = one.acceptance
    shown = one.survival[:8]
    lines = [
        f"accepted / drafted   {format_range(estimate.rate, '%')}, 80 % range; {kind_note(estimate.kind)}",
        f"tokens per round     {_tokens(one)}, the target's own token included",
        f"calls saved          {format_range(one.calls_saved, '%')} of the target's passes",
        "kept at position i   " + "  ".join(f"{i}: {s:.0%}" for i, s in enumerate(shown, 1)),
    ]
    if estimate.draft_share < 1:
        lines.append(f"rounds that draft    {estimate.draft_share:.0%}")
    lines.append(f"evidence             {estimate.evidence}")
    if one.speedup is not None and one.probability_faster is not None:
        chance = _chance(one.probability_faster)
        lines.append(f"speedup              {format_range(one.speedup, 'x')}, {chance} likely to be faster")
        if one.break_even_acceptance is None:
            lines.append("break-even           none: it would lose even if every draft were accepted")
        elif one.margin is not None:
            side = "above" if one.margin >= 0 else "below"
            lines.append(
                f"break-even           {one.break_even_acceptance:.0%}; the estimate is "
                f"{abs(100 * one.margin):.0f} points {side}"
            )
        if one.speedup.low < 1 < one.speedup.high and one.confirm_seconds is not None:
            minutes = max(1, round(one.confirm_seconds / 60))
            lines.append(f"too wide to say?     `advisor confirm` measures it in about {minutes} min")
    return lines


def _sources(tasks: tuple[TaskOutlook, ...]) -> list[tuple[str, str, list[str]]]:
    """Evidence with the tasks it holds for, in order of first use."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in tasks:
        found.setdefault((one.acceptance.kind, one.acceptance.evidence), []).append(one.task or "any")
    return [(kind, evidence, names) for (kind, evidence), names in found.items()]
