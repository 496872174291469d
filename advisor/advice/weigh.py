"""Every candidate through the same physics: best draft length, placement, p-min, n-grams in front; then a choice.

Candidates are weighed by their rounds alone, a few hundred sums each; only the leading ones get a full prediction.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from advisor.advice import candidates as pool
from advisor.advice.candidates import Cancelled, Candidate, Progress, checkpoint
from advisor.advice.placing import arrangements
from advisor.advice.recommendation import Exclusion
from advisor.base import Range
from advisor.errors import AdvisorError
from advisor.hardware.machine import Setup
from advisor.models.description import ModelDescription
from advisor.performance.memory import memory_plan
from advisor.performance.passes import CostSource, plan_of
from advisor.performance.select import cost_model, fitted_costs
from advisor.report.console import format_memory
from advisor.speculation import acceptance as acceptances
from advisor.speculation.predict import LEVEL, NGRAM, Z, default_draft_max, predict, sweep
from advisor.speculation.prediction import AcceptanceEstimate, MemoryPlan, Method, Prediction, Task
from advisor.speculation.rounds import Gate, Round, Rounds, gate, rounds_of, step_seconds

GAIN = 1.05
"""A way to speculate must be expected to gain at least this over not speculating."""
SURE = 2 / 3
"""... with at least this probability of gaining anything at all."""
DOWNLOAD_GAIN = 1.05
"""What must be downloaded must be expected to be faster by this than what is at hand."""
TIE = 1.02
"""Closer than this, the option that needs less (no download, no second file, less memory) goes first."""
MARGIN_TEXT = (
    f"An option must be expected to gain at least {GAIN - 1:.0%} over no speculation, with a chance of at least "
    f"{SURE:.0%} to gain at all; what must be downloaded, {DOWNLOAD_GAIN - 1:.0%} over what is at hand; what must be "
    "converted first comes last."
)
REFINED = 3
"""So many of the best options are tried with p-min and with n-gram methods in front."""
FULL = 5
"""So many of the best options get a full prediction."""
P_MINS = (0.4, 0.6, 0.75)
P_MIN_GAIN = 1.03
"""p-min must help by this to be asked for: what it does is known less well than the rest."""
SAME_LENGTH = 0.98
"""Draft lengths whose gain is this share of the best one's are as good."""
NGRAM_LEAST = 12
"""Shortest draft asked of n-gram methods that copy from the text: as many tokens as they match by default."""
COPIES: frozenset[Method] = frozenset({"ngram-simple", "ngram-map-k", "ngram-map-k4v"})
LEAST_SHARE = 0.02
"""An n-gram method that drafts in fewer rounds than this is not put in front of a draft."""
COMBINED: tuple[Method, ...] = ("ngram-mod", "ngram-simple")
"""N-gram methods tried in front of a draft: llama.cpp's own default and its simplest."""
DRAFT_GUESS, NGRAM_GUESS = 4, 64
"""Draft lengths for which memory is planned before the best one is known (64 is llama.cpp's longest default)."""


class Trial(NamedTuple):
    """One way to run the target, weighed. ``candidate`` None = without speculation."""

    candidate: Candidate | None
    methods: tuple[Method, ...]
    setup: Setup
    memory: MemoryPlan
    base: float
    """Tokens per second without drafting in this very placement."""
    speed: Range
    speedup: Range
    """Against the best run without speculation."""
    probability_faster: float
    draft_max: int = 0
    p_min: float = 0.0
    estimate: AcceptanceEstimate | None = None
    round: Round | None = None
    ngram_max: int | None = None
    prediction: Prediction | None = None
    notes: tuple[str, ...] = ()

    @property
    def download(self) -> int:
        """Bytes to fetch first."""
        return self.candidate.download_bytes if self.candidate else 0

    @property
    def acceptance(self) -> Range | None:
        """Expected accepted / drafted, as the server will count it: behind p-min, if there is one."""
        if self.estimate is None:
            return None
        low, middle, high = (counted(_gates(self.estimate, self.draft_max, self.p_min, z)) for z in (-Z, 0.0, Z))
        return Range(median=middle, low=low, high=high, level=LEVEL)


