"""All that can be said of a pair's acceptance: by task, in every form, with break-even, and n-grams on own text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from advisor.base import Frozen, Range
from advisor.errors import InputError
from advisor.models.description import ModelDescription
from advisor.speculation import acceptance as acceptances
from advisor.speculation.conversions import calls_saved, mean_length, positions_from_acceptance, survival
from advisor.speculation.ngram import METHODS, Options, Replay, replay_requests
from advisor.speculation.prediction import AcceptanceEstimate, Method, Task

if TYPE_CHECKING:
    from advisor.hardware.machine import Setup
    from advisor.speculation.rounds import Rounds
    from advisor.speculation.vocabulary import Vocabulary

SCHEMA_VERSION = 1
TASKS: tuple[Task, ...] = get_args(Task)


class TaskOutlook(Frozen):
    """One kind of text. ``survival[i]`` = chance that the first i+1 drafts are all accepted.

    The last five are None when no machine was given.
    """

    task: Task | None
    acceptance: AcceptanceEstimate
    survival: tuple[float, ...]
    mean_accepted_length: Range
    calls_saved: Range
    """Share of target passes saved = share of the output that came from drafts."""
    speedup: Range | None = None
    probability_faster: float | None = None
    break_even_acceptance: float | None = None
    """Acceptance below which the pair loses; None = not even at 1 does it win."""
    margin: float | None = None
    """Median acceptance minus break-even; None if there is no break-even."""
    confirm_seconds: float | None = None
    """About how long `advisor confirm` takes with its defaults, reading the models included [s]."""


class ReplayOutlook(Frozen):
    """An n-gram method replayed on the user's text of one task, with what it means on the machine."""

    task: Task
    replay: Replay
    acceptance: float | None
    mean_accepted_length: float
    draft_share: float
    drafted_per_round: float
    speedup: Range | None = None


class AcceptanceReport(Frozen):
    """The answer of ``advisor acceptance``."""

    schema_version: int = SCHEMA_VERSION
    target: str
    draft: str | None
    method: Method
    draft_max: int
    temperature: float
    hardware: str | None
    tasks: tuple[TaskOutlook, ...]
    replays: tuple[ReplayOutlook, ...] = ()
    notes: tuple[str, ...] = ()


def overview(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    *,
    tasks: Sequence[Task | None] = (None,),
    draft_max: int,
    temperature: float = 0.0,
    setup: Setup | None = None,
    results: Sequence[acceptances.OwnRun] | None = None,
) -> AcceptanceReport:
    """Acceptance of a pair for each of ``tasks`` (None = any text), on a machine if ``setup`` says which.

    Raises:
        InputError: a draft length below 1, or a pair that cannot speculate this way.
    """
    return AcceptanceReport(
        target=target.name,
        draft=draft.name if draft is not None else None,
        method=method,
        draft_max=draft_max,
        temperature=temperature,
        hardware=setup.hardware.name if setup is not None else None,
        tasks=tuple(
            outlook(target, draft, method, task, draft_max=draft_max, temperature=temperature, setup=setup,
                    results=results)
            for task in tasks
        ),
    )  # fmt: skip


def outlook(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    task: Task | None,
    *,
    draft_max: int,
    temperature: float = 0.0,
    setup: Setup | None = None,
    results: Sequence[acceptances.OwnRun] | None = None,
) -> TaskOutlook:
    """One line of the table.

    Raises:
        InputError: a draft length below 1, or a pair that cannot speculate this way.
    """
    estimate = acceptances.estimate(
        target, draft, method, task=task, temperature=temperature, k=draft_max, results=results
    )
    share = estimate.draft_share
    z = acceptances.Z80
    low, middle, high = (
        1 + share * (mean_length(acceptances.positions(estimate, draft_max, s)) - 1) for s in (-z, 0.0, z)
    )
    line = TaskOutlook(
        task=task,
        acceptance=estimate,
        survival=survival(estimate.positions),
        mean_accepted_length=Range(median=middle, low=low, high=high),
        calls_saved=Range(median=calls_saved(middle), low=calls_saved(low), high=calls_saved(high)),
    )
    if setup is None:
        return line
    from advisor.speculation.predict import predict

    p = predict(target, draft, setup=setup, method=method, draft_max=draft_max, task=task, temperature=temperature)
    even = p.break_even_acceptance
    return line.model_copy(
        update={
            "speedup": p.speedup,
            "probability_faster": p.probability_faster,
            "break_even_acceptance": even,
            "margin": None if even is None else estimate.rate.median - even,
            "confirm_seconds": _confirming(target, draft, p.baseline_tps.median, p.speculative_tps.median),
        }
    )


CONFIRM_TOKENS = 6 * 96 * 3
"""What `advisor confirm` generates in each arm: six prompts of up to 96 tokens, two to five times."""
READING = 1e9
"""Bytes of a model file read per second when it is loaded: a common SSD, assumed."""


def _confirming(target: ModelDescription, draft: ModelDescription | None, plain: float, fast: float) -> float:
    read = (2 * target.size_bytes + (draft.size_bytes if draft is not None else 0)) / READING
    return read + CONFIRM_TOKENS * (1 / plain + 1 / fast)


