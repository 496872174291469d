"""Acceptance in all the forms people print it, and the way from each to the others.

A round drafts up to ``k`` tokens; the target checks them in one pass, keeps those before the first miss and adds
one token of its own. Let ``a_i`` be the chance that draft ``i`` is kept given that drafts ``1 .. i-1`` were
(*conditional* acceptance) and ``S_i = a_1 * ... * a_i`` the chance that the first ``i`` are all kept. Then

    accepted per round   E     = S_1 + ... + S_k
    acceptance           alpha = E / drafted     counts every drafted token, also those after the first miss
    mean length          tau   = 1 + E           tokens per round, the target's own included
    calls saved                = 1 - 1 / tau     target passes that an ordinary run would have needed in addition

``alpha`` is what llama.cpp (``draft_n_accepted / draft_n``) and LM Studio show. It falls when ``k`` grows although
nothing got worse, because later drafts are reached less often; ``a_i`` does not. All functions here are pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from advisor.errors import InputError

GATE_EXPONENT = 0.36
"""How fast accepted tokens per round fall when ``--spec-draft-p-min`` raises acceptance; fitted to published sweeps."""


class Gated(NamedTuple):
    """A round that stops drafting early: ``drafted`` and ``accepted`` tokens per round, and ``mean_length``."""

    drafted: float
    accepted: float
    mean_length: float


class Counts(NamedTuple):
    """What the counters of a finished run say: rounds, drafted tokens per round, acceptance, tokens per round."""

    rounds: int
    drafted_per_round: float
    acceptance: float
    mean_length: float


def logit(p: float) -> float:
    """ln(p / (1 - p)), with ``p`` kept a hair's breadth away from 0 and 1."""
    p = min(max(p, 1e-9), 1 - 1e-9)
    return math.log(p / (1 - p))


def expit(x: float) -> float:
    """Inverse of :func:`logit`."""
    if x >= 0:
        return 1 / (1 + math.exp(-x))
    e = math.exp(x)
    return e / (1 + e)


def survival(positions: Sequence[float]) -> tuple[float, ...]:
    """Chance that the first 1, 2, ... drafts are all kept, from conditional acceptances."""
    reached, out = 1.0, []
    for a in positions:
        reached *= a
        out.append(reached)
    return tuple(out)


def conditional(reached: Sequence[float]) -> tuple[float, ...]:
    """Inverse of :func:`survival`: conditional acceptances from "share of rounds in which draft i was kept".

    Raises:
        InputError: a share outside 0..1, or one larger than the share before it.
    """
    before, out = 1.0, []
    for s in reached:
        if not 0 <= s <= before + 1e-12:
            raise InputError(f"Per-position acceptance must fall from at most 1, got {s:g} after {before:g}.")
        out.append(min(s / before, 1.0) if before > 0 else 0.0)
        before = s
    return tuple(out)


def positions_from_counts(accepted_per_position: Sequence[int], rounds: int) -> tuple[float, ...]:
    """Conditional acceptances from llama.cpp's ``/metrics``.

    Args:
        accepted_per_position: ``spec_decode_num_accepted_tokens_per_pos_total`` for positions 0, 1, ...
        rounds: ``spec_decode_num_drafts_total``.

    Raises:
        InputError: no rounds, or counts that do not fall.
    """
    if rounds <= 0:
        raise InputError("Nothing was drafted, so acceptance per position is undefined.")
    return conditional([n / rounds for n in accepted_per_position])


def accepted_per_round(positions: Sequence[float]) -> float:
    """Expected accepted drafts per round when all positions are drafted [tokens]."""
    return math.fsum(survival(positions))


def acceptance(positions: Sequence[float]) -> float:
    """Accepted / drafted when every round drafts ``len(positions)`` tokens.

    Raises:
        InputError: no positions.
    """
    if not positions:
        raise InputError("Acceptance needs at least one drafted token.")
    return accepted_per_round(positions) / len(positions)


def mean_length(positions: Sequence[float]) -> float:
    """tau: expected tokens per round, the target's own token included."""
    return 1 + accepted_per_round(positions)


def mean_length_with_replay(positions: Sequence[float]) -> float:
    """Tokens per *draft* round where llama.cpp restores a checkpoint after a miss and decodes again.

    A recurrent or hybrid target cannot drop single tokens from its state: after a partial accept the kept tokens are
    decoded a second time, and that pass yields one more token (server-context.cpp of build 11434). Counting both
    passes as rounds, as the mean length of such a server does, gives a smaller figure.
    """
    s = survival(positions)
    return 1 + math.fsum(s) + (1 - s[-1] if s else 0.0)


def mean_length_from_acceptance(rate: float, drafted: float) -> float:
    """tau = 1 + acceptance * drafted tokens per round."""
    return 1 + rate * drafted


def acceptance_from_mean_length(length: float, drafted: float) -> float:
    """acceptance = (tau - 1) / drafted tokens per round.

    Raises:
        InputError: ``drafted`` is not positive, or the two figures contradict each other.
    """
    if drafted <= 0:
        raise InputError("Acceptance is undefined when nothing was drafted.")
    rate = (length - 1) / drafted
    if not -1e-9 <= rate <= 1 + 1e-9:
        raise InputError(f"A mean length of {length:g} is impossible with {drafted:g} drafted tokens per round.")
    return min(max(rate, 0.0), 1.0)


