"""Where the shipped data files are: inside the wheel, or at the top of a source checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_WHEEL = _PACKAGE / "_resources"


def resource(*parts: str) -> Path:
    """Path of a shipped file, e.g. ``resource("data", "models.json")``."""
    root = _WHEEL if _WHEEL.is_dir() else _PACKAGE.parent
    return root.joinpath(*parts)
