"""Making text from files and servers safe to print."""

from __future__ import annotations

import unicodedata


def clean(text: str, limit: int = 200) -> str:
    """Text without control, escape, bidirectional or other invisible characters, at most ``limit`` long.

    Names, templates and tags inside a model file are somebody else's input: printed raw they could move
    the cursor, recolour the screen or reorder a line.
    """
    shown = text
    if not text.isprintable():  # false for these categories, and quickly true for nearly every name
        shown = "".join(
            "�" if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") else c for c in text
        )
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
