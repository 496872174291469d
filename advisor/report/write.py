"""Writing a report to a file: whole or not at all, in the form its name asks for."""

from __future__ import annotations

import os
from pathlib import Path

from advisor.errors import InputError
from advisor.report.document import Report

FORMS = (".html", ".md", ".json")


def form_of(path: Path) -> str:
    """``.html``, ``.md`` or ``.json``, by the name.

    Raises:
        InputError: another ending.
    """
    suffix = path.suffix.lower()
    form = {".htm": ".html", ".markdown": ".md"}.get(suffix, suffix)
    if form not in FORMS:
        raise InputError(
            f"Cannot tell the form of the report from the name {path.name!r}.", "End it in .html, .md or .json."
        )
    return form


def render(report: Report, form: str) -> str:
    """The report as text in one of :data:`FORMS`."""
    if form == ".html":
        from advisor.report.html import render_html

        return render_html(report)
    if form == ".md":
        from advisor.report.markdown import render_markdown

        return render_markdown(report)
    return report.model_dump_json(indent=2) + "\n"


def write_report(path: Path, report: Report) -> Path:
    """Write a report in the form its file name asks for.

    Raises:
        InputError: unknown ending, or the file cannot be written.
    """
    return write_text(path, render(report, form_of(path)))


def write_text(path: Path, text: str) -> Path:
    """Write ``text`` through a temporary neighbour, so that a reader never sees half a file.

    Raises:
        InputError: the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            unfinished.write_text(text, encoding="utf-8", newline="\n")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            f"Cannot write {path}: {error.strerror or error}.", "Name a file in a folder you may write to."
        ) from error
    return path
