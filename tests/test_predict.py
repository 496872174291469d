"""The prediction as a whole: the article's pairs, its invariants, and its words."""

from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.errors import InputError
from advisor.hardware.machine import Setup
from advisor.hardware.resolve import resolve
from advisor.models.catalogue import describe_catalogue
from advisor.performance.select import fitted_costs
from advisor.speculation.acceptance import given as given_acceptance
from advisor.speculation.predict import distinct_experts, gains_by_slots, infer_method, predict
from advisor.speculation.prediction import Prediction

DENSE = ("qwen3.5-27b:Q8_0", "qwen3.5-2b:Q8_0", 0.643, 1.5797)
MOE = ("gpt-oss-120b:MXFP4", "gpt-oss-20b:MXFP4", 0.718, 0.5713)


@pytest.fixture(scope="module")
def strix_halo() -> Setup:
    return resolve("395")


def pair(target: str, draft: str | None, setup: Setup, **options: object) -> Prediction:
    return predict(
        describe_catalogue(target),
        describe_catalogue(draft) if draft else None,
        setup=setup,
        calibrated=False,
        **options,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("backend", ["vulkan", "rocm"])  # the article does not say which one LM Studio used
@pytest.mark.parametrize(("target", "draft", "acceptance", "measured"), [DENSE, MOE])
def test_the_articles_pairs_come_out_right(
    target: str, draft: str, acceptance: float, measured: float, backend: str
) -> None:
    p = pair(target, draft, resolve("395", backend=backend), draft_max=3, acceptance=acceptance)
    assert (p.speedup.median > 1) == (measured > 1)
    assert p.speedup.median == pytest.approx(measured, rel=0.20)
    assert p.speedup.low < measured < p.speedup.high
    assert p.verdict == ("faster" if measured > 1 else "slower")
    assert p.method == "draft-simple"


def test_the_losing_pair_is_explained_by_experts_and_active_parameters(strix_halo: Setup) -> None:
    p = pair(MOE[0], MOE[1], strix_halo, draft_max=3, acceptance=MOE[2])
    text = " ".join(p.reasons)
    assert "4 tokens touch 15 of 128 experts per layer" in text
    assert "3.61B of 5.13B active parameters" in text
    assert p.best.draft_max == 0, "no draft length wins, so the best advice is not to draft"


def test_distinct_experts_counts_a_union() -> None:
    assert distinct_experts(128, 4, 1) == pytest.approx(4)
    assert distinct_experts(128, 4, 4) == pytest.approx(15.27, abs=0.01)
    assert distinct_experts(8, 8, 3) == 8


def test_parts_add_up_and_speed_is_consistent(strix_halo: Setup) -> None:
    p = pair(DENSE[0], DENSE[1], strix_halo, draft_max=3, acceptance=0.6)
    r = p.round
    assert r.cost == pytest.approx(r.draft + r.verify + r.overhead)
    assert 0 <= r.rollback <= r.overhead
    assert p.speedup.median == pytest.approx(p.mean_accepted_length / r.cost)
    assert p.speculative_tps.median == pytest.approx(p.baseline_tps.median * p.speedup.median)
    assert p.target.decode_bytes < p.target.size_bytes
    assert {f.kind for f in p.figures.values()} <= {"measured", "published", "fitted", "assumed"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acceptance=st.floats(0.0, 1.0), k=st.integers(1, 12), depth=st.sampled_from([0, 4096, 65536]))
def test_more_acceptance_is_never_slower(acceptance: float, k: int, depth: int, strix_halo: Setup) -> None:
    p = pair(DENSE[0], DENSE[1], strix_halo, draft_max=k, acceptance=acceptance, depth=depth)
    better = pair(DENSE[0], DENSE[1], strix_halo, draft_max=k, acceptance=min(1.0, acceptance + 0.1), depth=depth)
    assert 1.0 <= p.mean_accepted_length <= k + 2
    assert better.speedup.median >= p.speedup.median * 0.97
    assert p.speedup.low <= p.speedup.median <= p.speedup.high
    assert 0.0 <= p.probability_faster <= 1.0
    assert all(math.isfinite(x) and x > 0 for x in (p.baseline_tps.median, p.speculative_tps.median, p.round.cost))


def test_break_even_is_where_the_speedup_is_one(strix_halo: Setup) -> None:
    p = pair("qwen3-32b:Q4_K_M", "qwen3-0.6b:Q4_K_M", strix_halo, draft_max=4, acceptance=0.6)
    assert p.break_even_acceptance is not None
    at = pair("qwen3-32b:Q4_K_M", "qwen3-0.6b:Q4_K_M", strix_halo, draft_max=4, acceptance=p.break_even_acceptance)
    assert at.speedup.median == pytest.approx(1.0, abs=0.01)


def test_best_draft_length_is_the_top_of_the_curve(strix_halo: Setup) -> None:
    p = pair("qwen3.6-27b:Q4_K_M", None, strix_halo, task="code")
    assert p.method == "draft-mtp"
    top = max(p.curve, key=lambda c: c.speedup.median)
    assert (p.best.draft_max, p.draft_max) == (top.draft_max, top.draft_max)


def test_incompatible_tokenizers_are_the_verdict(strix_halo: Setup) -> None:
    p = pair("qwen3-32b:Q4_K_M", "llama-3.2-1b:Q4_K_M", strix_halo, draft_max=3, acceptance=0.6)
    assert p.verdict == "incompatible"
    assert p.tokenizer.compatible is False
    assert p.tokenizer.reason in p.reasons[0]


def test_a_model_that_does_not_fit_is_said_so() -> None:
    p = pair("llama-3.3-70b:Q8_0", "llama-3.2-1b:Q8_0", resolve("RTX 3090"), draft_max=3, acceptance=0.7)
    assert p.memory.fits is False
    assert p.verdict == "does not fit"
    assert p.memory.advice


def test_slots_make_the_gain_fade(strix_halo: Setup) -> None:
    one = pair("qwen3-32b:Q4_K_M", "qwen3-0.6b:Q4_K_M", strix_halo, draft_max=3, acceptance=0.7)
    many = pair("qwen3-32b:Q4_K_M", "qwen3-0.6b:Q4_K_M", resolve("395", parallel=4), draft_max=3, acceptance=0.7)
    assert many.speedup.median < one.speedup.median
    assert any("Requests at once share a pass" in r for r in many.reasons)
    assert not any("Requests at once" in r for r in one.reasons)


def test_the_gain_by_slots_is_what_a_prediction_with_so_many_slots_says(strix_halo: Setup) -> None:
    target, draft = describe_catalogue("qwen3-32b:Q4_K_M"), describe_catalogue("qwen3-0.6b:Q4_K_M")
    gains = gains_by_slots(target, draft, "draft-simple", strix_halo, 3, given_acceptance(0.7, 3), costs=fitted_costs)
    assert list(gains) == [1, 2, 4, 8, 16]
    for slots in (1, 4):
        setup = resolve("395", parallel=slots)
        p = predict(target, draft, setup=setup, draft_max=3, acceptance=0.7, calibrated=False)
        assert p.speedup.median == pytest.approx(gains[slots])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"acceptance": 1.2}, "not a share"),
        ({"draft_max": 0}, "draft length"),
        ({"depth": -1}, "cannot be negative"),
        ({"p_min": 2.0}, "p-min"),
    ],
)
def test_values_that_cannot_be_are_refused(options: dict[str, object], words: str, strix_halo: Setup) -> None:
    with pytest.raises(InputError, match=words):
        pair(DENSE[0], DENSE[1], strix_halo, **options)