def calls_saved(length: float) -> float:
    """Share of target passes that speculation saved, which is also the share of output that came from drafts.

    Raises:
        InputError: a mean length below 1.
    """
    if length < 1:
        raise InputError(f"A round yields at least one token, so the mean length cannot be {length:g}.")
    return 1 - 1 / length


def positions_from_acceptance(rate: float, k: int, offsets: Sequence[float] = ()) -> tuple[float, ...]:
    """Conditional acceptances of ``k`` drafts whose overall acceptance is ``rate``.

    One figure cannot say how acceptance changes along the draft. Without ``offsets`` every position gets the same
    ``a``, the solution of ``(a + ... + a^k) / k = rate``; with them, ``logit a_i = theta + offsets[i-1]`` (the last
    offset is kept beyond their end), the shape that :mod:`advisor.speculation.acceptance` learned for a method.

    Raises:
        InputError: ``rate`` outside 0..1 or ``k`` below 1.
    """
    theta = theta_from_acceptance(rate, k, offsets)
    if math.isinf(theta):
        return (rate,) * k
    return positions_from_theta(theta, k, offsets)


def constant_acceptance(rate: float, k: int) -> float:
    """The one conditional acceptance ``a`` with ``(a + ... + a^k) / k = rate``.

    Raises:
        InputError: ``rate`` outside 0..1 or ``k`` below 1.
    """
    return positions_from_acceptance(rate, k)[0]


def positions_from_theta(theta: float, k: int, offsets: Sequence[float] = ()) -> tuple[float, ...]:
    """``expit(theta + offset_i)`` for the first ``k`` positions; the last offset is kept beyond their end."""
    if not offsets:
        return (expit(theta),) * k
    last = len(offsets) - 1
    return tuple(expit(theta + offsets[i if i < last else last]) for i in range(k))


def theta_from_acceptance(rate: float, k: int, offsets: Sequence[float] = ()) -> float:
    """Inverse of ``acceptance(positions_from_theta(theta, k, offsets))``; infinite for rates of 0 and 1.

    Raises:
        InputError: ``rate`` outside 0..1 or ``k`` below 1.
    """
    if k < 1:
        raise InputError(f"The draft length must be at least 1, got {k}.")
    if not 0 <= rate <= 1:
        raise InputError(f"Acceptance must lie between 0 and 1, got {rate:g}.")
    if rate in (0.0, 1.0):
        return math.inf if rate else -math.inf
    low, high = -30.0, 30.0
    # The rate rises with theta, so bisection cannot fail; 60 halvings reach the last bit of a double.
    for _ in range(60):
        middle = 0.5 * (low + high)
        if accepted_per_round(positions_from_theta(middle, k, offsets)) < rate * k:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def rescale(rate: float, k: int, new_k: int, offsets: Sequence[float] = ()) -> float:
    """Acceptance to expect at draft length ``new_k`` when it was ``rate`` at ``k`` on the same text.

    Raises:
        InputError: ``rate`` outside 0..1 or a draft length below 1.
    """
    if rate in (0.0, 1.0):
        theta_from_acceptance(rate, k)
        return rate
    return acceptance(positions_from_theta(theta_from_acceptance(rate, k, offsets), new_k, offsets))


def from_counts(predicted: int, drafted: int, accepted: int) -> Counts:
    """Rounds and lengths from the three counters every llama.cpp answer carries.

    Args:
        predicted: ``predicted_n``, tokens generated; the first one comes out of the prompt pass.
        drafted: ``draft_n``.
        accepted: ``draft_n_accepted``.

    Each pass after the first token yields one token of the target's own, so passes = predicted - 1 - accepted. A few
    of them draft nothing (the last one of a fixed-length request, every miss of an n-gram), so the drafted length per
    round is a lower bound. On a hybrid target with a separate draft the replay passes are counted too.

    Raises:
        InputError: counters that contradict each other, or nothing drafted.
    """
    rounds = predicted - 1 - accepted
    if drafted <= 0:
        raise InputError("Nothing was drafted in this run, so it says nothing about acceptance.")
    if not 0 <= accepted <= drafted or rounds < 1:
        raise InputError(
            f"{accepted} accepted of {drafted} drafted tokens cannot belong to a run of {predicted} predicted tokens."
        )
    return Counts(rounds, drafted / rounds, accepted / drafted, (predicted - 1) / rounds)


def gated(rate: float, ungated: float, k: int) -> Gated:
    """What a round yields with ``--spec-draft-p-min``, from its acceptance and that of the same run without a gate.

    A gate ends the draft where the drafter is unsure: acceptance rises, but fewer tokens are drafted, so
    ``1 + k * acceptance`` no longer holds. Published sweeps follow E = k * ungated * ((1-rate)/(1-ungated))^0.36 and
    drafted = E / rate.

    Args:
        rate: acceptance with the gate.
        ungated: acceptance without it, same draft length ``k``.

    Raises:
        InputError: figures outside 0..1, or a draft length below 1.
    """
    if k < 1 or not 0 < rate <= 1 or not 0 <= ungated <= 1:
        raise InputError(f"Cannot convert acceptance {rate:g} (ungated {ungated:g}) at draft length {k}.")
    if rate <= ungated:
        return Gated(float(k), k * ungated, 1 + k * ungated)
    e = k * ungated * ((1 - rate) / (1 - ungated)) ** GATE_EXPONENT
    return Gated(min(e / rate, float(k)), e, 1 + e)
