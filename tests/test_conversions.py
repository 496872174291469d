"""Conversions between the forms in which acceptance is printed."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import InputError
from advisor.speculation import conversions as c

rates = st.floats(0.001, 0.999)
lengths = st.integers(1, 64)
positions = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=16)
offsets = st.lists(st.floats(-2, 2), min_size=1, max_size=8)


def simulate(conditional: list[float], rounds: int) -> tuple[int, int, int, int]:
    """Counters of a made-up run, counted the way the server does: predicted, drafted, accepted, rounds."""
    rng = random.Random(1)
    accepted = 0
    for _ in range(rounds):
        for a in conditional:
            if rng.random() >= a:
                break
            accepted += 1
    predicted = 1 + accepted + rounds
    return predicted, rounds * len(conditional), accepted, rounds


def test_published_run_with_counts_and_mean_length() -> None:
    """llama.cpp printed 38 accepted of 93 generated, mean length 2.58, for 64 tokens (24 drafts and one plain step)."""
    counts = c.from_counts(predicted=64, drafted=93, accepted=38)
    assert counts.rounds == 25
    assert counts.acceptance == pytest.approx(0.40860, abs=1e-5)
    assert c.mean_length_from_acceptance(counts.acceptance, 93 / 24) == pytest.approx(2.58, abs=0.005)


def test_the_article() -> None:
    """64.3 % at the default draft length of 3: what one figure says of rounds and calls saved."""
    a = c.constant_acceptance(0.643, 3)
    assert (a + a**2 + a**3) / 3 == pytest.approx(0.643)
    assert a == pytest.approx(0.795, abs=0.001)
    tau = c.mean_length_from_acceptance(0.643, 3)
    assert tau == pytest.approx(2.929)
    assert c.calls_saved(tau) == pytest.approx(0.6586, abs=1e-4)
    # the measured speedups are below tau by the cost of a round: 1.85 and 5.5 decode steps
    assert tau / (11.20 / 7.09) == pytest.approx(1.854, abs=0.001)
    assert c.mean_length_from_acceptance(0.718, 3) / (22.93 / 40.14) == pytest.approx(5.52, abs=0.01)


def test_counting_drafts_after_a_rejection_makes_acceptance_fall_with_the_draft_length() -> None:
    assert c.acceptance([0.8]) == pytest.approx(0.8)
    assert c.acceptance([0.8] * 3) == pytest.approx((0.8 + 0.64 + 0.512) / 3)
    assert c.acceptance([0.8] * 16) < 0.25


@pytest.mark.parametrize("conditional", [[0.8, 0.7, 0.6], [0.9], [0.3, 0.9, 0.9, 0.9, 0.9]])
def test_counters_of_a_simulated_run_lead_back_to_its_positions(conditional: list[float]) -> None:
    predicted, drafted, accepted, rounds = simulate(conditional, 40_000)
    counts = c.from_counts(predicted, drafted, accepted)
    assert counts.rounds == rounds
    assert counts.drafted_per_round == len(conditional)
    assert counts.acceptance == pytest.approx(c.acceptance(conditional), abs=0.01)
    assert counts.mean_length == pytest.approx(c.mean_length(conditional), abs=0.03)


@given(rates, lengths)
def test_constant_acceptance_inverts_acceptance(rate: float, k: int) -> None:
    assert c.acceptance([c.constant_acceptance(rate, k)] * k) == pytest.approx(rate, abs=1e-9)


@given(rates, lengths, offsets)
def test_positions_reproduce_the_rate_whatever_their_shape(rate: float, k: int, shape: list[float]) -> None:
    found = c.positions_from_acceptance(rate, k, shape)
    assert len(found) == k
    assert c.acceptance(found) == pytest.approx(rate, abs=1e-9)
    logits = [c.logit(p) for p in found]
    for i in range(1, min(k, len(shape))):
        if all(1e-6 < p < 1 - 1e-6 for p in (found[0], found[i])):
            assert logits[i] - logits[0] == pytest.approx(shape[i] - shape[0], abs=1e-6)


@given(positions)
def test_survival_and_conditional_are_inverse(values: list[float]) -> None:
    reached = c.survival(values)
    assert list(reached) == sorted(reached, reverse=True)
    again = c.survival(c.conditional(reached))
    assert again == pytest.approx(reached, abs=1e-9)


@given(positions)
def test_mean_length_lies_between_one_and_all(values: list[float]) -> None:
    tau = c.mean_length(values)
    assert 1 <= tau <= 1 + len(values) + 1e-9
    assert c.acceptance_from_mean_length(tau, len(values)) == pytest.approx(c.acceptance(values), abs=1e-9)
    assert 0 <= c.calls_saved(tau) < 1
    assert tau <= c.mean_length_with_replay(values) <= tau + 1


@given(rates, lengths, lengths, offsets)
def test_rescaling_there_and_back(rate: float, k: int, other: int, shape: list[float]) -> None:
    there = c.rescale(rate, k, other, shape)
    if 1e-9 < there < 1 - 1e-9:
        assert c.rescale(there, other, k, shape) == pytest.approx(rate, abs=1e-6)


@given(st.floats(0.05, 0.95), st.floats(0.05, 0.95), st.integers(1, 16))
def test_a_gate_never_yields_more_tokens(rate: float, ungated: float, k: int) -> None:
    one = c.gated(rate, ungated, k)
    assert one.mean_length <= 1 + k * ungated + 1e-9
    assert one.drafted <= k
    assert one.mean_length == pytest.approx(1 + one.accepted)
    if rate > ungated + 0.01:
        assert one.accepted < k * ungated


def test_a_published_gate_sweep() -> None:
    """RTX 3090, Qwen3.8-27B MTP, k = 7: p_min 0.5 and 0.75 gave 52.6 % with mean length 2.99 and 76.8 % with 2.49."""
    assert c.gated(0.526, 0.323, 7).mean_length == pytest.approx(2.99, abs=0.06)
    assert c.gated(0.768, 0.323, 7).mean_length == pytest.approx(2.49, abs=0.06)
    # at full draft length the first figure would mean 4.68 tokens per round
    assert 1 + 7 * 0.526 > 4.6


def test_positions_from_metrics() -> None:
    assert c.positions_from_counts([80, 40, 10], 100) == pytest.approx((0.8, 0.5, 0.25))


def test_zero_and_all() -> None:
    assert c.positions_from_acceptance(0.0, 3) == (0.0, 0.0, 0.0)
    assert c.positions_from_acceptance(1.0, 2, (0.0, -1.0)) == (1.0, 1.0)
    assert c.rescale(1.0, 3, 8) == 1.0
    assert math.isinf(c.theta_from_acceptance(0.0, 3))
    assert c.conditional((0.5, 0.0, 0.0)) == (0.5, 0.0, 0.0)


@settings(max_examples=25)
@given(st.floats(1e-6, 1 - 1e-6))
def test_logit_and_expit_are_inverse(p: float) -> None:
    assert c.expit(c.logit(p)) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: c.acceptance([]),
        lambda: c.conditional([0.5, 0.6]),
        lambda: c.positions_from_counts([1], 0),
        lambda: c.acceptance_from_mean_length(5.0, 3),
        lambda: c.acceptance_from_mean_length(2.0, 0),
        lambda: c.calls_saved(0.5),
        lambda: c.theta_from_acceptance(1.5, 3),
        lambda: c.constant_acceptance(0.5, 0),
        lambda: c.rescale(1.0, 0, 3),
        lambda: c.from_counts(64, 0, 0),
        lambda: c.from_counts(10, 20, 15),
        lambda: c.from_counts(64, 10, 20),
        lambda: c.gated(0.0, 0.5, 3),
    ],
)
def test_contradictions_are_refused(bad) -> None:  # type: ignore[no-untyped-def]  # a lambda of any return type
    with pytest.raises(InputError):
        bad()
