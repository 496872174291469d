"""The local results file: every confirmation as one JSON line, so that later predictions can learn from it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

from advisor.errors import InputError
from advisor.llamacpp.confirm import SCHEMA_VERSION, Confirmation
from advisor.resources import user_data_dir
from advisor.text import clean

FILE_NAME = "results.jsonl"
data_dir = user_data_dir


def append_result(result: Confirmation, path: Path | None = None) -> Path:
    """Add one record; the line is written at once, so a crash cannot leave half of one behind others.

    Raises:
        InputError: the file cannot be written.
    """
    path = path or user_data_dir() / FILE_NAME
    line = json.dumps(result.model_dump(mode="json"), ensure_ascii=True, separators=(",", ":")) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            # A machine that lost power in the middle of a line must not spoil the next one as well.
            size = os.fstat(descriptor).st_size
            if size and os.name == "posix" and os.pread(descriptor, 1, size - 1) != b"\n":
                line = "\n" + line
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"The results file {clean(str(path))} cannot be written: {error.strerror or error}.") from None
    return path


def read_results(path: Path | None = None) -> tuple[Confirmation, ...]:
    """All usable records, oldest first; damaged lines and those of other schema versions are left out."""
    return tuple(_read(path or user_data_dir() / FILE_NAME))


def _read(path: Path) -> Iterator[Confirmation]:
    from pydantic import ValidationError

    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                try:
                    value = json.loads(line)
                    if isinstance(value, dict) and value.get("schema_version") == SCHEMA_VERSION:
                        yield Confirmation.model_validate(value)
                except (ValueError, ValidationError):
                    continue
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"The results file {clean(str(path))} cannot be read: {error.strerror or error}.") from None
