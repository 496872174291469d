"""Where models lie on this disk: LM Studio, llama.cpp, the Hugging Face cache, Ollama, and folders the user names."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from advisor.errors import AdvisorError, InputError
from advisor.models.description import ModelDescription

Origin = Literal["LM Studio", "llama.cpp", "Hugging Face cache", "Ollama", "folder"]
MAX_DEPTH = 8
MAX_FILES = 20_000


class FoundModel(NamedTuple):
    """A model file (the first shard of a set), where it was found, and what that program calls it."""

    path: Path
    origin: Origin
    name: str


def _home() -> Path:
    return Path(os.path.expanduser("~"))


def _environment(name: str) -> Path | None:
    value = os.environ.get(name)
    return Path(os.path.expanduser(value)) if value else None


def lmstudio_folders() -> list[Path]:
    """LM Studio's model folders: the one its settings name, and the usual ones of newer and older versions."""
    home = _home()
    roots = [home / ".lmstudio", home / ".cache" / "lm-studio"]
    pointer = home / ".lmstudio-home-pointer"
    with contextlib.suppress(OSError, ValueError):
        roots.insert(0, Path(pointer.read_text(encoding="utf-8").strip()))
    folders = []
    for root in roots:
        with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
            settings = json.loads((root / "settings.json").read_text(encoding="utf-8"))
            named = settings.get("downloadsFolder")
            if isinstance(named, str) and named:
                folders.append(Path(named))
        folders.append(root / "models")
    return folders


def llamacpp_folders() -> list[Path]:
    """llama.cpp's download cache (``LLAMA_CACHE`` or the platform's cache directory)."""
    given = _environment("LLAMA_CACHE")
    if given:
        return [given]
    if sys.platform == "darwin":
        return [_home() / "Library" / "Caches" / "llama.cpp"]
    if sys.platform == "win32":
        return [(_environment("LOCALAPPDATA") or _home() / "AppData" / "Local") / "llama.cpp"]
    return [(_environment("XDG_CACHE_HOME") or _home() / ".cache") / "llama.cpp"]


def huggingface_folders() -> list[Path]:
    """The Hub's download cache, by the same environment variables as huggingface_hub reads."""
    given = _environment("HF_HUB_CACHE") or _environment("HUGGINGFACE_HUB_CACHE")
    if given:
        return [given]
    home = _environment("HF_HOME")
    if home:
        return [home / "hub"]
    return [(_environment("XDG_CACHE_HOME") or _home() / ".cache") / "huggingface" / "hub"]


def ollama_folders() -> list[Path]:
    """Ollama's model folders: ``OLLAMA_MODELS``, the user's, and those of its system services."""
    given = _environment("OLLAMA_MODELS")
    usual = [_home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models"), Path("/var/lib/ollama/models")]
    return [given, *usual] if given else usual


def model_files(dirs: Iterable[Path | str] | None = None) -> list[FoundModel]:
    """Every GGUF model on this disk, one entry per model: shards count once, links to one file count once.

    Args:
        dirs: folders to look through (recursively) instead of the places programs use.

    Raises:
        InputError: a folder in ``dirs`` does not exist or may not be read.
    """
    from advisor.models.files import shard_paths

    found: dict[object, FoundModel] = {}
    for model in _named(dirs) if dirs is not None else _usual():
        first = shard_paths(model.path)[0]
        if first != model.path and first.is_file():
            model = model._replace(path=first)
        try:
            status = os.stat(model.path)
        except OSError:
            continue  # a dangling link
        found.setdefault((status.st_dev, status.st_ino) if status.st_ino else model.path, model)
    return sorted(found.values(), key=lambda m: str(m.path))


def _named(dirs: Iterable[Path | str]) -> Iterator[FoundModel]:
    for given in dirs:
        folder = Path(os.path.expanduser(given))
        if not folder.is_dir():
            raise InputError(f"There is no folder {folder}.", "Give a folder with GGUF files.")
        if not os.access(folder, os.R_OK | os.X_OK):
            raise InputError(f"The folder {folder} may not be read by this user.")
        for path in _walk(folder):
            yield FoundModel(path, "folder", path.stem)


def _usual() -> Iterator[FoundModel]:
    for folder in lmstudio_folders():
        for path in _walk(folder):
            yield FoundModel(path, "LM Studio", path.stem)
    for folder in llamacpp_folders():
        for path in _walk(folder):
            yield FoundModel(path, "llama.cpp", path.stem)
    for folder in huggingface_folders():
        for path in _snapshots(folder):
            yield FoundModel(path, "Hugging Face cache", _repository(path, folder))
    yield from _ollama()


def _walk(folder: Path) -> Iterator[Path]:
    """GGUF files below a folder; links to folders are followed once, at most MAX_DEPTH deep."""
    seen: set[tuple[int, int]] = set()
    count = 0
    depth = len(folder.parts)
    for place, below, names in os.walk(folder, followlinks=True):
        try:
            status = os.stat(place)
        except OSError:
            below.clear()
            continue
        if (status.st_dev, status.st_ino) in seen or len(Path(place).parts) - depth >= MAX_DEPTH:
            below.clear()
            if (status.st_dev, status.st_ino) in seen:
                continue
        seen.add((status.st_dev, status.st_ino))
        below.sort()
        for name in sorted(names):
            if name.lower().endswith(".gguf"):
                count += 1
                if count > MAX_FILES:
                    return
                yield Path(place, name)


def _snapshots(folder: Path) -> Iterator[Path]:
    """GGUF files of the newest snapshot of every repository in a Hub cache."""
    try:
        repositories = sorted(folder.glob("models--*"))
    except OSError:
        return
    for repository in repositories:
        try:
            revisions = sorted((repository / "snapshots").iterdir(), key=lambda p: p.stat().st_mtime_ns, reverse=True)
        except OSError:
            continue
        for revision in revisions:
            yield from _walk(revision)


def _repository(path: Path, folder: Path) -> str:
    """``org/repo/file`` of a file in a Hub cache."""
    first, _, _, *rest = path.relative_to(folder).parts
    return "/".join([first.removeprefix("models--").replace("--", "/", 1), *rest])


def _ollama() -> Iterator[FoundModel]:
    from advisor.models.files import ollama_blob, ollama_names

    for folder in ollama_folders():
        for name in ollama_names(folder):
            try:
                yield FoundModel(ollama_blob(name), "Ollama", name)
            except AdvisorError:
                continue  # a manifest without its blob, or of an adapter


def describe_all(models: Iterable[FoundModel]) -> Iterator[tuple[FoundModel, ModelDescription | AdvisorError]]:
    """Describe each model found; a file that is no model yields its error instead of stopping the rest."""
    from advisor.models.files import describe_file

    for model in models:
        try:
            description = describe_file(model.path)
            if model.origin == "Ollama" or re.fullmatch(r"sha256-[0-9a-f]{64}", model.path.name):
                description = description.model_copy(update={"name": model.name})
            yield model, description
        except AdvisorError as error:
            yield model, error
