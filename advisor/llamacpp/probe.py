"""Timing single passes and rounds through a running server: the instruments of a calibration.

Two instruments give T(n):

* a **verification** (:func:`time_verifications`): on a chain model (:mod:`advisor.llamacpp.synthetic`) n-gram drafts
  are right by construction, so a request of ``n`` + 1 tokens is one round that verifies ``n``, output rows and all;
* a **prompt** (:func:`time_passes`): ``n`` tokens on an empty context are one pass with one row of output. It works for
  every model and architecture, recurrent ones included, but reading a prompt costs a little more than decoding.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from statistics import median

from advisor.base import Frozen
from advisor.errors import EngineError
from advisor.llamacpp.client import Completion
from advisor.llamacpp.contention import ContentionMeter
from advisor.llamacpp.server import Server
from advisor.llamacpp.statistics import spread
from advisor.llamacpp.synthetic import KNOWN, chain_prompt, mixed_prompt

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
    """T(n) of one model and its decode step, taken in turn [s]."""

    passes: dict[int, Timing]
    step: Timing
    """One step of a running answer."""
    verified: bool
    """Whether the passes were verifications, with output for every row, or prompts, with one."""


def merged(visits: Sequence[PassTimings]) -> PassTimings:
    """Several visits to one model, minutes apart, as one: means of their medians.

    Shared machines change their memory bandwidth over minutes; no patience within one visit averages that out.
    """

    def mean(timings: Sequence[Timing]) -> Timing:
        return Timing(
            seconds=sum(t.seconds for t in timings) / len(timings),
            spread=sum(t.spread for t in timings) / len(timings),
            count=sum(t.count for t in timings),
        )

    columns = set().union(*(v.passes for v in visits))
    return PassTimings(
        passes={n: mean([v.passes[n] for v in visits if n in v.passes]) for n in sorted(columns)},
        step=mean([v.step for v in visits]),
        verified=all(v.verified for v in visits),
    )


MOST_VERIFIED = 32
"""Longest verification :func:`time_verifications` may be asked for [tokens]; fewer than a cycle of the chain."""
MATCH = 4
"""Tokens an n-gram must match on a server for :func:`time_verifications`."""


def time_verifications(
    servers: Sequence[tuple[Server, Sequence[int]]],
    vocabulary: int,
    *,
    budget: float,
    least: int = 3,
    most: int = 15,
    depth: int = 0,
    steps: int = 24,
    meter: ContentionMeter | None = None,
) -> list[PassTimings]:
    """T(n) as a round of verification costs it; single rounds hold the start of a request, and so does T(1).

    Every ratio has the decode step below it, so the step gets the most time. Several servers are asked in turn, sweep
    by sweep, so that what differs between them is not the minute.

    Args:
        servers: with the numbers of tokens to time. Each drafts by ``ngram-simple``, draft length
            ``MOST_VERIFIED - 1`` and ``MATCH``, and holds a chain model.
        vocabulary: of the models.
        budget: seconds to spend, more or less.
        least: least sweeps.
        most: most sweeps.
        depth: tokens cached in front (plain attention only: recurrent models would read them again).
        steps: decode steps per sweep.
        meter: notices other programs.

    Raises:
        EngineError: nothing could be timed.
    """
    meter = meter or ContentionMeter()
    prefix = mixed_prompt(vocabulary, depth, 7) + chain_prompt(vocabulary, KNOWN)
    # From the middle of a cycle nothing repeats within a few steps, so these are not drafted.
    fresh = prefix[:depth] + chain_prompt(vocabulary, 4, 1)

    def probe(server: Server, columns: Sequence[int]) -> _Probe:
        def ask(prompt: list[int], tokens: int) -> Completion:
            with meter.during(server):
                return server.client.complete(prompt, tokens, cache_prompt=True, ignore_eos=True)

        def verify(_: int, n: int) -> float | None:
            answer = ask(prefix, n + 1)
            whole = answer.predicted == n + 1 and (answer.accepted or 0) == n - 1
            return answer.predicted_ms / 1000 if whole else None

        def step(_: int) -> float | None:
            answer = ask(fresh, steps + 1)
            ask(prefix, 1)  # the same prompt over and over: all but its last token stay in the cache
            return None if answer.drafted else _per_step(answer)

        ask(prefix, 1)
        return _Probe(sorted({1, *columns}), verify, step)

    probes = [probe(*one) for one in servers]
    return [p.summary(meter.busy, verified=True) for p in _sweeps(probes, budget, least, most)]


def time_passes(
    server: Server,
    columns: Sequence[int],
    vocabulary: int,
    *,
    budget: float,
    least: int = 3,
    most: int = 15,
    steps: int = 8,
    meter: ContentionMeter | None = None,
) -> PassTimings:
    """T(n) by prompts of random ordinary tokens.

    Args as in :func:`time_verifications`, but ``server`` does not speculate and may hold any model.

    Raises:
        EngineError: nothing could be timed.
    """
    meter = meter or ContentionMeter()

    def ask(prompt: list[int], tokens: int) -> Completion:
        with meter.during(server):
            return server.client.complete(prompt, tokens, ignore_eos=True)

    def read(sweep: int, n: int) -> float | None:
        answer = ask(mixed_prompt(vocabulary, n, 1000 * (sweep + 1) + n), 1)
        return answer.prompt_ms / 1000 if answer.prompt_tokens == n else None

    def step(sweep: int) -> float | None:
        return _per_step(ask(chain_prompt(vocabulary, 4, sweep), steps + 1))

    (found,) = _sweeps([_Probe(list(columns), read, step)], budget, least, most)
    return found.summary(meter.busy, verified=False)


def _per_step(answer: Completion) -> float | None:
    return answer.predicted_ms / 1000 / (answer.predicted - 1) if answer.predicted > 1 else None


class _Probe:
    """What one server is asked in every sweep, and what it answered [s]."""

    def __init__(
        self, columns: list[int], one: Callable[[int, int], float | None], step: Callable[[int], float | None]
    ) -> None:
        self.columns, self.one, self.step = columns, one, step
        self.seconds: dict[int, list[float]] = {n: [] for n in columns}
        self.decode: list[float] = []

    def sweep(self, number: int, shuffle: random.Random) -> None:
        """Every number of columns in random order, then decode steps."""
        shuffle.shuffle(self.columns)
        for n in self.columns:
            if (value := self.one(number, n)) is not None:
                self.seconds[n].append(value)
        if (value := self.step(number)) is not None:
            self.decode.append(value)

    def summary(self, busy: bool, *, verified: bool) -> PassTimings:
        """Medians of what was answered."""
        return PassTimings(
            passes={n: summarise(values, busy) for n, values in sorted(self.seconds.items()) if values},
            step=summarise(self.decode, busy),
            verified=verified,
        )


def _sweeps(probes: Sequence[_Probe], budget: float, least: int, most: int) -> Sequence[_Probe]:
    """All probes in turn, sweep after sweep until ``budget`` seconds are used.

    Decode steps are part of every sweep: T(n) is only ever used relative to them, so both must see the same minute.
    """
    shuffle = random.Random(1)
    began = time.monotonic()
    for sweep in range(most):
        for probe in probes:
            probe.sweep(sweep, shuffle)
        passed = time.monotonic() - began
        # On a busy machine a sweep may take many times as long as planned: two must do then.
        if (sweep + 1 >= least and passed > budget) or (sweep >= 1 and passed > _PATIENCE * budget):
            break
    return probes


class RoundTiming(Frozen):
    """Speculative rounds [s per round] and what they drafted on average."""

    timing: Timing
    drafted: float
    """Tokens drafted per round."""
    accepted: float
    """Tokens accepted per round."""


class RatioTiming(Frozen):
    """Rounds in decode steps of the same minute: median over pairs of requests, relative spread, pairs."""

    ratio: float
    spread: float
    count: int
    drafted: float
    """Tokens drafted per round."""


def time_ratio(
    plain: Server,
    speculating: Server,
    vocabulary: int,
    draft_max: int,
    *,
    rounds: int = 12,
    steps: int = 24,
    repetitions: int = 5,
    prompt: int = KNOWN,
    meter: ContentionMeter | None = None,
) -> RatioTiming:
    """Rounds of one server against decode steps of another with the same model, in turn: slow drifts cancel.

    Args as in :func:`time_rounds`; ``steps`` is the length of a plain request.

    Raises:
        EngineError: nothing was drafted or nothing could be timed.
    """
    meter = meter or ContentionMeter()
    ratios, drafted = [], []
    for i in range(repetitions + 1):
        with meter.during(plain):
            base = plain.client.complete(chain_prompt(vocabulary, prompt, i), steps + 1, ignore_eos=True)
        one = time_rounds(
            speculating, vocabulary, draft_max, rounds=rounds, repetitions=1, prompt=prompt, first=i, meter=meter
        )
        step = _per_step(base)
        if i and step is not None:  # the first pair warms up
            ratios.append(one.timing.seconds / step)
            drafted.append(one.drafted)
    if not ratios:
        raise EngineError("Nothing could be timed.", "Try again, or give more time.")
    return RatioTiming(
        ratio=median(ratios), spread=spread(ratios), count=len(ratios), drafted=sum(drafted) / len(drafted)
    )


def time_rounds(
    server: Server,
    vocabulary: int,
    draft_max: int,
    *,
    rounds: int = 12,
    repetitions: int = 3,
    prompt: int = KNOWN,
    replays: bool = False,
    first: int | None = None,
    meter: ContentionMeter | None = None,
) -> RoundTiming:
    """Rounds of a speculating server on a chain prompt.

    Args:
        server: one that speculates.
        vocabulary: of the synthetic model.
        draft_max: its draft length.
        rounds: about how many rounds per request.
        repetitions: requests that count; one more warms up, unless ``first`` is given.
        prompt: tokens of context.
        first: number of the first request's text; the server is warm then.
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
    for i in range(repetitions + 1) if first is None else range(first, first + repetitions):
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
        if i == 0 and first is None:
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
