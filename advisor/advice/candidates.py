"""What could draft for a target: inside its file, beside it, on this disk, in the catalogue, on the Hub, or nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from advisor.advice.launch import NGRAM_METHODS
from advisor.advice.recommendation import Exclusion, ExclusionKind, Origin
from advisor.errors import AdvisorError, CancelledError
from advisor.models.description import ModelDescription
from advisor.models.pairs import check_pair
from advisor.speculation.predict import infer_method, tokenizer_verdict
from advisor.speculation.prediction import Method
from advisor.text import clean

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""
Cancelled = Callable[[], bool]
"""Asked between steps; True stops the work."""

SMALLER = 0.9
"""A draft must read less than this share of what the target reads per token: above, no acceptance can help."""
CATALOGUE_SHARE = 1 / 3
"""Catalogue names are only proposed when they read at most this share per token."""
CATALOGUE_QUANTS = ("Q4_0", "Q4_K_M", "Q8_0")
CATALOGUE_LIMIT = 6
"""At most so many names are proposed for download."""


class Candidate(NamedTuple):
    """Something that may draft for a target."""

    method: Method
    draft: ModelDescription | None
    origin: Origin
    download_bytes: int = 0
    spec_default: bool = False

    @property
    def unconverted(self) -> bool:
        """Whether it is only known as safetensors: a head of the catalogue, which is seldom published as GGUF."""
        return self.origin == "catalogue" and self.draft is not None and self.draft.kind == "drafter"


class Findings(NamedTuple):
    """Candidates, and what was left out with the reason."""

    candidates: list[Candidate]
    excluded: list[Exclusion]


def checkpoint(cancelled: Cancelled | None) -> None:
    """Stop here if the caller wants to.

    Raises:
        CancelledError: ``cancelled()`` says so.
    """
    if cancelled is not None and cancelled():
        raise CancelledError("Stopped before the answer was complete.")


def exclusion(model: ModelDescription | str, kind: ExclusionKind, reason: str) -> Exclusion:
    """An exclusion of a model, or of a file named by its path."""
    if isinstance(model, str):
        return Exclusion(name=clean(os.path.basename(model)), reference=model, kind=kind, reason=clean(reason, 400))
    return Exclusion(name=clean(model.name), reference=model.reference, kind=kind, reason=clean(reason, 400))


def inside(target: ModelDescription) -> Findings:
    """MTP layers of the target itself."""
    if target.mtp is None:
        return Findings([], [])
    download = 0
    if target.source == "catalogue" and any("usual file lacks" in a for a in target.assumptions):
        download = target.size_bytes
    return Findings([Candidate("draft-mtp", None, "inside the target", download)], [])


def ngrams() -> Findings:
    """llama.cpp's n-gram methods, and its own choice among them (``--spec-default``)."""
    found = [Candidate(m, None, "nothing needed") for m in NGRAM_METHODS if m != "ngram-mod"]
    # --spec-default is ngram-mod at its default lengths: one candidate, asked for by its shorter name.
    return Findings([*found, Candidate("ngram-mod", None, "nothing needed", spec_default=True)], [])


def of_models(
    target: ModelDescription,
    drafts: Iterable[ModelDescription],
    origin: Callable[[ModelDescription], Origin],
    preflight: Callable[[ModelDescription, ModelDescription, Method], str | None] | None = None,
) -> Findings:
    """Which of these models can draft for ``target``, and why the others cannot.

    Args:
        target: the target.
        drafts: described models.
        origin: where each of them comes from.
        preflight: says why llama.cpp would abort on a pair, or None.
    """
    candidates: list[Candidate] = []
    excluded: list[Exclusion] = []
    for draft in drafts:
        if _same_file(target, draft):
            continue
        reason = check(target, draft, preflight)
        if reason is not None:
            excluded.append(reason)
            continue
        where = origin(draft)
        download = 0 if where not in ("catalogue", "hub") else draft.size_bytes
        candidates.append(Candidate(infer_method(target, draft), draft, where, download))
    return Findings(candidates, excluded)


def check(
    target: ModelDescription,
    draft: ModelDescription,
    preflight: Callable[[ModelDescription, ModelDescription, Method], str | None] | None = None,
) -> Exclusion | None:
    """Why ``draft`` cannot draft for ``target``, or None."""
    if draft.kind not in ("model", "drafter"):
        return exclusion(draft, "not a draft", f"It is a {draft.kind} file.")
    if not draft.weights and draft.kind == "model":
        return exclusion(draft, "not a draft", "The file holds no weights.")
    method = infer_method(target, draft)
    if draft.kind == "model" and draft.decode_bytes >= SMALLER * target.decode_bytes:
        share = draft.decode_bytes / max(1, target.decode_bytes)
        return exclusion(
            draft, "not smaller", f"Per token it reads {share:.0%} of what the target reads, so it cannot be faster."
        )
    verdict = tokenizer_verdict(target, draft, method)
    if verdict.compatible is False:
        # Graphs and states are the engine's own limits; everything else is about vocabularies and widths.
        engine_limit = check_pair(target, draft).rule in ("state", "architecture")
        return exclusion(draft, "does not work" if engine_limit else "tokenizer", verdict.reason)
    if preflight is not None:
        trouble = preflight(target, draft, method)
        if trouble is not None:
            return exclusion(draft, "does not work", trouble)
    return None