class Question(NamedTuple):
    """What is asked: everything of a recommendation except the candidates."""

    target: ModelDescription
    setup: Setup
    task: Task | None
    temperature: float
    depth: int
    context: int
    calibrated: bool

    @property
    def costs(self) -> CostSource | None:
        """Cost models as the predictor wants them."""
        return None if self.calibrated else fitted_costs


def weigh(
    question: Question,
    candidates: Iterable[Candidate],
    *,
    full: int = FULL,
    progress: Progress | None = None,
    cancelled: Cancelled | None = None,
) -> tuple[list[Trial], list[Exclusion]]:
    """Weigh every candidate; the first trial is the run without speculation, the others follow by speed.

    The best ``full`` of them carry a full prediction.

    Raises:
        CancelledError: ``cancelled()`` said so.
    """
    plain = plain_trial(question)
    trials: list[Trial] = []
    excluded: list[Exclusion] = []
    every = list(candidates)
    for i, candidate in enumerate(every):
        checkpoint(cancelled)
        if progress is not None:
            progress("predicting", i, len(every))
        trial = try_candidate(question, candidate, plain)
        if isinstance(trial, Exclusion):
            excluded.append(trial)
        else:
            trials.append(trial)
    trials = _one_file_type_per_name(trials)
    trials.sort(key=lambda t: -t.speed.median)
    trials = _refined(question, trials, plain, cancelled)
    for i, trial in enumerate(trials[:full]):
        checkpoint(cancelled)
        trials[i] = complete(question, trial)
    if progress is not None:
        progress("predicting", len(every), len(every))
    return [plain, *trials], excluded


def plain_trial(question: Question) -> Trial:
    """The target without speculation, placed as well as memory allows."""
    q = question
    setup, memory = arrangements(q.target, None, "none", q.setup, context=q.context, draft_max=0)[0]
    slots = setup.parallel
    tps = 1 / step_seconds(plan_of(q.target, setup, q.costs), q.depth, slots)
    one = Range(median=1.0, low=1.0, high=1.0, level=LEVEL)
    sd = _step_sd(q, setup)
    return Trial(None, (), setup, memory, tps, spread(tps, Z * sd, Z * sd), one, 0.0)


def spread(median: float, down: float, up: float) -> Range:
    """A range from log half-widths."""
    return Range(median=median, low=median * math.exp(-down), high=median * math.exp(up), level=LEVEL)


def _step_sd(q: Question, setup: Setup) -> float:
    return cost_model(setup, calibrated=q.calibrated).step_log_sd(q.target.architecture)


def try_candidate(question: Question, candidate: Candidate, plain: Trial) -> Trial | Exclusion:
    """Weigh one candidate in the best placement that holds it."""
    q, c = question, candidate
    name = c.draft if c.draft is not None else c.method
    best: Trial | None = None
    try:
        estimate = acceptances.estimate(
            q.target, c.draft, c.method, task=q.task, temperature=q.temperature, k=default_draft_max(c.method)
        )
        for setup, memory in _placements(q, c, plain):
            trial = weigh_in(q, c, setup, memory, estimate, plain)._replace(notes=_notes(c))
            if best is None or trial.speed.median > best.speed.median:
                best = trial
    except AdvisorError as error:
        return pool.exclusion(name, "does not work", error.message)
    if best is None:
        return pool.exclusion(name, "memory", _no_room(q, c))
    return best


def _notes(c: Candidate) -> tuple[str, ...]:
    if c.unconverted and c.draft is not None:
        return (
            f"{c.draft.name} is published as safetensors: find a GGUF of it (--hub) or convert it with llama.cpp's "
            "convert_hf_to_gguf.py --target-model-dir.",
        )
    if c.origin == "inside the target" and c.download_bytes:
        return ("The usual file lacks the MTP layers: take a conversion that holds them.",)
    return ()


def _placements(q: Question, candidate: Candidate, plain: Trial) -> list[tuple[Setup, MemoryPlan]]:
    """Placements in which the candidate fits; if the target alone does not fit, the usual one all the same."""
    guess = DRAFT_GUESS if candidate.method not in NGRAM else NGRAM_GUESS
    found = arrangements(
        q.target, candidate.draft, candidate.method, plain.setup if candidate.draft is None else q.setup,
        context=q.context, draft_max=guess, alone=plain.setup.placement,
    )  # fmt: skip
    # One object per placement: what is computed for a setup is kept by identity.
    known = {plain.setup.placement: plain.setup, q.setup.placement: q.setup}
    return [
        (known.get(setup.placement, setup), memory)
        for setup, memory in found
        if memory.fits is not False or plain.memory.fits is False
    ]


