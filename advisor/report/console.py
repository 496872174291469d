"""The terminal every command prints to, and how its numbers are written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from advisor.base import Figure, Range
from advisor.text import clean

if TYPE_CHECKING:
    from rich.console import Console

KIND_NOTES: dict[str, str] = {
    "given": "given on the command line",
    "measured": "measured on this machine",
    "published": "from a published document",
    "fitted": "fitted to published measurements",
    "assumed": "assumed: no data",
}
"""Plain words for the provenance of a number, by kind."""

_ASCII = str.maketrans({
    "×": "x", "…": "...", "–": "-", "—": "-", "·": "-", "→": "->", "≥": ">=", "≤": "<=", "≈": "~", "±": "+-",
    "“": '"', "”": '"', "‘": "'", "’": "'", "\N{REPLACEMENT CHARACTER}": "?", "\N{NO-BREAK SPACE}": " ",
})  # fmt: skip


def console(width: int | None = None, stderr: bool = False) -> Console:
    """A rich console on standard output (or error): no markup, no emoji, no guessing of what to highlight.

    ``width`` [columns] overrides the terminal's; a pipe gets ``$COLUMNS``, else 80. Characters the encoding of the
    stream lacks are replaced instead of raising, because a model name may hold any of them.
    """
    from rich.console import Console

    stream: Any = sys.stderr if stderr else sys.stdout
    if getattr(stream, "errors", None) == "strict" and hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")

    class Uncropped(Console):
        """Never cuts a line: what cannot be wrapped (a command to copy) runs on, and the terminal folds it."""

        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*objects, **{"crop": False, **options})

    return Uncropped(width=width, stderr=stderr, markup=False, emoji=False, highlight=False)


def printable(text: str, ascii_only: bool = False, limit: int = 600) -> str:
    """``text`` without control characters, at most ``limit`` long; typographic signs spelt out if ``ascii_only``."""
    shown = clean(text, limit)
    return shown.translate(_ASCII) if ascii_only else shown


def format_bytes(count: float) -> str:
    """Bytes in decimal units with three digits: ``27.5 GB``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.0f} B" if unit == "B" else f"{format_number(size)} {unit}"
        size /= 1000
    return f"{format_number(size)} TB"


def format_memory(count: float) -> str:
    """Bytes of memory in binary units, as cards are sold and llama.cpp prints them: ``23.5 GiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1023.5:
            return f"{size:.0f} B" if unit == "B" else f"{format_number(size)} {unit}"
        size /= 1024
    return f"{format_number(size)} TiB"


def format_number(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits and no exponent: ``7.09``, ``40.1``, ``1280``."""
    if value != value or value in (float("inf"), float("-inf")):
        return "?"
    if value == 0:
        return "0"
    from math import floor, log10

    decimals = digits - 1 - floor(log10(abs(value)))
    rounded = round(value, decimals)
    if rounded and floor(log10(abs(rounded))) > floor(log10(abs(value))):
        decimals -= 1  # 9.996 became 10.00
    return f"{rounded:.{max(decimals, 0)}f}"


def format_speedup(value: float) -> str:
    """A ratio with two decimals: ``1.58x``."""
    return f"{value:.2f}x"


def format_range(interval: Range, unit: str = "", digits: int = 3) -> str:
    """Median and interval: ``11.2 tok/s (9.9-12.6)``; the level belongs into the heading."""
    if interval.high - interval.low <= 1e-9 * abs(interval.median):  # stated, not estimated: no interval to show
        point = format_number(interval.median if unit != "%" else 100 * interval.median, digits)
        return format_speedup(interval.median) if unit == "x" else f"{point} {unit}".rstrip()
    if unit == "x":
        return f"{format_speedup(interval.median)} ({interval.low:.2f}-{interval.high:.2f})"
    if unit == "%":
        return f"{100 * interval.median:.0f} % ({100 * interval.low:.0f}-{100 * interval.high:.0f})"
    middle = format_number(interval.median, digits)
    ends = f"{format_number(interval.low, digits)}-{format_number(interval.high, digits)}"
    return f"{middle}{' ' + unit if unit else ''} ({ends})"


def format_figure(figure: Figure) -> str:
    """Value and unit: ``256 GB/s``."""
    return f"{format_number(figure.value)} {printable(figure.unit, limit=48)}".rstrip()


def kind_note(kind: str) -> str:
    """Plain words for a provenance: ``fitted`` is "fitted to published measurements"."""
    return KIND_NOTES.get(kind, clean(kind, 40))


def command_line(words: Sequence[str]) -> str:
    """A command to paste into the shell most users of this system have; see :mod:`advisor.advice.quoting`."""
    from advisor.advice.quoting import default_shell, join
    from advisor.errors import InputError

    try:
        return join(words, default_shell())
    except InputError:  # a name that PowerShell cannot pass on
        return join(words, "posix")


def argument(reference: str) -> str:
    """A model reference as a command argument: one that begins like an option is a file in this folder."""
    return f"./{reference}" if reference.startswith("-") else reference
