"""Measurement tables of other people: CSV with the columns of ``data/measurements.md``, none of them guaranteed."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from advisor.errors import InputError
from advisor.text import clean

TableKind = Literal["decode", "batch", "speculation"]
LARGEST_TABLE = 256 * 2**20
"""Files beyond this size [bytes] are not measurement tables."""


class Row(NamedTuple):
    """One line: its id, and its fields as text with surrounding blanks removed."""

    id: str
    fields: Mapping[str, str]

    def text(self, name: str) -> str:
        """The field, or an empty string if the table does not have it."""
        return self.fields.get(name, "")

    def number(self, name: str) -> float | None:
        """The field as a finite number; None if it is empty, missing or something else."""
        raw = self.fields.get(name, "").replace(",", "")
        if not raw:
            return None
        try:
            value = float(raw)
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def positive(self, name: str) -> float | None:
        """Like :meth:`number`, but None unless above zero."""
        value = self.number(name)
        return value if value is not None and value > 0 else None


class Table(NamedTuple):
    """A table and what it measures."""

    kind: TableKind
    rows: tuple[Row, ...]


def read_table(path: Path) -> Table:
    """Read a measurement table and recognise it by its columns.

    Raises:
        InputError: no such file, not readable as UTF-8 CSV, or the columns are those of no known table.
    """
    shown = clean(str(path))
    try:
        if path.stat().st_size > LARGEST_TABLE:
            raise InputError(f"{shown} is too large for a measurement table.")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            header = [clean(name.strip()) for name in reader.fieldnames or ()]
            reader.fieldnames = header
            kind = recognise(header)
            rows = tuple(_rows(reader))
    except OSError as error:
        raise InputError(f"{shown} cannot be read: {error.strerror or error}.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{shown} is not a UTF-8 CSV table: {error}.") from None
    if kind is None:
        raise InputError(
            f"The columns of {shown} are those of no known table.",
            "A decode table has tg128_tps, a batch table n_tokens and relative_time, a speculation table speedup "
            "and draft_max (data/measurements.md).",
        )
    return Table(kind, rows)


def _rows(reader: Iterable[Mapping[str | None, object]]) -> Iterable[Row]:
    for number, raw in enumerate(reader, start=1):
        fields = {
            name: clean(value.strip(), 2000)
            for name, value in raw.items()
            if isinstance(name, str) and isinstance(value, str)
        }
        yield Row(fields.get("id") or f"row {number}", fields)


def recognise(header: Iterable[str]) -> TableKind | None:
    """Which table these columns belong to."""
    names = set(header)
    if {"method", "draft_max"} <= names and names & {"speedup", "spec_tps"}:
        return "speculation"
    if "n_tokens" in names and names & {"relative_time", "ms"}:
        return "batch"
    if "tg128_tps" in names:
        return "decode"
    return None
