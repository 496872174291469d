"""The fit evaluates the very formulas that are shipped, and ``make fit`` never looks at the article's rows."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scripts import load

from advisor.performance.constants import load_constants
from advisor.validation.report import score

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def fit() -> ModuleType:
    module: ModuleType = load("benchmarks/fit.py")
    return module


@pytest.fixture(scope="module")
def some(fit: ModuleType) -> tuple[object, list[object]]:
    """A thinned set of observations of all tables."""
    recording = fit.Recording()
    observations = []
    for kind, step in (("decode", 23), ("batch", 23), ("speculation", 9)):
        observations += [fit.observe(recording, case) for case in fit.load(kind)[0][::step]]
    return recording, observations


def test_the_fit_and_the_product_say_the_same(fit: ModuleType, some: tuple[object, list[object]]) -> None:
    recording, observations = some
    problem = fit.Problem(observations, recording.machines)  # type: ignore[attr-defined]
    shipped = load_constants()
    x = np.array([np.log(shipped[name]) for name in problem.names])
    predicted = np.exp(problem.predict(x))
    for o, p in zip(observations, predicted, strict=True):
        line = score(o.case).line  # type: ignore[attr-defined]
        assert line.predicted == pytest.approx(p, rel=2e-4), line.id


def test_the_articles_rows_are_never_observed(fit: ModuleType) -> None:
    used, skipped = fit.load("speculation")
    assert not [c.id for c in used if c.id.startswith("A")]
    assert {s.id for s in skipped if s.id.startswith("A")} == {"A0001", "A0002", "A0003"}


def test_a_fit_lowers_the_error_and_shrinks_what_it_does_not_see(
    fit: ModuleType, some: tuple[object, list[object]]
) -> None:
    recording, observations = some
    problem = fit.Problem(observations, recording.machines)  # type: ignore[attr-defined]
    weight = fit.weights_of(observations)
    x, covariance = fit.solve(problem, weight, rounds=3)

    def error(y: object) -> float:
        return float(np.sum(weight * np.abs(problem.predict(y) - problem.log_measured)))

    assert error(x) < 0.7 * error(problem.mean)
    se = np.sqrt(np.diag(covariance))
    assert np.all(se <= problem.sd * 1.001)
    unseen = problem.position["expert.cpu"]
    assert x[unseen] == pytest.approx(problem.mean[unseen], abs=1e-3)


def test_folds_leave_nothing_of_a_device_in(fit: ModuleType, some: tuple[object, list[object]]) -> None:
    _, observations = some
    folds = fit.device_folds(observations)
    covered = np.zeros(len(observations), dtype=bool)
    for mask in folds:
        gone = {d for o, hit in zip(observations, mask, strict=True) if hit for d in o.devices}  # type: ignore[attr-defined]
        kept = [o for o, hit in zip(observations, mask, strict=True) if not hit]
        shared = [o for o in kept if len(o.devices) == 1 and o.devices <= gone]  # type: ignore[attr-defined]
        partners = [
            d for o, hit in zip(observations, mask, strict=True) if hit and len(o.devices) > 1 for d in o.devices
        ]  # type: ignore[attr-defined]
        assert all(next(iter(o.devices)) in partners for o in shared)  # type: ignore[attr-defined]
        covered |= mask
    assert covered.all()
    for author, stranger in zip(fit.source_folds(observations), fit.stranger_folds(observations), strict=True):
        assert np.all(stranger[author])


def test_a_recorded_sum_is_linear(fit: ModuleType) -> None:
    a, b = fit.Linear({("x",): 2.0}), fit.Linear({("x",): 1.0, ("y",): 3.0})
    assert (2 * a + b * 0.5 + 0.0).terms == {("x",): 4.5, ("y",): 1.5}
    assert sum([a, b]).terms == {("x",): 3.0, ("y",): 3.0}  # type: ignore[attr-defined]
    assert (a + 1.5).terms == {("x",): 2.0, ("const",): 1.5}
