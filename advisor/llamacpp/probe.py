"""Timing single passes and rounds through a running server: the instruments of a calibration.

A prompt of exactly ``n`` tokens on an empty context is one pass of ``n`` tokens with logits for the last row: its
``prompt_ms`` is T(n). It works for every architecture, recurrent ones included. Rounds are timed on chain models
(:mod:`advisor.llamacpp.synthetic`), whose drafts are right by construction.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from statistics import median

from advisor.base import Frozen
from advisor.errors import EngineError
from advisor.llamacpp.contention import ContentionMeter
from advisor.llamacpp.server import Server
from advisor.llamacpp.statistics import spread
from advisor.llamacpp.synthetic import chain_prompt, mixed_prompt

_PATIENCE = 4.0
"""A measurement may take this many times its budget before fewer repetitions than planned have to do."""
_LONGEST = 8.0
"""The same for rounds [s]."""


class Timing(Frozen):
    """Repeated measurements of one thing: median and robust relative spread [s]."""

    seconds: float
    spread: float
    count: int


def summarise(seconds: Sequence[float], busy: bool = False) -> Timing:
    """Median and spread; on a busy machine the lower quartile, because disturbances only ever add time.

    Raises:
        EngineError: nothing was measured.
    """
    if not seconds:
        raise EngineError("Nothing could be timed.", "Try again, or give more time.")
    centre = sorted(seconds)[(len(seconds) - 1) // 4] if busy else median(seconds)
    return Timing(seconds=centre, spread=spread(seconds), count=len(seconds))


class PassTimings(Frozen):
    """T(n) of one model with logits of the last row, and its decode step, taken in turn [s]."""

    passes: dict[int, Timing]
    step: Timing


def time_passes(
    server: Server,
    columns: Sequence[int],
    vocabulary: int,
    *,
    budget: float,
    least: int = 3,
    most: int = 15,
    depth: int = 0,
    steps: int = 8,
    meter: ContentionMeter | None = None,
) -> PassTimings:
    """T(n) for every ``n`` of ``columns``, in random order, sweep after sweep until ``budget`` seconds are used.

    Decode steps are part of every sweep: T(n) is only ever used relative to them, so both must see the same minute.

    Args:
        server: one that does not speculate.
        columns: numbers of tokens.
        vocabulary: of the (synthetic) model; random ordinary tokens are sent.
        budget: seconds to spend, more or less.
        least: least sweeps.
        most: most sweeps.
        depth: tokens cached in front (plain attention only: recurrent models would read them again).
        steps: decode steps per sweep.
        meter: notices other programs.
    """
    meter = meter or ContentionMeter()
    seconds: dict[int, list[float]] = {n: [] for n in columns}
    decode: list[float] = []
    prefix = mixed_prompt(vocabulary, depth, 7) if depth else []
    if prefix:
        server.client.complete(prefix, 1, cache_prompt=True, ignore_eos=True)
    order = list(columns)
    shuffle = random.Random(1)
    began = time.monotonic()
    for sweep in range(most):
        shuffle.shuffle(order)
        for n in order:
            prompt = prefix + mixed_prompt(vocabulary, n, 1000 * (sweep + 1) + n)
            with meter.during(server):
                answer = server.client.complete(prompt, 1, cache_prompt=bool(prefix), ignore_eos=True)
            if answer.prompt_tokens == n:
                seconds[n].append(answer.prompt_ms / 1000)
        with meter.during(server):
            answer = server.client.complete(chain_prompt(vocabulary, 4, sweep), steps + 1, ignore_eos=True)
        if answer.predicted > 1:
            decode.append(answer.predicted_ms / 1000 / (answer.predicted - 1))
        passed = time.monotonic() - began
        # On a busy machine a sweep may take many times as long as planned: two must do then.
        if (sweep + 1 >= least and passed > budget) or (sweep >= 1 and passed > _PATIENCE * budget):
            break
    return PassTimings(
        passes={n: summarise(values, meter.busy) for n, values in seconds.items() if values},
        step=summarise(decode, meter.busy),
    )


class RoundTiming(Frozen):
    """Speculative rounds [s per round] and what they drafted on average."""

    timing: Timing
    drafted: float
    """Tokens drafted per round."""
    accepted: float
    """Tokens accepted per round."""


def time_rounds(
    server: Server,
    vocabulary: int,
    draft_max: int,
    *,
    rounds: int = 12,
    repetitions: int = 3,
    prompt: int = 30,
    replays: bool = False,
    meter: ContentionMeter | None = None,
) -> RoundTiming:
    """Rounds of a speculating server on a chain prompt.

    Args:
        server: one that speculates.
        vocabulary: of the synthetic model.
        draft_max: its draft length.
        rounds: about how many rounds per request.
        repetitions: requests that count; one more warms up.
        prompt: tokens of context; at least two cycles for n-gram methods.
        replays: whether partly accepted rounds are decoded again (recurrent targets with checkpoints).
        meter: notices other programs.

    Raises:
        NotDraftedError: nothing was drafted.
    """
    from advisor.llamacpp.server import not_drafted

    meter = meter or ContentionMeter()
    seconds: list[float] = []
    drafted = accepted = total = 0
    began = time.monotonic()
    for i in range(repetitions + 1):
        if len(seconds) >= 2 and time.monotonic() - began > _LONGEST:
            break
        before = server.client.counters()
        with meter.during(server):
            answer = server.client.complete(
                chain_prompt(vocabulary, prompt, i), rounds * (draft_max + 1) + 1, ignore_eos=True, seed=i + 1
            )
        after = server.client.counters()
        if not answer.drafted:
            raise not_drafted(server.options, server.log())
        if i == 0:
            continue
        count = answer.predicted - 1 - (answer.accepted or 0)
        if replays and before is not None and after is not None:
            k = draft_max - 1
            full = [c.positions[k] if k < len(c.positions) else 0 for c in (before, after)]
            count -= (after.rounds - before.rounds) - (full[1] - full[0])
        seconds.append(answer.predicted_ms / 1000 / count)
        drafted += answer.drafted
        accepted += answer.accepted or 0
        total += count
    return RoundTiming(timing=summarise(seconds, meter.busy), drafted=drafted / total, accepted=accepted / total)
