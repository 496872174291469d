"""What the models are asked while they are measured: own prompts by task, or the user's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from advisor.base import Frozen
from advisor.errors import InputError
from advisor.resources import resource
from advisor.speculation.prediction import Task
from advisor.text import clean

TASKS: tuple[Task, ...] = tuple(t for t in get_args(Task) if t != "mixed")
DEFAULT_TASKS: tuple[Task, ...] = ("code", "chat", "summarise")
_LARGEST = 8 << 20


class Prompt(Frozen):
    """One user message. ``raw`` = send it as it is, without the model's chat template."""

    id: str
    prompt: str
    task: Task | None = None
    raw: bool = False


def prompts_for(tasks: Sequence[Task] = DEFAULT_TASKS, per_task: int = 2) -> tuple[Prompt, ...]:
    """The shipped prompts, interleaved by task; ``mixed`` stands for all tasks.

    Raises:
        InputError: no task given.
    """
    wanted: list[Task] = []
    for task in tasks:
        wanted += [t for t in (TASKS if task == "mixed" else (task,)) if t not in wanted]
    if not wanted:
        raise InputError("No task was given.", f"Use one of {', '.join(TASKS)}.")
    columns = [read_prompts(resource("data", "prompts", f"{task}.jsonl"))[:per_task] for task in wanted]
    return tuple(column[i] for i in range(per_task) for column in columns if i < len(column))


def read_prompts(path: Path | str) -> tuple[Prompt, ...]:
    """Prompts from a file.

    ``.jsonl``: one object per line with ``prompt`` and optionally ``id``, ``task``, ``raw`` (or just a string);
    ``.json``: a list of the same; anything else: plain text, prompts separated by lines of ``---``.

    Raises:
        InputError: unreadable, empty, or not of that form, with the line.
    """
    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise InputError(f"{clean(str(path))} is larger than {_LARGEST >> 20} MiB.", "Give fewer prompts.")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{clean(str(path))} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{clean(str(path))} is not UTF-8 text.") from None
    entries: list[tuple[str, Any]]
    where = clean(path.name)
    if path.suffix == ".jsonl":
        entries = [
            (f"{where} line {i}", _json(line, f"{where} line {i}"))
            for i, line in enumerate(text.splitlines(), 1)
            if line.strip()
        ]
    elif path.suffix == ".json":
        values = _json(text, where)
        if not isinstance(values, list):
            raise InputError(f"{where} must be a list of prompts.")
        entries = [(f"{where} entry {i}", value) for i, value in enumerate(values, 1)]
    else:
        parts = "\n".join("\0" if line.strip() == "---" else line for line in text.splitlines()).split("\0")
        entries = [(f"{where} part {i}", part.strip()) for i, part in enumerate(parts, 1) if part.strip()]
    if not entries:
        raise InputError(f"{where} holds no prompt.")
    prompts = [_prompt(value, place, f"{path.stem}-{i}") for i, (place, value) in enumerate(entries, 1)]
    if len({p.id for p in prompts}) < len(prompts):
        raise InputError(f"{where} uses the same id twice.")
    return tuple(prompts)


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InputError(f"{where} is not valid JSON: {error}.") from None


def _prompt(value: Any, where: str, name: str) -> Prompt:
    if isinstance(value, str):
        value = {"prompt": value}
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str) or not value["prompt"].strip():
        raise InputError(f"{where} has no text in its field prompt.")
    task = value.get("task")
    if task is not None and task not in get_args(Task):
        raise InputError(f"{where}: there is no task {clean(str(task))}.", f"Use one of {', '.join(TASKS)}.")
    return Prompt(
        id=clean(str(value.get("id", name)), 60), prompt=value["prompt"], task=task, raw=bool(value.get("raw"))
    )
