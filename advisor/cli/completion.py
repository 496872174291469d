"""Repairing what bash hands to a completion: it splits words at colons, and our model names hold colons."""

from __future__ import annotations

from collections.abc import MutableMapping


def mend_bash_words(environment: MutableMapping[str, str]) -> None:
    """Join ``name``, ``:``, ``Q8_0`` in ``COMP_WORDS`` to one word again and move ``COMP_CWORD`` accordingly.

    Bash breaks words at every character of ``COMP_WORDBREAKS``, the colon among them, so that after
    ``advisor predict qwen3.5-27b:Q8_0`` the draft would look like the fourth argument.
    """
    words = environment.get("COMP_WORDS", "")
    try:
        current = int(environment.get("COMP_CWORD", ""))
    except ValueError:
        return
    if "\n:" not in words:
        return
    mended: list[str] = []
    place = current
    glue = False
    for index, word in enumerate(words.split("\n")):
        if mended and (word == ":" or glue):
            mended[-1] += word
            if index <= current:
                place -= 1
        else:
            mended.append(word)
        glue = word == ":"
    environment["COMP_WORDS"] = "\n".join(mended)
    environment["COMP_CWORD"] = str(place)
