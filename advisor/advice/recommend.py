"""One answer: what to use with this target on this machine, against everything else that could be used.

Every candidate goes through the same prediction. The best draft length is part of it; placement is decided under the
memory plan; p-min and n-gram methods in front of a draft are tried for the best few. What wins is compared with the
runner-up, and what would change the answer is computed, not guessed.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence

from advisor.advice import candidates as pool
from advisor.advice.candidates import Cancelled, Candidate, Progress, checkpoint
from advisor.advice.explain import changes, headline, label_of, outlook, why
from advisor.advice.launch import BuildFlags, Command, ModelPlace, Run, command, place_of
from advisor.advice.launchers import entries
from advisor.advice.quoting import Shell
from advisor.advice.recommendation import Exclusion, Option, Origin, Recommendation
from advisor.advice.rules import check_rules
from advisor.advice.weigh import MARGIN_TEXT, Question, Trial, choose, weigh
from advisor.errors import AdvisorError, InputError
from advisor.hardware.machine import Setup
from advisor.models.description import ModelDescription
from advisor.performance.fitted import FittedCosts
from advisor.performance.select import cost_model
from advisor.speculation.predict import MARGIN, summarise
from advisor.speculation.predict import SURE as FASTER
from advisor.speculation.prediction import Method, Task, Verdict
from advisor.text import clean

ANSWER = 4096
"""Tokens left for an answer [tokens]."""


def recommend(
    target: ModelDescription | str,
    *,
    setup: Setup,
    task: Task | None = None,
    temperature: float = 0.0,
    depth: int = 0,
    context: int | None = None,
    drafts: Sequence[ModelDescription | str | os.PathLike[str]] = (),
    local: bool = True,
    catalogue: bool = True,
    hub: bool = False,
    build: BuildFlags | None = None,
    methods: frozenset[Method] | None = None,
    shell: Shell | None = None,
    calibrated: bool = True,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
) -> Recommendation:
    """Compare not speculating with every way to speculate, and say what to use.

    Args:
        target: the model whose output is wanted, described or as a user would write it.
        setup: machine, backend, placement, cache types, slots.
        task: kind of text; None = not known.
        temperature: sampling temperature.
        depth: tokens already in the context.
        context: context each slot must hold, for memory and the command [tokens]; None = ``depth`` + 4096, or what
            the model was trained for if that is less.
        drafts: described models, files or folders to take drafts from, besides the usual places.
        local: also look where LM Studio, llama.cpp, Hugging Face and Ollama keep their files.
        catalogue: also weigh models that would have to be downloaded.
        hub: also ask the Hugging Face Hub (network).
        build: what the llama.cpp in use calls its options, for the command.
        methods: methods that this build has; None = all.
        shell: shell to quote the command for; None = the usual one of this platform.
        calibrated: use this machine's calibration when one applies.
        progress: called with (what, done, of how many).
        cancelled: asked between steps; True stops the work.

    Raises:
        InputError: a target that is no model, values out of range.
        CancelledError: ``cancelled()`` said so.
        HubError: ``hub`` was asked for and the Hub could not be reached.
    """
    started = time.perf_counter()
    if isinstance(target, str):
        from advisor.models.reference import describe

        target = describe(target)
    if target.kind != "model":
        raise InputError(
            f"{clean(target.name)} is a {target.kind} file, not a model that writes text.", "Name the target itself."
        )
    context = context if context is not None else default_context(target, depth)
    question = Question(target, setup, task, temperature, depth, context, calibrated)
    found = gather(question, drafts, local=local, catalogue=catalogue, hub=hub, progress=progress, cancelled=cancelled)
    candidates, excluded = _of_build(found, methods)
    trials, left_out = weigh(question, candidates, progress=progress, cancelled=cancelled)
    return answer(
        question,
        trials,
        [*excluded, *left_out],
        considered=len(candidates),
        build=build,
        shell=shell,
        started=started,
        cancelled=cancelled,
    )


def default_context(target: ModelDescription, depth: int) -> int:
    """Context to plan for when nobody said: room for an answer behind what is there, within what the model knows."""
    wanted = depth + ANSWER
    limit = target.context_length
    return wanted if limit is None or limit <= depth else min(wanted, limit)


def gather(
    question: Question,
    drafts: Sequence[ModelDescription | str | os.PathLike[str]] = (),
    *,
    local: bool = True,
    catalogue: bool = True,
    hub: bool = False,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
) -> pool.Findings:
    """All candidates for a target, with what was left out and why.

    Raises:
        CancelledError: ``cancelled()`` said so.
        HubError: the Hub could not be reached.
    """
    target = question.target
    preflight = known_trouble
    given = [d for d in drafts if isinstance(d, ModelDescription)]
    folders = [os.fspath(d) for d in drafts if not isinstance(d, ModelDescription)]
    excluded: list[Exclusion] = []
    disk: list[ModelDescription] = []
    if folders or local:
        from advisor.advice.disk import models_on_disk

        shelf = models_on_disk(folders, usual=local, progress=progress, cancelled=cancelled)
        disk, excluded = list(shelf.models), list(shelf.excluded)

    def origin(model: ModelDescription) -> Origin:
        if any(model is d for d in given):
            return "given"
        return "beside the target" if pool.beside(target, model) else "file"

    parts = [pool.inside(target), pool.ngrams(), pool.of_models(target, [*given, *disk], origin, preflight)]
    if catalogue:
        parts.append(pool.from_catalogue(target, [*given, *disk], preflight, cancelled))
    if hub:
        from advisor.advice.hub import from_hub

        parts.append(from_hub(target, preflight, progress=progress, cancelled=cancelled))
    every = [c for part in parts for c in part.candidates]
    return pool.Findings(every, [*excluded, *(x for part in parts for x in part.excluded)])


def known_trouble(target: ModelDescription, draft: ModelDescription, method: Method) -> str | None:
    """Why llama.cpp would refuse or abort on this pair, or None."""
    from advisor.llamacpp.preflight import check

    reasons = check(target, draft, method)
    return reasons[0] if reasons else None


def _of_build(found: pool.Findings, methods: frozenset[Method] | None) -> tuple[list[Candidate], list[Exclusion]]:
    if methods is None:
        return found.candidates, found.excluded
    kept, excluded = [], list(found.excluded)
    for c in found.candidates:
        if c.method in methods:
            kept.append(c)
        else:
            name = c.draft if c.draft is not None else c.method
            excluded.append(pool.exclusion(name, "engine", f"The llama.cpp in use does not know {c.method}."))
    return kept, excluded


def answer(
    question: Question,
    trials: Sequence[Trial],
    excluded: Sequence[Exclusion],
    *,
    considered: int,
    build: BuildFlags | None = None,
    shell: Shell | None = None,
    started: float | None = None,
    cancelled: Cancelled | None = None,
) -> Recommendation:
    """The recommendation from weighed trials (the plain run first, as :func:`weigh` returns them)."""
    q = question
    plain, rest = trials[0], list(trials[1:])
    best = choose(plain, rest)
    ordered = [best, *sorted((t for t in trials if t is not best), key=lambda t: -t.speed.median)]
    runner = ordered[1] if len(ordered) > 1 else None
    options = tuple(option_of(i + 1, t) for i, t in enumerate(ordered))
    drafting = next((t for t in ordered if t.methods), None)
    with_model = next(
        (t for t in ordered if t.candidate and t.candidate.draft is not None and t.candidate.draft.kind == "model"),
        None,
    )
    checkpoint(cancelled)
    run = run_of(q, best)
    return Recommendation(
        target=summarise(q.target),
        hardware=q.setup.hardware.name,
        backend=q.setup.backend,
        task=q.task,
        temperature=q.temperature,
        depth=q.depth,
        context=q.context,
        speculate=bool(best.methods),
        best=options[0],
        runner_up=options[1] if len(options) > 1 else None,
        options=options,
        excluded=tuple(excluded),
        prediction=drafting.prediction if drafting is not None else None,
        headline=headline(best, plain, rest),
        why=why(best, runner, plain),
        changes=changes(q, best, runner, plain, rest),
        outlook=outlook(q, drafting, plain),
        rules=check_rules(
            q.target,
            with_model.candidate.draft if with_model is not None and with_model.candidate is not None else None,
            with_model.prediction if with_model is not None else None,
            task=q.task,
            temperature=q.temperature,
        ),
        margin=MARGIN_TEXT,
        command=_command(run, build, shell),
        launchers=entries(run, build, shell),
        considered=considered,
        seconds=time.perf_counter() - started if started is not None else 0.0,
        assumptions=_assumptions(q, best, drafting),
    )


def option_of(rank: int, trial: Trial) -> Option:
    """A trial as the answer quotes it."""
    p, c = trial.prediction, trial.candidate
    return Option(
        rank=rank,
        label=label_of(trial),
        methods=trial.methods,
        spec_default=bool(c and c.spec_default and trial.methods == ("ngram-mod",)),
        draft=summarise(c.draft) if c is not None and c.draft is not None else None,
        draft_max=trial.draft_max,
        p_min=trial.p_min,
        ngram_max=trial.ngram_max,
        placement=trial.setup.placement,
        speed=trial.speed,
        speedup=trial.speedup,
        probability_faster=trial.probability_faster,
        verdict=verdict_of(trial),
        acceptance=trial.acceptance,
        mean_accepted_length=trial.round.tokens if trial.round is not None else 1.0,
        round_cost=trial.round.cost.cost if trial.round is not None else 1.0,
        break_even_acceptance=p.break_even_acceptance if p is not None else None,
        memory_total=trial.memory.total,
        fits=trial.memory.fits,
        origin=c.origin if c is not None else "nothing needed",
        download_bytes=trial.download,
        notes=trial.notes,
    )


def verdict_of(trial: Trial) -> Verdict:
    """An option in one word, by the same limits as a prediction."""
    if trial.memory.fits is False:
        return "does not fit"
    gain = math.log(trial.speedup.median)
    if trial.probability_faster >= FASTER and gain > MARGIN:
        return "faster"
    if trial.methods and trial.probability_faster <= 1 - FASTER and gain < -MARGIN:
        return "slower"
    return "too close to call"


def run_of(question: Question, trial: Trial) -> Run:
    """The run that a trial stands for."""
    q, c = question, trial.candidate
    draft: ModelPlace | None = None
    if c is not None and c.draft is not None:
        draft = place_of(c.draft, pool.original_repository(c.draft))
    grams = [m for m in trial.methods if not m.startswith("draft-")]
    alone = bool(grams) and len(trial.methods) == 1
    return Run(
        target=place_of(q.target, pool.original_repository(q.target)),
        draft=draft,
        methods=trial.methods,
        draft_max=trial.draft_max if trial.methods and not alone else 3,
        p_min=trial.p_min,
        ngram_max=trial.draft_max if alone else trial.ngram_max,
        spec_default=bool(c and c.spec_default and alone),
        context=q.context,
        setup=trial.setup,
    )


def _command(run: Run, build: BuildFlags | None, shell: Shell | None) -> Command | None:
    try:
        return command(run, build, shell, metrics=True)
    except AdvisorError:
        return None


def _assumptions(question: Question, best: Trial, drafting: Trial | None) -> tuple[str, ...]:
    lines = list(question.setup.hardware.assumptions)
    lines += [f"{clean(question.target.name)}: {a}" for a in question.target.assumptions]
    for trial in (best, drafting):
        if trial is not None and trial.candidate is not None and trial.candidate.draft is not None:
            lines += [f"{clean(trial.candidate.draft.name)}: {a}" for a in trial.candidate.draft.assumptions]
    costs = cost_model(question.setup, calibrated=question.calibrated)
    if isinstance(costs, FittedCosts):
        lines.append("Physics fitted to published measurements; `advisor calibrate` makes it this machine's own.")
    return tuple(dict.fromkeys(clean(x, 400) for x in lines))
