"""The arithmetic of the live benchmark: what its report says of draft lengths must not reward luck."""

from __future__ import annotations

import random
from statistics import mean
from typing import Any

import pytest
from scripts import load


@pytest.fixture(scope="module")
def live() -> Any:
    return load("benchmarks/live.py")


def point(live: Any, k: int, cost: float) -> Any:
    return live.Point(case="x", draft_max=k, round_cost=cost, spread=0.1, drafted=k, base_ms=5.0, engine="e")


def test_the_best_length_is_chosen_where_it_is_not_compared(live: Any) -> None:
    exact = [{0: 1.0, 1: 1.2, 2: 1.5, 3: 1.4}] * 3
    assert live.share_of_best(exact, 2) == pytest.approx(1.0)
    assert live.share_of_best(exact, 1) == pytest.approx(0.8)
    assert live.share_of_best(exact[:1], 3) == pytest.approx(1.4 / 1.5)


def test_noise_alone_costs_no_length_its_share(live: Any) -> None:
    rng = random.Random(3)
    shares, luckiest = [], []
    for _ in range(300):
        noisy = [{k: rng.gauss(1.0, 0.05) for k in range(9)} for _ in range(3)]
        shares.append(live.share_of_best(noisy, 4))
        together = {k: mean(s[k] for s in noisy) for k in range(9)}
        luckiest.append(together[4] / max(together.values()))
    assert mean(shares) == pytest.approx(1.0, abs=0.01)
    assert mean(luckiest) < 0.97


def test_sessions_are_merged_and_taken_apart(live: Any) -> None:
    points = [
        point(live, 1, 1.0),
        point(live, 2, 2.0),
        point(live, 1, 1.2),
        point(live, 2, 2.2),
        point(live, 1, 1.1),
        point(live, 2, 2.1),
    ]
    assert [(p.draft_max, p.round_cost) for p in live.merged_points(points)] == [(1, 1.1), (2, 2.1)]
    sessions = live.speeds_by_session(points, {1: 1.8, 2: 2.44})
    assert [s[1] for s in sessions] == pytest.approx([1.8, 1.5, 1.8 / 1.1])
    assert {s[0] for s in sessions} == {1.0}