def _no_room(q: Question, candidate: Candidate) -> str:
    memory = memory_plan(q.target, candidate.draft, candidate.method, q.setup, context=q.context, draft_max=DRAFT_GUESS)
    advice = f" {memory.advice[0]}" if memory.advice else ""
    return f"With it the run needs {format_memory(memory.total)} and does not fit.{advice}"


def log_gain(
    q: Question,
    c: Candidate,
    setup: Setup,
    k: int,
    estimate: AcceptanceEstimate,
    *,
    p_min: float = 0.0,
    z: float = 0.0,
    depth: int | None = None,
) -> float:
    """ln(speedup) at draft length ``k`` in one placement, with acceptance ``z`` standard deviations off its median."""
    return _gain(_rounds(q, c, setup, depth), k, _gates(estimate, k, p_min, z), estimate.draft_share)


def _rounds(q: Question, c: Candidate, setup: Setup, depth: int | None = None) -> Rounds:
    return rounds_of(
        q.target, c.draft, c.method, setup, depth=q.depth if depth is None else depth, parallel=setup.parallel,
        costs=q.costs,
    )  # fmt: skip


def _gates(estimate: AcceptanceEstimate, k: int, p_min: float, z: float = 0.0) -> list[Gate]:
    return [gate(p, p_min) for p in acceptances.positions(estimate, k, z)]


def counted(gates: Sequence[Gate]) -> float:
    """Accepted / drafted of rounds whose position ``i`` goes on and is accepted as ``gates[i]`` says."""
    reached = kept = 1.0
    drafted = accepted = 0.0
    for g in gates:
        reached *= g.passed
        kept *= g.accepted
        drafted += reached
        accepted += kept
    return accepted / drafted if drafted > 0 else 0.0


def _gain(rounds: Rounds, k: int, gates: Sequence[Gate], share: float) -> float:
    e = rounds.expected(k, gates, share)
    return math.log(e.tokens * rounds.base / (e.draft + e.verify + e.overhead + e.rollback))


def lengths(q: Question, c: Candidate) -> tuple[int, ...]:
    """Draft lengths worth asking for."""
    if c.spec_default:
        return (NGRAM_GUESS,)
    every = sweep(c.method, None, q.target, c.draft)
    if c.method in COPIES:
        # With shorter drafts they would match fewer tokens: another method than the one acceptance is known of.
        return tuple(k for k in every if k >= NGRAM_LEAST)
    return every


def weigh_in(
    q: Question,
    c: Candidate,
    setup: Setup,
    memory: MemoryPlan,
    estimate: AcceptanceEstimate,
    plain: Trial,
    p_min: float = 0.0,
) -> Trial:
    """A candidate in one placement at its best draft length: the shortest as good as the best loses least if wrong."""
    rounds, share = _rounds(q, c, setup), estimate.draft_share
    every = lengths(q, c)
    gates = _gates(estimate, max(every), p_min)  # shorter drafts see the first of the same chances
    gains = {k: _gain(rounds, k, gates, share) for k in every}
    top = max(gains.values())
    k = min(k for k, gain in gains.items() if gain >= top + math.log(SAME_LENGTH))
    best = rounds.round(k, gates[:k], share)
    down, up = _half_widths(rounds, k, estimate, gains[k], p_min, best.log_sd)
    slots = setup.parallel
    base = 1 / step_seconds(plan_of(q.target, setup, q.costs), q.depth, slots)
    # The draft's memory may have pushed part of the target off the device: then the placement's own baseline is slower
    # than the plain run, and the difference belongs to the draft.
    speedup = spread(math.exp(gains[k]) * base / plain.base, down, up)
    sd = Z * _step_sd(q, setup)
    return Trial(
        candidate=c,
        methods=(c.method,),
        setup=setup,
        memory=memory,
        base=base,
        speed=spread(math.exp(gains[k]) * base, math.hypot(down, sd), math.hypot(up, sd)),
        speedup=speedup,
        probability_faster=probability(speedup),
        draft_max=k,
        p_min=p_min,
        estimate=estimate,
        round=best,
    )


