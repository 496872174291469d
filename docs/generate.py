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
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from advisor.speculation.prediction import Prediction

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- generated: (?P<source>[^\n]+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)
COLUMNS = 80


class Published(NamedTuple):
    """A pair somebody measured: the two rows that made this project, never used to fit anything."""

    target: str
    draft: str
    acceptance: float
    without: float
    with_draft: float


ARTICLE = (
    Published("qwen3.5-27b:Q8_0", "qwen3.5-2b:Q8_0", 0.643, 7.09, 11.20),
    Published("gpt-oss-120b:MXFP4", "gpt-oss-20b:MXFP4", 0.718, 40.14, 22.93),
)
"""LM Studio 0.4.24 on a Ryzen AI Max+ PRO 395, draft length 3, one code-edit prompt; published 2026-09-17."""
MACHINE = "395"
PICTURE = ROOT / "docs" / "speedup.svg"


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
    if source == "article table":
        return _article_table()
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
        own = (
            "ADVISOR_DATA_DIR",
            "ADVISOR_CACHE",
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
            "XDG_DATA_HOME",
            "XDG_STATE_HOME",
        )
        fixed |= dict.fromkeys(own, empty)
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


def _predictions() -> list[tuple[Published, Prediction]]:
    from advisor.hardware.resolve import resolve
    from advisor.models.reference import describe
    from advisor.speculation.predict import predict

    with quiet_surroundings():
        setup = resolve(MACHINE)
        return [
            (
                row,
                predict(describe(row.target), describe(row.draft), setup=setup, draft_max=3, acceptance=row.acceptance),
            )
            for row in ARTICLE
        ]


def _article_table() -> str:
    lines = ["", "| pair | accepted | | without | with | speedup |", "|---|---|---|---|---|---|"]
    for row, p in _predictions():
        a, b, c = p.baseline_tps, p.speculative_tps, p.speedup
        lines.append(
            f"| {row.target} + {row.draft} | {row.acceptance:.1%} | measured "
            f"| {row.without:.2f} | {row.with_draft:.2f} | {row.with_draft / row.without:.2f}x |"
        )
        lines.append(
            f"| | | predicted | {a.median:.1f} ({a.low:.1f}-{a.high:.1f}) | {b.median:.1f} ({b.low:.1f}-{b.high:.1f}) "
            f"| {c.median:.2f}x ({c.low:.2f}-{c.high:.2f}) |"
        )
    return "\n".join([*lines, "", ""])


def picture() -> str:
    """The README's picture as SVG: speedup by draft length of the article's pairs, with what was measured.

    Raises:
        RuntimeError: vl-convert is not installed.
    """
    from advisor.report.charts import draw, speedup_picture

    found = _predictions()
    names = [f"{row.target.split(':')[0]} + {row.draft.split(':')[0]}" for row, _ in found]
    measured = [(name, row.with_draft / row.without) for name, (row, _) in zip(names, found, strict=True)]
    points = [(name, c) for name, (_, p) in zip(names, found, strict=True) for c in p.curve]
    told = "; ".join(
        f"{name} at k = 3: predicted {p.speedup.median:.2f} ({p.speedup.low:.2f} to {p.speedup.high:.2f}), "
        f"measured {value:.2f}"
        for (name, value), (_, p) in zip(measured, found, strict=True)
    )
    svg = draw(speedup_picture(points, measured), f"Speedup by draft length. {told}.")
    if svg is None:
        raise RuntimeError("the picture needs vl-convert-python")
    # Read as an image there is no page to ask for colours, so the picture brings its own.
    style = (
        "<style>svg{--text:#1b1f24;--muted:#57606a;--line:#d5dbe1;--with:#0a63c2;--bad:#b3201c}"
        "@media(prefers-color-scheme:dark){svg{--text:#e6eaef;--muted:#a1abb6;--line:#343c46;--with:#5aa9ff;--bad:#ff7b72}}"
        "</style>"
    )
    head, rest = svg.split(">", 1)
    return f"{head}>{style}{rest}\n"


def picture_label(svg: str) -> str:
    """What the picture says in words: its numbers, without the drawing."""
    found = re.search(r'aria-label="([^"]*)"', svg)
    return found[1] if found else ""


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
    drawn = picture()
    if not PICTURE.exists() or picture_label(PICTURE.read_text(encoding="utf-8")) != picture_label(drawn):
        stale += 1
        name = str(PICTURE.relative_to(ROOT))
        print(f"{name} is out of date" if check else f"drew {name}")
        if not check:
            PICTURE.write_text(drawn, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
