"""Blind predictions: content and physics put together, and how they are scored."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from advisor.hardware.resolve import resolve
from advisor.models.catalogue import describe_catalogue
from advisor.performance.select import fitted_costs
from advisor.resources import resource
from advisor.speculation import acceptance
from advisor.speculation.overview import outcome
from advisor.speculation.rounds import rounds_of
from advisor.validation.cases import Skipped, speculation_case
from advisor.validation.tables import read_table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import blind
import fit_acceptance as fitting


def scored(**changes: object) -> blind.Scored:
    base = blind.Scored("1", "a", "g", "s", "draft-mtp", 1.5, 1.5, 1.2, 1.8, 0.9, 0.7, 0.7, 0.5, 0.8)
    return base._replace(**changes)  # type: ignore[arg-type]  # field names, checked by _replace


@pytest.fixture(scope="module")
def table() -> Sequence[blind.Scored]:
    """All usable training rows with the shipped posterior: not evidence of accuracy, but of nothing being broken."""
    found = []
    for row in read_table(resource("data", "speculation.csv")).rows:
        if row.text("usable_for") in ("test", "avoid", "context") or row.text("trust") == "low":
            continue
        case = speculation_case(row, blind=True)
        if not isinstance(case, Skipped):
            one = blind.blind(row, case, acceptance.model())
            if one is not None:
                found.append(one)
    return found


def test_ranges_and_errors_on_the_training_table(table: Sequence[blind.Scored]) -> None:
    assert len(table) > 300
    errors = sorted(r.error for r in table)
    assert errors[len(errors) // 2] < 0.15
    covered = sum(r.covered for r in table) / len(table)
    assert 0.75 < covered < 0.97
    told = [r for r in table if r.acceptance is not None]
    inside = sum(r.expected_low <= (r.acceptance or 0) <= r.expected_high for r in told) / len(told)
    assert 0.7 < inside < 0.99


def test_the_probability_of_faster_orders_the_rows(table: Sequence[blind.Scored]) -> None:
    rows = [r for r in table if not r.method.startswith("ngram")]
    sure = [r.measured > 1 for r in rows if r.probability_faster > 0.9]
    unsure = [r.measured > 1 for r in rows if 0.3 < r.probability_faster < 0.7]
    against = [r.measured > 1 for r in rows if r.probability_faster < 0.1]
    assert sum(sure) / len(sure) > 0.95
    assert sum(against) / len(against) < 0.2
    assert sum(against) / len(against) < sum(unsure) / len(unsure) < sum(sure) / len(sure)


def test_uncertainties_of_content_and_physics_add_up() -> None:
    target = describe_catalogue("qwen3.8-27b:Q4_K_M")
    rounds = rounds_of(target, None, "draft-mtp", resolve("RTX 3090"), costs=fitted_costs)
    guess = acceptance.estimate(target, None, "draft-mtp", task="code", k=3, results=())
    told = acceptance.given(guess.rate.median, 3, "draft-mtp")
    blind_one, told_one = (outcome(rounds, e, 3).speedup for e in (guess, told))
    assert told_one.median == pytest.approx(blind_one.median, rel=1e-6)
    assert blind_one.low < told_one.low < told_one.median < told_one.high < blind_one.high
    assert 0.5 < outcome(rounds, guess, 3).probability_faster <= 1


def test_the_same_answer_as_a_prediction() -> None:
    from advisor.speculation.predict import predict

    target, draft = describe_catalogue("qwen2.5-coder-14b:Q4_K_M"), describe_catalogue("qwen2.5-coder-0.5b:Q8_0")
    setup = resolve("RTX 3090")
    guess = acceptance.estimate(target, draft, "draft-simple", task="chat", k=5)
    one = outcome(rounds_of(target, draft, "draft-simple", setup, costs=fitted_costs), guess, 5)
    two = predict(target, draft, setup=setup, draft_max=5, task="chat", calibrated=False)
    assert one.speedup.median == pytest.approx(two.speedup.median, rel=1e-6)
    assert one.speedup.low == pytest.approx(two.speedup.low, rel=1e-6)
    assert one.probability_faster == pytest.approx(two.probability_faster, abs=1e-6)


def test_scores() -> None:
    assert blind.quantile([(1.0, 1.0), (2.0, 1.0), (3.0, 2.0)], 0.5) == 2.0
    assert blind.quantile([(1.0, 1.0), (2.0, 1.0), (3.0, 2.0)], 0.9) == 3.0
    line = blind.summary("x", [scored(), scored(setup="t", measured=1.9), scored(setup="t", measured=0.9)])
    cells = [c.strip() for c in line.strip("|").split("|")]
    assert cells[1:4] == ["3", "2", "1"]
    assert cells[7:10] == ["33 %", "50 %", "50 %"]  # one of three rows; the second setup counts once
    assert cells[10] == "67 %"


def test_the_section_replaces_itself_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "accuracy.md"
    page.write_text("# Accuracy\n\nbefore\n", encoding="utf-8")
    text = blind.section([scored(), scored(id="2", probability_faster=0.1, measured=0.8)])
    blind.write(text, page)
    once = page.read_text(encoding="utf-8")
    assert once.startswith("# Accuracy\n\nbefore\n")
    assert "Brier" in once
    page.write_text(once + "after\n", encoding="utf-8")
    blind.write(text, page)
    assert page.read_text(encoding="utf-8") == once + "after\n"


def test_an_author_left_out_leaves_no_trace() -> None:
    families, active = fitting.read_models(resource("data", "models.json"))
    runs = [r for r in fitting.read_runs(resource("data", "speculation.csv"), families, active) if r.k <= 2][:40]
    full = fitting.fit(runs, {**fitting.FIXED_SD, **{k: v[0] for k, v in fitting.SD_PRIOR.items()}}, rounds=1)
    stranger = blind.model_without("nobody", runs, families, full)
    assert sum(e.runs for e in stranger.evidence) == len(runs)


def test_physics_matters_only_where_something_is_drafted() -> None:
    target = describe_catalogue("qwen3-14b:Q4_K_M")
    rounds = rounds_of(target, None, "ngram-mod", resolve("RTX 3090"), costs=fitted_costs)
    guess = acceptance.estimate(target, None, "ngram-mod", task="chat", k=48, results=())
    rare, always = (
        outcome(rounds, guess.model_copy(update={"draft_share": share}), 48).speedup for share in (0.01, 1.0)
    )
    assert rare.median == pytest.approx(1, abs=0.05)
    assert rare.high / rare.low < 1.1 < always.high / always.low
