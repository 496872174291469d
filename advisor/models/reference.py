"""What a user may write for a model, and what it means: a path, a folder, a catalogue name, a Hub repository."""

from __future__ import annotations

import os
from pathlib import Path

from advisor.models.description import ModelDescription


def describe(reference: str, *, quant: str | None = None, offline: bool = False) -> ModelDescription:
    """Describe whatever the reference names, without reading any weights.

    Args:
        reference: a file or folder, ``slug[:file type]`` of the catalogue.
        quant: file type, where the reference leaves it open.
        offline: do not ask any server.

    Raises:
        ModelFileError: a file that is no usable GGUF.
        UnknownModelError: a name nobody knows, with the closest ones.
    """
    from advisor.models import catalogue

    path = Path(os.path.expanduser(reference))
    if path.is_file() or reference.lower().endswith(".gguf"):
        from advisor.models.describe import describe_header
        from advisor.models.gguf import read_header

        found = describe_header(read_header(path), reference=reference)
        slug = catalogue.recognise(found)
        return found.model_copy(update={"catalogue_slug": slug})
    return catalogue.describe_catalogue(reference, quant=quant)
