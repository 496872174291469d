"""Files as people have them: single, split into shards, Ollama blobs behind manifests, folders.

A description of a local file is kept in a cache (see :mod:`advisor.models.cache`), so that looking through a folder
of models a second time costs a few milliseconds per model.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from advisor.errors import ModelFileError, UnknownModelError
from advisor.models.describe import describe_header
from advisor.models.description import ModelDescription
from advisor.models.gguf import Header, read_header, unreadable
from advisor.text import clean

SHARD = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.gguf)", re.IGNORECASE)
MAX_SHARDS = 1000
_BLOB = re.compile(r"sha256-[0-9a-f]{64}")


def shard_paths(path: Path) -> list[Path]:
    """All files of the set a shard's name belongs to, in order, whether they exist or not; else the file alone."""
    match = SHARD.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    if not 1 <= count <= MAX_SHARDS:
        return [path]
    return [path.with_name(f"{match['prefix']}-{i:05d}-of-{count:05d}{match['end']}") for i in range(1, count + 1)]


def read_model(path: Path) -> Header:
    """The header of a file, or of the whole set if it is one of several shards.

    Raises:
        ModelFileError: no usable GGUF, a shard is missing (named), or the shards do not belong together.
    """
    header = read_header(path)
    count = header.integer("split.count") or 1
    if count <= 1:
        return header
    files = shard_paths(path)
    shown = clean(path.name)
    if len(files) != count:
        raise ModelFileError(
            f"{shown} is part {(header.integer('split.no') or 0) + 1} of {count}, but its name does not tell where the "
            "others are.",
            "Name the parts NAME-00001-of-00002.gguf and so on, as they were published.",
        )
    missing = [f.name for f in files if not f.is_file()]
    if missing:
        listed = ", ".join(clean(name) for name in missing[:3]) + (" ..." if len(missing) > 3 else "")
        raise ModelFileError(
            f"{len(missing)} of the {count} parts of this model are missing: {listed}.",
            "Download them into the folder.",
        )
    return join([header if f == path else read_header(f) for f in files])


def join(headers: list[Header]) -> Header:
    """One header for a whole set of shards, given in order.

    Raises:
        ModelFileError: they are not the parts of one model, in number, order or tensors.
    """
    first, count = headers[0], len(headers)
    seen: set[str] = set()
    for number, header in enumerate(headers):
        if header.integer("split.count") != count or header.integer("split.no") != number:
            raise ModelFileError(
                f"{clean(header.name)} is not part {number + 1} of {count}: its header says part "
                f"{(header.integer('split.no') or 0) + 1} of {header.integer('split.count') or 1}.",
                "The parts come from different downloads: fetch them again.",
            )
        for tensor in header.tensors:
            if tensor.name in seen:
                raise ModelFileError(
                    f"{clean(header.name)} holds the tensor {clean(tensor.name, 80)} a second time.",
                    "The parts come from different downloads: fetch them again.",
                )
            seen.add(tensor.name)
    total = first.integer("split.tensors.count")
    if total is not None and total != len(seen):
        raise ModelFileError(
            f"The {count} parts of {clean(first.name)} hold {len(seen):,} tensors, but {total:,} are announced.",
            "The parts come from different downloads: fetch them again.",
        )
    notes = dict.fromkeys(note for h in headers for note in h.notes)
    return replace(
        first,
        tensors=tuple(t for h in headers for t in h.tensors),
        size=sum(h.size for h in headers),
        files=tuple(f for h in headers for f in h.files),
        notes=(*notes, f"split into {count} parts"),
    )


def describe_file(path: Path, reference: str | None = None) -> ModelDescription:
    """Describe a GGUF file or set of shards, from the cache if nothing changed.

    Raises:
        ModelFileError: no usable GGUF.
    """
    from advisor.models import cache

    files = shard_paths(path)
    key = cache.key_of(files)
    found = cache.load(key) if key else None
    if found is None:
        found = _describe(path)
        if key:
            cache.store(key, found)
    return found if reference is None else found.model_copy(update={"reference": reference})


def _describe(path: Path) -> ModelDescription:
    from advisor.models.catalogue import recognise

    description = describe_header(read_model(path), reference=str(path))
    update: dict[str, Any] = {"catalogue_slug": recognise(description)}
    if _BLOB.fullmatch(path.name):
        update["notes"] = (*description.notes, "an Ollama blob: llama.cpp loads it only if it is a plain conversion")
    return description.model_copy(update=update)