def test_nothing_to_draft_with_is_refused() -> None:
    with pytest.raises(InputError, match="no MTP layers"):
        infer_method(describe_catalogue("llama-3.1-8b:Q4_K_M"), None)


def test_json_holds_the_promised_fields() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "advisor", "predict", MOE[0], MOE[1], "-H", "395", "-a", "0.718", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(run.stdout)
    assert answer["schema_version"] == 1
    for name in (
        "target", "draft", "hardware", "backend", "method", "draft_max", "acceptance", "mean_accepted_length",
        "baseline_tps", "speculative_tps", "speedup", "probability_faster", "round", "best", "memory", "tokenizer",
        "verdict", "reasons",
    ):  # fmt: skip
        assert name in answer
    assert {"median", "low", "high", "level"} <= answer["speedup"].keys()
    assert {"cost", "draft", "verify", "overhead"} <= answer["round"].keys()
    assert {"draft_max", "speedup"} <= answer["best"].keys()
    assert {"compatible", "reason"} <= answer["tokenizer"].keys()


def test_a_gate_raises_the_acceptance_that_is_counted(strix_halo: Setup) -> None:
    plain = pair("qwen3-32b:Q4_K_M", "qwen3-0.6b:Q4_K_M", strix_halo, draft_max=6, task="chat")
    gated = pair("qwen3-32b:Q4_K_M", "qwen3-0.6b:Q4_K_M", strix_halo, draft_max=6, task="chat", p_min=0.6)
    assert gated.acceptance.rate.median > plain.acceptance.rate.median
    assert gated.mean_accepted_length < plain.mean_accepted_length
    given = pair("qwen3-32b:Q4_K_M", "qwen3-0.6b:Q4_K_M", strix_halo, draft_max=6, acceptance=0.7, p_min=0.6)
    assert given.acceptance.rate.median == pytest.approx(0.7)
