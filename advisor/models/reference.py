"""What a user may write for a model, and what it means: a path, a folder, a catalogue name, a Hub repository.

In this order: ``ollama:NAME[:TAG]``; ``hf:`` and addresses; a file or folder that exists; a catalogue name
(``slug[:file type]``); ``org/repo[:file type]`` or ``org/repo/file.gguf`` on the Hub.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from advisor.errors import InputError
from advisor.models.description import ModelDescription
from advisor.text import clean

_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?:@[\w./-]+)?(?:/[^:\\]+\.gguf|:[^/\\]+)?")


def describe(reference: str, *, quant: str | None = None, offline: bool = False) -> ModelDescription:
    """Describe whatever the reference names, without reading any weights.

    Args:
        reference: see the module's list.
        quant: file type, where the reference leaves it open.
        offline: do not ask any server; Hub files only from caches.

    Raises:
        InputError: an empty reference.
        ModelFileError: a file that is no usable GGUF, or a folder without a single one.
        UnknownModelError: a name nobody knows, with the closest ones.
        HubError: the Hub could not be reached or refused.
    """
    from advisor.models.files import describe_file, in_folder, no_such_file, ollama_blob

    text = reference.strip()
    if not text:
        raise InputError("No model was named.", "Give a .gguf file, a catalogue name or a Hub repository.")
    if text.lower().startswith("ollama:"):
        name = text[len("ollama:") :]
        found = describe_file(ollama_blob(name), reference)
        return found.model_copy(update={"name": clean(name, 120)})
    if re.match(r"(?:hf:|https?://|(?:www\.)?(?:hf\.co|huggingface\.co)/)", text, re.IGNORECASE):
        from advisor.models.hub import describe_hub

        return describe_hub(text, quant=quant, offline=offline)
    path = Path(os.path.expanduser(text))
    if _exists(path):
        return describe_file(in_folder(path) if path.is_dir() else path, reference)
    from advisor.models import catalogue

    if "/" not in text and not text.lower().endswith(".gguf") and catalogue.parse_name(text) is not None:
        return catalogue.describe_catalogue(text, quant=quant)
    if text.startswith(("/", "./", "../", "~", ".\\", "..\\")) or re.match(r"[A-Za-z]:[\\/]", text):
        raise no_such_file(path)
    if _HUB.fullmatch(text):
        from advisor.models.hub import describe_hub

        return describe_hub(text, quant=quant, offline=offline)
    if text.lower().endswith(".gguf") or os.sep in text:
        raise no_such_file(path)
    raise catalogue.unknown(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except (OSError, ValueError):  # a name too long, or with a zero byte
        return False
