"""Every target on this disk with its best option, pairs that would lose, and what LM Studio's draft list hides."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from advisor.advice import candidates as pool
from advisor.advice.candidates import Cancelled, Progress, checkpoint
from advisor.advice.disk import Shelf, models_on_disk
from advisor.advice.explain import headline
from advisor.advice.recommend import default_context, known_trouble, option_of
from advisor.advice.recommendation import DropdownNote, Origin, Scan, ScanRow
from advisor.advice.weigh import Question, Trial, choose, weigh
from advisor.errors import AdvisorError
from advisor.hardware.machine import Setup
from advisor.models.description import ModelDescription
from advisor.models.places import FoundModel
from advisor.speculation.predict import summarise
from advisor.speculation.prediction import Method, Task
from advisor.text import clean

LOSES = 0.97
"""A pair slower than this share of the plain run is warned of."""
SHOWN_LOSERS = 3
_ARCHITECTURE = "lmstudio-bug-tracker #1597, #1914"
_PROJECTOR = "lmstudio-bug-tracker #1761"
_COMPANION = "lmstudio-bug-tracker #2244"
_HYBRID = "lmstudio-bug-tracker #1266"


def scan(
    folders: Sequence[str | os.PathLike[str]] = (),
    *,
    setup: Setup,
    task: Task | None = None,
    temperature: float = 0.0,
    depth: int = 0,
    context: int | None = None,
    usual: bool | None = None,
    methods: frozenset[Method] | None = None,
    calibrated: bool = True,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
) -> Scan:
    """Look through folders (or the places where programs keep models) and say what to do with each target.

    Only what is on the disk is weighed; nothing is downloaded, no server asked.

    Args:
        folders: folders to look through; none = where LM Studio, llama.cpp, Hugging Face and Ollama keep their files.
        setup: machine, backend, placement, cache types, slots.
        task: kind of text; None = not known.
        temperature: sampling temperature.
        depth: tokens already in the context.
        context: context to plan memory for [tokens]; None = ``depth`` + 4096.
        usual: look into the usual places too; None = only if no folder is given.
        methods: methods that the llama.cpp in use has; None = all.
        calibrated: use this machine's calibration when one applies.
        progress: called with (what, done, of how many).
        cancelled: asked between files and targets.

    Raises:
        InputError: a folder that does not exist or may not be read.
        CancelledError: ``cancelled()`` said so.
    """
    started = time.perf_counter()
    look = usual if usual is not None else not folders
    shelf = models_on_disk(folders, usual=look, progress=progress, cancelled=cancelled)
    targets = [(f, m) for f, m in shelf.found if m.kind == "model"]
    rows = []
    for i, (found, target) in enumerate(targets):
        checkpoint(cancelled)
        if progress is not None:
            progress("weighing", i, len(targets))
        room = context if context is not None else default_context(target, depth)
        question = Question(target, setup, task, temperature, depth, room, calibrated)
        try:
            rows.append(_row(question, found, shelf, methods, cancelled))
        except AdvisorError as error:
            shelf.excluded.append(pool.exclusion(target, "does not work", error.message))
    rows.sort(key=lambda r: (-r.target.size_bytes, r.path))
    return Scan(
        hardware=setup.hardware.name,
        backend=setup.backend,
        folders=tuple(os.fspath(f) for f in folders),
        targets=tuple(rows),
        excluded=tuple(shelf.excluded),
        seconds=time.perf_counter() - started,
    )


def _row(
    question: Question,
    found: FoundModel,
    shelf: Shelf,
    methods: frozenset[Method] | None,
    cancelled: Cancelled | None,
) -> ScanRow:
    target = question.target

    def origin(model: ModelDescription) -> Origin:
        return "beside the target" if pool.beside(target, model) else "file"

    # Most of a disk is no draft for a given target; sizes tell without a closer look.
    small = [m for m in shelf.models if m.kind == "drafter" or m.decode_bytes < pool.SMALLER * target.decode_bytes]
    parts = [pool.inside(target), pool.ngrams(), pool.of_models(target, small, origin, known_trouble)]
    every = [c for part in parts for c in part.candidates if methods is None or c.method in methods]
    trials, _ = weigh(question, every, full=0, cancelled=cancelled)
    plain, rest = trials[0], trials[1:]
    best = choose(plain, rest)
    return ScanRow(
        target=summarise(target),
        path=str(found.path),
        found_in=found.origin,
        best=option_of(1, best),
        headline=headline(best, plain, rest),
        losing=tuple(option_of(i + 2, t) for i, t in enumerate(_losing(rest))),
        lm_studio=_dropdown(target, found, shelf, rest),
    )


def _losing(trials: Sequence[Trial]) -> list[Trial]:
    """Compatible pairs of files that would be slower, the ones people are most likely to try first."""
    pairs = [t for t in trials if t.candidate is not None and t.candidate.draft is not None and len(t.methods) == 1]
    bad = [t for t in pairs if t.speedup.median < LOSES]
    return sorted(bad, key=lambda t: t.speedup.median)[:SHOWN_LOSERS]


def _dropdown(
    target: ModelDescription, found: FoundModel, shelf: Shelf, trials: Sequence[Trial]
) -> tuple[DropdownNote, ...]:
    """What LM Studio's draft list for this target leaves out or offers wrongly.

    Its list is not documented beyond "same vocabulary"; what is said here follows public reports (``source``).
    """
    if found.origin != "LM Studio":
        return ()
    works = {id(t.candidate.draft): t for t in trials if t.candidate is not None and t.candidate.draft is not None}
    notes = []
    for place, draft in shelf.found:
        if draft is target or draft.kind not in ("model", "drafter"):
            continue
        runs = id(draft) in works
        note = dropdown_note(target, draft, runs, in_lm_studio=place.origin == "LM Studio", projector=_projector(found))
        if note is not None:
            notes.append(note)
    return tuple(notes[:SHOWN_LOSERS])


def dropdown_note(
    target: ModelDescription, draft: ModelDescription, works: bool, *, in_lm_studio: bool, projector: bool
) -> DropdownNote | None:
    """Why LM Studio's list and llama.cpp disagree about one file, or None where they agree.

    Args:
        target: the target, in LM Studio's folder.
        draft: another model or a drafter head.
        works: whether llama.cpp would run the pair.
        in_lm_studio: whether the draft lies in LM Studio's folder.
        projector: whether a vision projector lies beside the target.
    """

    def note(reason: str, source: str, *, offered: bool) -> DropdownNote:
        return DropdownNote(
            draft=clean(draft.name),
            reference=draft.reference,
            works=works,
            offered=offered,
            reason=reason,
            source=source,
        )

    if works and draft.kind == "drafter":
        return note("LM Studio attaches no separate heads; llama-server does.", _COMPANION, offered=False)
    if works and not in_lm_studio:
        return note(
            "It lies outside LM Studio's folder, so LM Studio does not know it.", "LM Studio docs", offered=False
        )
    if works and draft.architecture != target.architecture:
        return note(
            f"LM Studio compares architectures ({draft.architecture}, {target.architecture}) and hides it; llama.cpp "
            "compares vocabularies and runs it.",
            _ARCHITECTURE,
            offered=False,
        )
    if works and projector:
        return note(
            "A vision projector (mmproj) lies beside the target; LM Studio then offers no draft.",
            _PROJECTOR,
            offered=False,
        )
    if (
        not works
        and in_lm_studio
        and draft.kind == "model"
        and target.is_recurrent
        and draft.architecture != target.architecture
    ):
        same = (
            target.tokenizer is not None
            and draft.tokenizer is not None
            and (target.tokenizer.digest == draft.tokenizer.digest)
        )
        if same:
            return note(
                "It shares the vocabulary and may be offered, but llama.cpp cannot run the pair.", _HYBRID, offered=True
            )
    return None


def _projector(found: FoundModel) -> bool:
    try:
        return any(
            "mmproj" in name.lower() and name.lower().endswith(".gguf") for name in os.listdir(found.path.parent)
        )
    except OSError:
        return False
