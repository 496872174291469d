"""One status line on standard error while long work runs; nothing at all where nobody would see it move."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from advisor.text import clean


class Progress:
    """Callable as ``progress(what, done, total)``; use as a context manager, which wipes the line at the end."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet or not sys.stderr.isatty()
        self._status: Any = None

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show where the work is."""
        if self._quiet:
            return
        text = f"{clean(what, 60)} {done}/{total}"
        if self._status is None:
            from advisor.report.console import console

            self._status = console(stderr=True).status(text)
            self._status.start()
        else:
            self._status.update(text)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