class Outcome(Frozen):
    """Speedup with its 80 % range, and the probability that it is above 1."""

    speedup: Range
    probability_faster: float


def outcome(rounds: Rounds, estimate: AcceptanceEstimate, k: int, p_min: float = 0.0) -> Outcome:
    """What an acceptance estimate means for a pair on a machine: content and physics put together.

    In log space the two uncertainties are independent, so half-widths add in quadrature, each side by itself. Rounds
    that draft nothing are ordinary steps: the physics' uncertainty is in the others alone. How many these are is known
    within a factor of e (one standard deviation, assumed).
    """
    from advisor.speculation.rounds import gate

    def at(z: float, error: float = 0.0, drafting: float = 0.0) -> float:
        share = min(1.0, estimate.draft_share * math.exp(drafting))
        gates = [gate(a, p_min) for a in acceptances.positions(estimate, k, z)]
        one = rounds.round(k, gates)
        tokens = 1 + share * (one.tokens - 1)
        return math.log(tokens / (share * one.cost.cost * math.exp(error * one.log_sd) + 1 - share))

    z = acceptances.Z80
    centre = at(0.0)
    down = math.hypot(max(0.0, centre - at(-z)), centre - at(0.0, z))
    up = math.hypot(max(0.0, at(z) - centre), at(0.0, -z) - centre)
    if estimate.draft_share < 1:
        ends = [at(0.0, 0.0, s) - centre for s in (-z, z)]
        down, up = math.hypot(down, max(0.0, -min(ends))), math.hypot(up, max(0.0, *ends))
    side = max(down if centre > 0 else up, 1e-9) / z
    return Outcome(
        speedup=Range(median=math.exp(centre), low=math.exp(centre - down), high=math.exp(centre + up)),
        probability_faster=0.5 * (1 + math.erf(centre / side / math.sqrt(2))),
    )


def replay_sample(
    path: Path,
    vocabulary: Vocabulary,
    *,
    methods: Sequence[Method] = METHODS,
    task: Task | None = None,
    options: Options | None = None,
    checkpoint: bool = False,
) -> dict[tuple[Task, Method], Replay]:
    """Replay n-gram methods on the text in a file or folder; counters by task and method.

    Each conversation starts with an empty slot, as after a restart of the server: what it gains comes from itself.

    Args:
        path: see :func:`advisor.speculation.sample.read_sample`.
        vocabulary: the target's.
        methods: n-gram methods.
        task: kind of text; None = as the sample says.
        options: n-gram options.
        checkpoint: the target is recurrent or hybrid.

    Raises:
        InputError: no usable text, or a method that is not an n-gram method.
    """
    from advisor.speculation.sample import read_sample, requests

    sums: dict[tuple[Task, Method], Replay] = {}
    for conversation in read_sample(path, task):
        pairs = list(requests(conversation, vocabulary.encode))
        for method in methods:
            one = replay_requests(method, pairs, options=options, checkpoint=checkpoint)
            key = (conversation.task, method)
            sums[key] = sums[key] + one if key in sums else one
    return sums


def replayed_estimate(replay: Replay) -> AcceptanceEstimate:
    """A replay as an estimate that predictions can use; every drafted position gets the same acceptance.

    Raises:
        InputError: nothing was drafted in the replay.
    """
    rate = replay.acceptance
    if rate is None:
        raise InputError(f"{replay.method} drafted nothing on this text, so it has no acceptance there.")
    k = max(1, round(replay.drafted_per_round))
    base = acceptances.given(rate, k)
    return base.model_copy(
        update={
            "kind": "measured",
            "evidence": f"replayed on {replay.tokens} tokens of your text: {replay.accepted} of {replay.drafted} "
            f"drafted tokens accepted in {replay.rounds} rounds",
            "draft_share": replay.draft_share,
        }
    )


def replay_outlook(
    replay: Replay, task: Task, target: ModelDescription | None = None, setup: Setup | None = None
) -> ReplayOutlook:
    """A replay with its conversions and, given target and machine, the speedup it amounts to.

    Raises:
        InputError: the method cannot run on this target.
    """
    speedup = None
    if target is not None and setup is not None:
        speedup = Range(median=1.0, low=1.0, high=1.0)
        if replay.drafted:
            from advisor.speculation.rounds import round_of

            k = max(1, round(replay.drafted_per_round))
            positions = positions_from_acceptance(replay.acceptance or 0.0, k)
            one = round_of(target, None, replay.method, setup, k, positions=positions, parallel=setup.parallel)
            share = replay.draft_share

            def ratio(error: float) -> float:
                # Tokens come from the replay itself: rounds differ in length, which one mean length cannot show.
                cost = share * one.cost.cost * math.exp(error * one.log_sd) + 1 - share
                return replay.tokens_per_round / cost

            z = acceptances.Z80
            speedup = Range(median=ratio(0.0), low=ratio(z), high=ratio(-z))
    return ReplayOutlook(
        task=task,
        replay=replay,
        acceptance=replay.acceptance,
        mean_accepted_length=replay.mean_length,
        draft_share=replay.draft_share,
        drafted_per_round=replay.drafted_per_round,
        speedup=speedup,
    )
