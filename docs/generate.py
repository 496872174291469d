"""Keeps help texts and sample outputs in the documentation true: they are outputs, not copies.

A block in README.md or docs/*.md

    <!-- generated: advisor predict TARGET DRAFT --hardware 395 -->
    <!-- end -->

is filled with that command and what it prints. ``make docs`` rewrites all blocks; ``--check`` only compares, and the
tests do the same. Only deterministic commands belong here: help texts, and predictions for a named machine.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- generated: (?P<source>[^\n]+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)
COLUMNS = 80


class Block(NamedTuple):
    """One generated block as it stands in a file."""

    path: Path
    source: str
    body: str


def pages() -> list[Path]:
    """The files that may hold generated blocks."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks() -> list[Block]:
    """All generated blocks of all pages."""
    found = []
    for path in pages():
        for match in BLOCK.finditer(path.read_text(encoding="utf-8")):
            found.append(Block(path, match["source"], match["body"]))
    return found


def body_of(source: str) -> str:
    """What belongs between the markers of a block.

    Raises:
        ValueError: a source that is neither an ``advisor`` command nor one of the named tables.
    """
    if source == "exit codes":
        return _exit_codes()
    if source == "make help":
        return _make_help()
    words = shlex.split(source)
    if words[:1] != ["advisor"]:
        raise ValueError(f"cannot generate {source!r}")
    return f"\n```console\n$ {source}\n{run(words[1:]).rstrip()}\n```\n\n"


def run(arguments: list[str]) -> str:
    """Standard output of ``advisor ARGUMENTS`` on an 80-column terminal without colour, calibration or network.

    Raises:
        RuntimeError: the command failed.
    """
    from advisor.cli.main import app

    output = io.StringIO()
    with quiet_surroundings(), contextlib.redirect_stdout(output):
        try:
            app(arguments, prog_name="advisor", standalone_mode=False)
        except SystemExit as end:
            if end.code not in (0, None):
                raise RuntimeError(f"advisor {' '.join(arguments)} ended with {end.code}") from end
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


@contextlib.contextmanager
def quiet_surroundings() -> Iterator[None]:
    """An environment in which the same command prints the same everywhere: no calibration, cache, colour or hub."""
    with tempfile.TemporaryDirectory(prefix="advisor-docs-") as empty:
        fixed = {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "TERM": "dumb", "HF_HUB_OFFLINE": "1"}
        fixed |= dict.fromkeys(("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"), empty)
        before = {name: os.environ.get(name) for name in (*fixed, "FORCE_COLOR", "LINES")}
        os.environ.update(fixed)
        os.environ.pop("FORCE_COLOR", None)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _exit_codes() -> str:
    from advisor import errors

    meaning = {
        "EXIT_OK": "answered",
        "EXIT_INPUT": "bad input: a file, name or option that cannot be used",
        "EXIT_NETWORK": "the Hub could not be reached, or refused",
        "EXIT_ENGINE": "llama.cpp could not be found, started or kept alive",
        "EXIT_REFUTED": "measured, and the prediction was wrong",
        "EXIT_INCONCLUSIVE": "measured, but too noisy to tell",
        "EXIT_NOT_DRAFTED": "the engine ran but drafted nothing",
        "EXIT_INTERRUPTED": "interrupted",
    }
    codes = {name: value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    if codes.keys() != meaning.keys():
        raise ValueError(f"exit codes changed: {sorted(codes.keys() ^ meaning.keys())}")
    rows = "".join(f"| {codes[name]} | {text} |\n" for name, text in meaning.items())
    return f"\n| code | meaning |\n|---|---|\n{rows}\n"


def _make_help() -> str:
    rows = re.findall(r"^([a-z]+):.*?## (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return "\n| command | what it does |\n|---|---|\n" + "".join(f"| `make {n}` | {t} |\n" for n, t in rows) + "\n"


def regenerate(path: Path) -> str:
    """The text of a page with all its blocks made anew."""
    return BLOCK.sub(
        lambda match: f"<!-- generated: {match['source']} -->\n{body_of(match['source'])}<!-- end -->",
        path.read_text(encoding="utf-8"),
    )


def main() -> int:
    """Rewrite the pages, or with ``--check`` print what differs; 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a page is out of date")
    check = parser.parse_args().check
    stale = 0
    for path in pages():
        old, new = path.read_text(encoding="utf-8"), regenerate(path)
        if old == new:
            continue
        stale += 1
        name = str(path.relative_to(ROOT))
        if check:
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), new.splitlines(True), name, "generated"))
        else:
            path.write_text(new, encoding="utf-8")
            print(f"rewrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