def in_folder(folder: Path) -> Path:
    """The one model in a folder (projectors and companion drafters do not count).

    Raises:
        ModelFileError: none, or several to choose from.
    """
    try:
        found = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".gguf" and p.is_file())
    except OSError as error:
        raise unreadable(folder, error) from error
    models = [p for p in found if not is_companion(p.name)]
    firsts = list(dict.fromkeys(shard_paths(p)[0] for p in models))
    if len(firsts) == 1:
        return next(p for p in models if shard_paths(p)[0] == firsts[0])
    if not firsts:
        hint = "Give the path of a .gguf file."
        if (folder / "config.json").is_file():
            hint = "Convert it to GGUF first (convert_hf_to_gguf.py), or name its repository on the Hub."
        raise ModelFileError(f"The folder {clean(str(folder))} holds no GGUF model.", hint)
    listed = ", ".join(clean(p.name, 60) for p in firsts[:4]) + (" ..." if len(firsts) > 4 else "")
    raise ModelFileError(f"The folder {clean(str(folder))} holds {len(firsts)} models.", f"Choose one: {listed}.")


def is_companion(name: str) -> bool:
    """Whether a file name is one of a projector, importance matrix or drafter that lies beside a model."""
    return re.search(r"(^|[-_.])(mmproj|imatrix|mtp|eagle3|dflash|dspark|assistant)([-_.]|$)", name.lower()) is not None


def no_such_file(path: Path) -> ModelFileError:
    """The error for a path that does not exist, with similar names of the same folder."""
    hint = None
    try:
        if path.parent.is_dir():
            names = [p.name for p in path.parent.iterdir()][:5000]
            close = difflib.get_close_matches(path.name, names, n=2, cutoff=0.6)
            hint = f"Did you mean {' or '.join(clean(n) for n in close)}?" if close else None
    except OSError:
        hint = None
    return ModelFileError(f"There is no file {clean(str(path))}.", hint or "Check the path.")


# -- Ollama -------------------------------------------------------------------------------------------------------


def ollama_blob(name: str) -> Path:
    """The GGUF blob behind an Ollama model name such as ``llama3.2:3b`` or ``user/model:tag``.

    Raises:
        UnknownModelError: Ollama has no such model on this disk.
        ModelFileError: its manifest is damaged or its blob is missing.
    """
    from advisor.models.places import ollama_folders

    text, _, tag = name.strip().partition(":")
    parts = [p for p in text.split("/") if p]
    if not parts or any(p in (".", "..") or "\\" in p or "\0" in p for p in (*parts, tag)) or "/" in tag:
        raise UnknownModelError(f"{clean(name, 80)} is not an Ollama model name.", "Example: ollama:llama3.2:3b.")
    if len(parts) == 1:
        parts = ["registry.ollama.ai", "library", *parts]
    elif len(parts) == 2:
        parts = ["registry.ollama.ai", *parts]
    known: list[str] = []
    for folder in ollama_folders():
        manifest = folder.joinpath("manifests", *parts, tag or "latest")
        if manifest.is_file():
            return _blob_of(manifest, folder)
        known += ollama_names(folder)
    close = difflib.get_close_matches(f"{text}:{tag or 'latest'}", known, n=3, cutoff=0.4)
    raise UnknownModelError(
        f"Ollama has no model {clean(name, 80)} on this disk.",
        f"Did you mean {' or '.join(clean(c) for c in close)}?" if close else "See `ollama list`.",
    )


def _blob_of(manifest: Path, folder: Path) -> Path:
    try:
        with open(manifest, "rb") as file:
            layers = json.loads(file.read(1 << 20))["layers"]
        digests = [layer["digest"] for layer in layers if layer["mediaType"] == "application/vnd.ollama.image.model"]
        blob = str(digests[0]).replace(":", "-")
    except OSError as error:
        raise unreadable(manifest, error) from error
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise ModelFileError(
            f"Ollama's manifest {clean(str(manifest))} names no model file.", "Pull the model again."
        ) from error
    if not _BLOB.fullmatch(blob):
        raise ModelFileError(f"Ollama's manifest {clean(str(manifest))} is damaged.", "Pull the model again.")
    path = folder / "blobs" / blob
    if not path.is_file():
        raise ModelFileError(f"The blob {blob[:19]}... of this Ollama model is missing.", "Pull the model again.")
    return path


def ollama_names(folder: Path) -> list[str]:
    """Names of the models in an Ollama folder, as ``ollama list`` shows them."""
    root = folder / "manifests"
    names = []
    try:
        for manifest in sorted(root.glob("*/*/*/*"))[:5000]:
            host, owner, model, tag = manifest.relative_to(root).parts
            name = f"{model}:{tag}" if owner == "library" else f"{owner}/{model}:{tag}"
            names.append(name if host == "registry.ollama.ai" else f"{host}/{name}")
    except OSError:
        return names
    return names
