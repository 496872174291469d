"""The models on this disk, described: what recommend chooses drafts from and scan looks through."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from advisor.advice.candidates import Cancelled, Progress, checkpoint, exclusion
from advisor.advice.recommendation import Exclusion
from advisor.errors import AdvisorError
from advisor.models.description import ModelDescription
from advisor.models.places import FoundModel, describe_all, model_files


class Shelf(NamedTuple):
    """What lies on the disk: models with where they were found, and files that are none."""

    found: list[tuple[FoundModel, ModelDescription]]
    excluded: list[Exclusion]

    @property
    def models(self) -> list[ModelDescription]:
        """The descriptions alone."""
        return [description for _, description in self.found]


def models_on_disk(
    places: Iterable[str | os.PathLike[str]] = (),
    *,
    usual: bool = True,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
) -> Shelf:
    """Describe every model in the given files and folders, and where programs usually keep theirs.

    Args:
        places: files and folders (searched recursively).
        usual: also LM Studio, llama.cpp, the Hugging Face cache and Ollama.
        progress: called with (what, done, of how many).
        cancelled: asked between files.

    Raises:
        InputError: a place that does not exist or may not be read.
        CancelledError: ``cancelled()`` said so.
    """
    named = [os.fspath(p) for p in places]
    folders = [p for p in named if os.path.isdir(os.path.expanduser(p))]
    files = [p for p in named if p not in folders]
    wanted: list[FoundModel] = []
    if folders:
        wanted += model_files(folders)
    if usual:
        wanted += model_files()
    found: list[tuple[FoundModel, ModelDescription]] = []
    excluded: list[Exclusion] = []
    for path in files:
        from advisor.models.reference import describe

        description = describe(path)
        found.append((FoundModel(Path(path), "folder", description.name), description))
    seen = {_identity(f.path) for f, _ in found}
    wanted = _once(wanted, seen)
    for i, (place, result) in enumerate(describe_all(wanted)):
        checkpoint(cancelled)
        if progress is not None:
            progress("reading headers", i, len(wanted))
        if isinstance(result, AdvisorError):
            excluded.append(exclusion(str(place.path), "unreadable", result.message))
        elif result.kind not in ("model", "drafter"):
            excluded.append(exclusion(result, "not a draft", f"It is a {result.kind} file."))
        else:
            found.append((place, result))
    if progress is not None and wanted:
        progress("reading headers", len(wanted), len(wanted))
    return Shelf(found, excluded)


def _identity(path: Path) -> object:
    """What makes a file the same file: device and inode where there are such, else its real path."""
    try:
        status = os.stat(path)
        return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(path)
    except OSError:
        return os.path.realpath(path)


def _once(models: Sequence[FoundModel], seen: set[object]) -> list[FoundModel]:
    kept = []
    for model in models:
        identity = _identity(model.path)
        if identity not in seen:
            seen.add(identity)
            kept.append(model)
    return kept
