"""The user's own text as (prompt, output) pairs: chats and prompt/answer files as they are, plain text cut in two.

Formats: ``.json`` and ``.jsonl`` with ``messages`` (OpenAI style, also what LM Studio stores) or with ``prompt`` and
``response``; every other text file counts as a prompt (its first half) that was continued (its second half).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, get_args

from advisor.errors import InputError
from advisor.speculation.prediction import Task
from advisor.text import clean

LARGEST = 8 << 20
"""Text read in all [bytes]; replaying takes seconds per megabyte."""
MOST_FILES = 2000
TASKS: tuple[Task, ...] = get_args(Task)
_CODE_SUFFIXES = (
    "py js ts tsx jsx c h cc cpp hpp cs java kt go rs rb php swift scala sh ps1 sql lua r m html css toml yaml yml ini "
    "cmake mk zig jl dart vue"
)
_CODE = frozenset(f".{suffix}" for suffix in _CODE_SUFFIXES.split())
_TEXT = frozenset({".txt", ".md", ".rst", ".tex", ".log", ".csv", ".xml", ""})
_ANSWER = ("response", "output", "completion", "answer")


class Turn(NamedTuple):
    """One thing somebody said: ``generated`` if a model did."""

    text: str
    generated: bool


class Conversation(NamedTuple):
    """Turns in order, the kind of text, and where it came from."""

    turns: tuple[Turn, ...]
    task: Task
    source: str


def read_sample(path: Path, task: Task | None = None) -> tuple[Conversation, ...]:
    """All conversations of a file, or of the text files of a folder and the folders in it.

    Args:
        path: file or folder.
        task: kind of text; None = as the file says, else by its name: code or prose.

    Raises:
        InputError: nothing usable there, too much of it, or a damaged file, with its name.
    """
    found: list[Conversation] = []
    left = LARGEST
    for file in _files(path):
        text, size = _read(file, left)
        left -= size
        if text.strip():
            found.extend(_conversations(file, text, task))
    if not any(t.generated for c in found for t in c.turns):
        raise InputError(
            f"{clean(str(path))} holds no text that could be replayed.",
            "Give a chat (.json, .jsonl), a text file or a folder of them.",
        )
    return tuple(found)


def _files(path: Path) -> list[Path]:
    try:
        if path.is_file():
            return [path]
        if not path.is_dir():
            raise InputError(f"{clean(str(path))} does not exist.", "Give a text file, a chat or a folder.")
        files = []
        for file in sorted(path.rglob("*")):
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if not hidden and file.suffix.lower() in _CODE | _TEXT | {".json", ".jsonl"} and file.is_file():
                files.append(file)
            if len(files) > MOST_FILES:
                raise InputError(f"{clean(str(path))} holds more than {MOST_FILES} text files.", "Give a smaller one.")
        return files
    except OSError as error:
        raise InputError(f"{clean(str(path))} cannot be read: {error.strerror or error}.") from None


def _read(file: Path, left: int) -> tuple[str, int]:
    try:
        with file.open("rb") as stream:
            data = stream.read(left + 1)
    except OSError as error:
        raise InputError(f"{clean(str(file))} cannot be read: {error.strerror or error}.") from None
    if len(data) > left:
        raise InputError(f"The sample holds more than {LARGEST >> 20} MiB of text.", "Give less of it.")
    if b"\0" in data[:4096]:
        raise InputError(f"{clean(str(file))} is not a text file.", "Give a text file, a chat or a folder of them.")
    return data.decode("utf-8-sig", "replace"), len(data)


def _conversations(file: Path, text: str, task: Task | None) -> Iterator[Conversation]:
    suffix = file.suffix.lower()
    if suffix == ".jsonl":
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                yield from _structured(_parse(line, f"line {number} of {file.name}"), file, task)
    elif suffix == ".json":
        yield from _structured(_parse(text, file.name), file, task)
    else:
        middle = _boundary(text)
        kind: Task = task or ("code" if suffix in _CODE else "prose")
        yield Conversation((Turn(text[:middle], False), Turn(text[middle:], True)), kind, str(file))


def _boundary(text: str) -> int:
    """The end of the line nearest to the middle, so that no word is cut."""
    after = text.find("\n", len(text) // 2)
    return after + 1 if 0 <= after < len(text) - 1 else len(text) // 2


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"{clean(where)} is not valid JSON.") from None


def _structured(value: Any, file: Path, task: Task | None) -> Iterator[Conversation]:
    if isinstance(value, list) and not any(_is_message(v) for v in value):
        for item in value:
            yield from _structured(item, file, task)
        return
    messages = value if isinstance(value, list) else value.get("messages") if isinstance(value, dict) else None
    stated = value.get("task") if isinstance(value, dict) else None
    turns: list[Turn] = []
    if isinstance(messages, list):
        turns = [Turn(text, role == "assistant") for role, text in map(_message, messages) if text]
    elif isinstance(value, dict):
        answer = next((value[k] for k in _ANSWER if isinstance(value.get(k), str)), None)
        if isinstance(value.get("prompt"), str) and answer:
            turns = [Turn(value["prompt"], False), Turn(answer, True)]
    if any(t.generated for t in turns):
        kind: Task = "chat"
        for known in TASKS:
            if known == stated:
                kind = known
        yield Conversation(tuple(turns), task if task is not None else kind, str(file))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and ("role" in value or "versions" in value)


def _message(value: Any) -> tuple[str, str]:
    """(role, text) of one message; LM Studio keeps several versions of each and the index of the one shown."""
    if not isinstance(value, dict):
        return "", ""
    versions = value.get("versions")
    if isinstance(versions, list) and versions:
        chosen = value.get("currentlySelected")
        index = chosen if isinstance(chosen, int) and 0 <= chosen < len(versions) else 0
        return _message(versions[index])
    steps = value.get("steps")
    content = steps if isinstance(steps, list) else value.get("content")
    role = value.get("role")
    return role if isinstance(role, str) else "", _text(content)


def _text(content: Any, depth: int = 0) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text(part, depth + 1) for part in content)
    if isinstance(content, dict) and depth < 8:
        return _text(content.get("text", content.get("content")), depth + 1)
    return ""


def requests(conversation: Conversation, encode: Callable[[str], list[int]]) -> Iterator[tuple[list[int], list[int]]]:
    """(prompt, output) tokens of each generated turn, the prompt being all that came before it."""
    history: list[int] = []
    for turn in conversation.turns:
        tokens = encode(turn.text)
        if turn.generated and tokens:
            yield list(history), tokens
        history.extend(tokens)