def _half_widths(
    rounds: Rounds, k: int, estimate: AcceptanceEstimate, centre: float, p_min: float, log_sd: float
) -> tuple[float, float]:
    """How far ln(speedup) reaches down and up: acceptance and physics are independent, so they add in quadrature."""
    down = centre - _gain(rounds, k, _gates(estimate, k, p_min, -Z), estimate.draft_share)
    up = _gain(rounds, k, _gates(estimate, k, p_min, Z), estimate.draft_share) - centre
    return math.hypot(max(0.0, down), Z * log_sd), math.hypot(max(0.0, up), Z * log_sd)


def gain_for_task(question: Question, trial: Trial, plain: Trial, task: Task) -> Range | None:
    """The speedup of a trial at its draft length for another kind of text; None for the run without speculation."""
    q, c = question, trial.candidate
    if c is None:
        return None
    estimate = acceptances.estimate(
        q.target, c.draft, c.method, task=task, temperature=q.temperature, k=trial.draft_max
    )
    rounds, k = _rounds(q, c, trial.setup), trial.draft_max
    centre = _gain(rounds, k, _gates(estimate, k, trial.p_min), estimate.draft_share)
    log_sd = trial.round.log_sd if trial.round is not None else 0.0
    down, up = _half_widths(rounds, k, estimate, centre, trial.p_min, log_sd)
    return spread(math.exp(centre) * trial.base / plain.base, down, up)


def probability(speedup: Range) -> float:
    """P(speedup > 1), normal in log space with the half-width of the side that faces 1."""
    centre = math.log(speedup.median)
    side = centre - math.log(speedup.low) if centre > 0 else math.log(speedup.high) - centre
    return 0.5 * (1 + math.erf(centre / max(side / Z, 1e-9) / math.sqrt(2)))


def complete(question: Question, trial: Trial) -> Trial:
    """The trial with its full prediction (of the draft, where an n-gram method is in front)."""
    q, c = question, trial.candidate
    if c is None or trial.prediction is not None:
        return trial
    prediction = predict(
        q.target, c.draft, setup=trial.setup, method=c.method, draft_max=trial.draft_max, task=q.task, depth=q.depth,
        context=q.context, p_min=trial.p_min, temperature=q.temperature, calibrated=q.calibrated,
    )  # fmt: skip
    return trial._replace(prediction=prediction, memory=prediction.memory)


def _one_file_type_per_name(trials: list[Trial]) -> list[Trial]:
    """Of catalogue names, which exist in every file type, only the fastest type; its note names the others."""
    best: dict[str, Trial] = {}
    others: dict[str, list[str]] = {}
    kept: list[Trial] = []
    for trial in trials:
        c = trial.candidate
        if c is None or c.origin != "catalogue" or c.draft is None or c.draft.kind != "model":
            kept.append(trial)
            continue
        key = c.draft.catalogue_slug or c.draft.name
        old = best.get(key)
        if old is None or trial.speed.median > old.speed.median:
            best[key] = trial
        others.setdefault(key, []).append(f"{c.draft.quant} {trial.speed.median:.1f}")
    for key, trial in best.items():
        note = f"File types compared [tok/s, without p-min]: {', '.join(others[key])}."
        kept.append(trial._replace(notes=(*trial.notes, note) if len(others[key]) > 1 else trial.notes))
    return kept


def _refined(question: Question, trials: list[Trial], plain: Trial, cancelled: Cancelled | None) -> list[Trial]:
    """The best few drafts once more with p-min, and with an n-gram method in front."""
    drafts = [t for t in trials if t.methods[0] not in NGRAM]
    grams = {t.methods[0]: t for t in trials if t.methods[0] in COMBINED}
    extra: list[Trial] = []
    for trial in drafts[:REFINED]:
        checkpoint(cancelled)
        better = _with_p_min(question, trial, plain)
        if better is not trial:
            trials = [better if t is trial else t for t in trials]
        for name in COMBINED:
            both = combined(question, better, grams[name], plain) if name in grams else None
            if both is not None:
                extra.append(both)
    return sorted([*trials, *extra], key=lambda t: -t.speed.median)


