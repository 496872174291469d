"""Where the shipped data files are: inside the wheel, or at the top of a source checkout."""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_WHEEL = _PACKAGE / "_resources"


def user_data_dir() -> Path:
    """Where calibrations and results of this user are kept: ADVISOR_DATA_DIR, else the system's user data directory."""
    if chosen := os.environ.get("ADVISOR_DATA_DIR"):
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("draft-advisor", appauthor=False))


def resource(*parts: str) -> Path:
    """Path of a shipped file, e.g. ``resource("data", "models.json")``."""
    root = _WHEEL if _WHEEL.is_dir() else _PACKAGE.parent
    return root.joinpath(*parts)
