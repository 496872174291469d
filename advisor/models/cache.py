"""Descriptions of files that were read before, kept on disk.

One small JSON file per model, named by a hash of path, size, modification time and of the reading code's version:
a changed file or a new program version misses. Damage of any kind is a miss too; writing is atomic, and if it
fails (full disk, read-only home) nothing is lost but time. No lock is needed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from advisor.models.description import ModelDescription

VERSION = 2
"""Raise when the meaning of a description changes, so that older entries are not used."""
LIMIT = 3000
"""Entries kept; beyond that the older half goes."""


def folder() -> Path:
    """Where entries lie: the user's cache directory, or ``ADVISOR_CACHE``."""
    given = os.environ.get("ADVISOR_CACHE")
    if given:
        return Path(given)
    from platformdirs import user_cache_path

    return user_cache_path("draft-advisor", appauthor=False)


def key_of(files: Sequence[Path]) -> str | None:
    """The name of the entry for these files; None if one of them cannot be looked at."""
    digest = hashlib.sha256(f"{VERSION}:{_code_version()}".encode())
    try:
        for file in files:
            status = os.stat(file)
            place = os.path.abspath(file)
            digest.update(f"\0{place}\0{status.st_size}\0{status.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    except (OSError, ValueError):
        return None
    return digest.hexdigest()


@lru_cache(maxsize=1)
def _code_version() -> str:
    """Stands for the code that writes descriptions: the package version, its files' dates, the record's fields."""
    from advisor import __version__

    here = Path(__file__).parent
    stamps = [os.stat(here / f"{name}.py").st_mtime_ns for name in ("gguf", "describe", "tokenizer", "catalogue")]
    return f"{__version__}:{','.join(ModelDescription.model_fields)}:{stamps}"


def load(key: str) -> ModelDescription | None:
    """The stored description, or None."""
    try:
        data = (folder() / "headers" / f"{key}.json").read_bytes()
        return ModelDescription.model_validate_json(data)
    except (OSError, ValueError, RecursionError):
        return None


def store(key: str, description: ModelDescription) -> None:
    """Keep a description; failing to do so is no error."""
    write(folder() / "headers" / f"{key}.json", description.model_dump_json().encode("utf-8", "surrogatepass"))


def write(path: Path, data: bytes, most_bytes: int | None = None) -> bool:
    """Write a cache file in one step, so that no reader ever sees half of it. False if it could not be done.

    ``most_bytes`` bounds what the folder may hold in all (for large entries): beyond it the oldest go.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except (OSError, UnicodeError):
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    _prune(path.parent, most_bytes)
    return True


def _prune(place: Path, most_bytes: int | None) -> None:
    """Drop the older half when there are too many entries, or the oldest while they are too large together."""
    with contextlib.suppress(OSError):
        names = os.listdir(place)
        crowded = len(names) > LIMIT
        if not crowded and most_bytes is None:
            return
        aged = []
        for name in names:
            with contextlib.suppress(OSError):
                status = os.stat(place / name)
                aged.append((status.st_mtime_ns, name, status.st_size))
        total = sum(size for _, _, size in aged)
        for number, (_, name, size) in enumerate(sorted(aged)):
            if not (crowded and number < len(aged) // 2) and (most_bytes is None or total <= most_bytes):
                break
            with contextlib.suppress(OSError):
                os.unlink(place / name)
                total -= size
