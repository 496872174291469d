"""Programs that stand for llama-server in the tests: fakes that misbehave, and the real engine behind a shim."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "engines"


def program(folder: Path, script: str, *arguments: str, name: str = "llama-server") -> str:
    """An executable that runs one of the scripts in tests/engines."""
    path = folder / name
    words = " ".join(f"'{x}'" for x in (sys.executable, str(FOLDER / script), *arguments))
    path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    path.chmod(0o755)
    return str(path)


def fake(folder: Path, behaviour: str, name: str = "llama-server") -> str:
    """A fake of the given behaviour (tests/engines/fake_server.py)."""
    return program(folder, "fake_server.py", behaviour, name=name)


def shim(folder: Path) -> str:
    """The real engine of the xllamacpp wheel behind the command line of llama-server."""
    return program(folder, "shim_server.py")
