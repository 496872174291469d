"""Drafts on the Hugging Face Hub: GGUF repositories of small relatives, heads and MTP conversions of a target.

Asked for explicitly (``--hub``). Only names and headers are fetched; no weights are downloaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from advisor.advice.candidates import (
    Cancelled,
    Findings,
    Progress,
    catalogue_slugs,
    checkpoint,
    exclusion,
    of_models,
)
from advisor.errors import AdvisorError, HubError
from advisor.models.description import ModelDescription
from advisor.speculation.prediction import Method

QUANTS = ("Q4_0", "Q4_K_M", "Q8_0")
PER_SEARCH = 2
"""Repositories taken from each search, most downloaded first."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*\Z")

Describe = Callable[[str], ModelDescription]


def from_hub(
    target: ModelDescription,
    preflight: Callable[[ModelDescription, ModelDescription, Method], str | None] | None = None,
    *,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
    api: Any = None,
    describe: Describe | None = None,
) -> Findings:
    """Candidates found by searching the Hub.

    Args:
        target: the target; its catalogue entry, else its name, says what to search for.
        preflight: says why llama.cpp would abort on a pair, or None.
        progress: called with (what, done, of how many).
        cancelled: asked between requests.
        api: something with ``list_models`` of huggingface_hub's ``HfApi``; None = that.
        describe: describes ``hf:owner/name:QUANT``; None = the usual way.

    Raises:
        HubError: the Hub could not be reached.
        CancelledError: ``cancelled()`` said so.
    """
    if api is None:
        from huggingface_hub import HfApi

        api = HfApi()
    if describe is None:
        from advisor.models.reference import describe as describe_reference

        describe = describe_reference
    searches = list(queries(target))
    repositories: dict[str, None] = {}
    for i, words in enumerate(searches):
        checkpoint(cancelled)
        if progress is not None:
            progress("searching the Hub", i, len(searches))
        for name in search(api, words):
            repositories.setdefault(name)
    models: list[ModelDescription] = []
    refused: HubError | None = None
    for i, name in enumerate(repositories):
        if progress is not None:
            progress("reading headers from the Hub", i, len(repositories))
        for quant in QUANTS:
            checkpoint(cancelled)
            try:
                models.append(describe(f"hf:{name}:{quant}"))
            except HubError as error:
                refused = error  # one repository may be gated or odd; all of them means that the Hub is out of reach
            except AdvisorError:
                continue  # no file of that type there, or no usable one
    if refused is not None and not models:
        raise refused
    found = of_models(target, [m for m in models if not _same_model(target, m)], lambda _: "hub", preflight)
    notes = []
    if target.mtp is None:
        kept = [m for m in models if m.mtp is not None and _same_model(target, m)]
        if kept:
            # Another file of the target, not a draft for it: it would be the target of another question.
            best = min(kept, key=lambda m: abs(m.size_bytes - target.size_bytes))
            notes.append(
                exclusion(
                    best,
                    "not a draft",
                    f"The same model with its MTP layers kept ({best.size_bytes / 1e9:.1f} GB): ask again with "
                    f"{best.reference} as the target.",
                )
            )
    return Findings(found.candidates, [*found.excluded, *notes])


def queries(target: ModelDescription) -> Iterator[str]:
    """What to search for: small relatives by catalogue name, then heads made for the target itself."""
    for slug in catalogue_slugs(target):
        yield f"{slug} gguf"
    name = target.catalogue_slug or re.sub(r"[^A-Za-z0-9.]+", "-", target.name).strip("-")
    for kind in ("mtp", "draft", "eagle3", "dflash"):
        yield f"{name} {kind} gguf"


def search(api: Any, words: str) -> list[str]:
    """Repositories with GGUF files that match, most downloaded first.

    Raises:
        HubError: the Hub could not be reached or refused.
    """
    import httpx
    from huggingface_hub.errors import HfHubHTTPError

    try:
        found = [m.id for m in api.list_models(search=words, filter="gguf", sort="downloads", limit=PER_SEARCH)]
    except (HfHubHTTPError, httpx.HTTPError, OSError) as error:
        raise HubError(
            f"The Hugging Face Hub could not be searched: {type(error).__name__}.", "Try again without --hub."
        ) from error
    return [name for name in found if isinstance(name, str) and _NAME.match(name)]


def _same_model(target: ModelDescription, other: ModelDescription) -> bool:
    return other.catalogue_slug is not None and other.catalogue_slug == target.catalogue_slug