def _with_p_min(q: Question, trial: Trial, plain: Trial) -> Trial:
    best = trial
    if trial.candidate is None or trial.estimate is None:
        return trial
    for p_min in P_MINS:
        tried = weigh_in(q, trial.candidate, trial.setup, trial.memory, trial.estimate, plain, p_min)
        if tried.speed.median > max(best.speed.median, trial.speed.median * P_MIN_GAIN):
            best = tried._replace(notes=trial.notes)
    return best


def combined(question: Question, draft: Trial, ngram: Trial, plain: Trial) -> Trial | None:
    """An n-gram method in front of a draft: it is asked first, the draft only where it has nothing to offer.

    With f the share of the text that the n-gram method covers (its rounds that draft, times the tokens they yield),
    the time per token is ``f * R_n / tau_n + (1 - f) * R_d / tau_d``; on n-gram rounds an ordinary draft model still
    has to read the tokens. None where nothing is covered.
    """
    q, c = question, draft.candidate
    estimate = ngram.estimate
    if c is None or ngram.candidate is None or estimate is None or estimate.draft_share < LEAST_SHARE:
        return None
    k, share = ngram.draft_max, estimate.draft_share
    setup, slots = draft.setup, draft.setup.parallel
    rounds = rounds_of(q.target, None, ngram.methods[0], setup, depth=q.depth, parallel=slots, costs=q.costs)
    catch_up = 0.0
    if draft.methods[0] == "draft-simple" and c.draft is not None:
        behind = rounds_of(q.target, c.draft, "draft-simple", setup, depth=q.depth, parallel=slots, costs=q.costs)
        catch_up = behind.catch_up(k) / behind.base

    def per_token(z: float, covered: float, alone: float) -> float:
        gates = [gate(p, 0.0) for p in acceptances.positions(estimate, k, z)]
        one = rounds.round(k, gates)
        share_here = min(1.0, share * covered)
        f = share_here * one.tokens / (share_here * one.tokens + 1 - share_here)
        cost = (one.cost.cost + catch_up) * math.exp(-z * one.log_sd)
        return f * cost / one.tokens + (1 - f) / alone

    # The two share the text and the cost of checking, so their ends are taken together. How much of the text repeats is
    # as uncertain as how well it is then guessed: half to one and a half times as much.
    shift = draft.base / plain.base
    middle = 1 / per_token(0.0, 1.0, draft.speedup.median / shift)
    down = max(0.0, math.log(middle * per_token(-Z, 0.5, draft.speedup.low / shift)))
    up = max(0.0, -math.log(middle * per_token(Z, 1.5, draft.speedup.high / shift)))
    sd = Z * _step_sd(q, draft.setup)
    speedup = spread(middle * shift, down, up)
    return draft._replace(
        methods=(ngram.methods[0], draft.methods[0]),
        speed=spread(draft.base * middle, math.hypot(down, sd), math.hypot(up, sd)),
        speedup=speedup,
        probability_faster=probability(speedup),
        ngram_max=k,
        notes=(*draft.notes, "The n-gram method is asked first, the draft where it finds nothing (llama.cpp's order)."),
    )


def choose(plain: Trial, trials: Sequence[Trial]) -> Trial:
    """The best option by the margin rule (:data:`MARGIN_TEXT`)."""
    good = [t for t in trials if t.speedup.median >= GAIN and t.probability_faster >= SURE]
    ready = [t for t in good if t.candidate is None or not t.candidate.unconverted]
    at_hand = _simplest([t for t in ready if not t.download])
    to_fetch = _simplest([t for t in ready if t.download])
    if at_hand is None:
        return to_fetch or _simplest(good) or plain
    if to_fetch is not None and to_fetch.speed.median >= at_hand.speed.median * DOWNLOAD_GAIN:
        return to_fetch
    return at_hand


def _simplest(trials: Sequence[Trial]) -> Trial | None:
    """Among those within a hair's breadth of the fastest, the one that asks for least."""
    if not trials:
        return None
    top = max(t.speed.median for t in trials)
    close = [t for t in trials if t.speed.median * TIE >= top]
    return min(
        close,
        key=lambda t: (
            len(t.methods),
            t.candidate is not None and t.candidate.draft is not None,
            t.memory.total // 10**8,
            -t.speed.median,
        ),
    )