def _same_file(a: ModelDescription, b: ModelDescription) -> bool:
    return a is b or (
        a.source == b.source == "gguf" and bool(set(a.files or (a.reference,)) & set(b.files or (b.reference,)))
    )


def beside(target: ModelDescription, draft: ModelDescription) -> bool:
    """Whether both files lie in one folder (or one Hub snapshot)."""
    if target.source != "gguf" or draft.source != "gguf":
        return False

    def folder(model: ModelDescription) -> str:
        return os.path.dirname(os.path.abspath(model.files[0] if model.files else model.reference))

    return folder(target) == folder(draft)


class _Entry(NamedTuple):
    """What the catalogue's index says of one model, without describing it."""

    family: str
    active: float
    total: float
    repository: str | None
    shape: tuple[object, ...]


@lru_cache(maxsize=1)
def _index() -> dict[str, _Entry]:
    """Tokenizer family and size of every catalogue model, by slug (``data/models.json``)."""
    import json

    from advisor.resources import resource

    with open(resource("data", "models.json"), encoding="utf-8") as file:
        rows = json.load(file)
    return {
        row["slug"]: _Entry(
            family=row["tokenizer_family"],
            active=float(row["computed"]["active"]),
            total=float(row["computed"]["total"]),
            repository=row["hf_repo"],
            shape=(row["gguf_arch"], row["block_count"], row["embedding_length"], row["computed"]["total"]),
        )
        for row in rows
    }


def original_repository(model: ModelDescription) -> str | None:
    """Hub repository of the unquantised weights, where the catalogue knows the model."""
    entry = _index().get(model.catalogue_slug or "")
    if entry is None or entry.repository is None:
        return None
    match = re.match(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+", entry.repository)
    return match.group(0) if match else None


def family_of(target: ModelDescription) -> str | None:
    """Tokenizer family of a target, from its description or the catalogue."""
    if target.tokenizer is not None and target.tokenizer.family:
        return target.tokenizer.family
    entry = _index().get(target.catalogue_slug or "")
    return entry.family if entry is not None else None


def catalogue_slugs(target: ModelDescription, known: Iterable[str | None] = ()) -> list[str]:
    """Names worth downloading as drafts: same tokenizer family, small enough, best matching first.

    Args:
        target: the target.
        known: slugs of models that are already at hand.
    """
    family = family_of(target)
    if family is None:
        return []
    have = set(known) | {target.catalogue_slug}
    words = set(re.split(r"[-.]", target.catalogue_slug or target.name.lower()))
    rows = [
        (slug, entry)
        for slug, entry in _index().items()
        if entry.family == family and slug not in have and entry.active <= CATALOGUE_SHARE * target.active_parameters
    ]

    def likeness(item: tuple[str, _Entry]) -> tuple[int, float]:
        slug, entry = item
        return -len(words & set(re.split(r"[-.]", slug))), entry.active

    chosen: list[str] = []
    shapes: set[tuple[object, ...]] = set()
    for slug, entry in sorted(rows, key=likeness):
        if entry.shape not in shapes:
            shapes.add(entry.shape)
            chosen.append(slug)
    # The closest relatives, but always the smallest ones too: they cost least per drafted token.
    smallest = sorted(chosen, key=lambda s: _index()[s].active)[: CATALOGUE_LIMIT // 2]
    rest = [s for s in chosen if s not in smallest]
    return [*smallest, *rest][:CATALOGUE_LIMIT]


def drafter_slugs(target: ModelDescription) -> list[str]:
    """Catalogue names of EAGLE-3, DFlash and DSpark heads made for this very target."""
    slug = target.catalogue_slug
    if not slug:
        return []
    from advisor.models import catalogue

    pattern = re.compile(rf"(dspark-)?{re.escape(slug)}(-thinking)?-(eagle3|dflash|dspark|draft)")
    return [name for name in catalogue.names() if name not in _index() and pattern.match(name)]


def from_catalogue(
    target: ModelDescription,
    known: Sequence[ModelDescription] = (),
    preflight: Callable[[ModelDescription, ModelDescription, Method], str | None] | None = None,
    cancelled: Cancelled | None = None,
) -> Findings:
    """Catalogue models and heads that would have to be downloaded, each in the file types worth comparing."""
    from advisor.models import catalogue

    models: list[ModelDescription] = []
    for slug in catalogue_slugs(target, (m.catalogue_slug for m in known)):
        checkpoint(cancelled)
        for quant in CATALOGUE_QUANTS:
            models.append(catalogue.describe_catalogue(f"{slug}:{quant}"))
    for name in drafter_slugs(target):
        checkpoint(cancelled)
        try:
            models.append(catalogue.describe_catalogue(name))
        except AdvisorError:
            continue  # a head whose shape is not known well enough to be weighed
    found = of_models(target, models, lambda _: "catalogue", preflight)
    # Names that merely do not fit are nobody's loss: only what is at hand is reported as excluded.
    return Findings(found.candidates, [])
