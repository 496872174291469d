"""What acceptance is expected, how sure that is, and how one's own runs move it."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import InputError
from advisor.models.catalogue import describe_catalogue
from advisor.resources import resource
from advisor.speculation import acceptance as a
from advisor.speculation.acceptance import OwnRun, estimate
from advisor.speculation.prediction import Method, Task

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
import fit_acceptance as fitting

TARGET = describe_catalogue("qwen3.8-27b:Q4_K_M")
SMALL = describe_catalogue("qwen3.5-0.8b:Q8_0")
OTHER = describe_catalogue("llama-3.3-70b:Q4_K_M")
OTHER_DRAFT = describe_catalogue("llama-3.2-1b:Q8_0")
DRAFTING: tuple[Method, ...] = tuple(m for m in get_args(Method) if m != "none")


def own(accepted: int, drafted: int = 1200, runs: int = 12, **changes: Any) -> OwnRun:
    base = OwnRun("draft-mtp", "qwen3.8-27b", "", "code", 3, drafted, accepted, runs, prompts=6)
    return base._replace(**changes)


# --- the shipped posterior


def test_the_shipped_posterior_is_a_posterior() -> None:
    import numpy as np

    m = a.model()
    covariance = np.array(m.covariance)
    assert covariance.shape == (len(m.place),) * 2
    assert np.linalg.eigvalsh(covariance).min() > -1e-3
    assert all(o[0] == 0 and len(o) == a.POSITIONS for o in m.offsets.values())
    # what was learned is surer than what was assumed before
    for name, i in m.place.items():
        assert m.covariance[i][i] <= (m.sd[name.partition(":")[0]] * 1.001) ** 2


def test_it_was_fitted_to_the_shipped_table_without_the_test_rows() -> None:
    families, active = fitting.read_models(resource("data", "models.json"))
    runs = fitting.read_runs(resource("data", "speculation.csv"), families, active)
    raw = json.loads(resource("data", "acceptance.json").read_text(encoding="utf-8"))
    assert raw["runs"] == len(runs) > 200
    assert raw["evidence"] == fitting.evidence(runs)
    assert not {r.id for r in runs} & {"A0001", "A0002", "A0003"}
    assert not any("article" in r.group for r in runs)


def test_a_fit_finds_the_truth_and_pools_sparse_groups() -> None:
    offsets = (0.0, -0.6, -0.8)
    runs = []
    for i in range(60):
        author, task, k = f"author{i % 6}", ("code", "prose")[i % 2], 1 + i // 6 % 3
        theta = 1.2 + (0.4 if task == "code" else -0.4) + 0.2 * math.sin(7 * (i % 6))
        rate = a.acceptance(a.positions_from_theta(theta, k, offsets))
        runs.append(
            fitting.Run(str(i), author, author, author, f"{author} {task}", "draft-mtp", "f", "dense", "", task, 0.0,
                        4.8, 16.0, 1.0, k, rate, 3000.0, 0.0)
        )  # fmt: skip
    sd = {**fitting.FIXED_SD, **{k: v[0] for k, v in fitting.SD_PRIOR.items()}}
    found = fitting.fit(runs, sd)
    effects = dict(zip(found.names, found.mean, strict=True))
    assert found.offsets["draft-mtp"][1] == pytest.approx(-0.6, abs=0.1)
    assert found.offsets["draft-mtp"][2] == pytest.approx(-0.8, abs=0.12)
    code = effects["task:code"] + effects["tasked:code|draft-mtp"]
    prose = effects["task:prose"] + effects["tasked:prose|draft-mtp"]
    assert 0.3 < code - prose < 0.8  # pulled towards each other, not away
    # a task without rows stays at its prior and is no surer than it
    model = a.parse({**fitting.posterior(found, 1.0), "evidence": [], "ngram": {}, "ngram_runs": {}, "families": {}})

    def asked(task: str) -> tuple[float, float]:
        query = a.Query("draft-mtp", "f", "dense", "", task, 0.0, 4.8, 16.0, 1.0)
        one = a.infer(query, (), model)
        assert one.logit_mean is not None
        assert one.logit_sd is not None
        return one.logit_mean, one.logit_sd

    assert asked("prose")[0] < asked("math")[0] < asked("code")[0]
    assert asked("math")[1] > asked("code")[1]


def test_unusable_rows_are_left_out(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    head = resource("data", "speculation.csv").read_text(encoding="utf-8").splitlines()[0]
    columns = head.split(",")
    good = dict.fromkeys(columns, "") | {
        "id": "X1", "source_group": "x", "target": "qwen3.8-27b", "method": "draft-mtp", "draft_max": "2",
        "acceptance": "0.8", "trust": "high", "usable_for": "speed", "task": "code", "setup": "U",
        "engine": "llama.cpp",
    }  # fmt: skip
    rows = [
        good, good | {"trust": "low"}, good | {"usable_for": "avoid"}, good | {"usable_for": "test"},
        good | {"p_min": "0.5"}, good | {"acceptance": ""}, good | {"method": "ngram-mod"}, good | {"draft_max": ""},
        good | {"parallel": "4"}, good | {"id": "A0009"},
    ]  # fmt: skip
    table.write_text("\n".join([head, *(",".join(r[c] for c in columns) for r in rows)]), encoding="utf-8")
    assert [r.id for r in fitting.read_runs(table, {}, {})] == ["X1"]


# --- estimates


@pytest.mark.parametrize("method", DRAFTING)
@pytest.mark.parametrize("task", [None, *get_args(Task)])
def test_every_method_and_task_gets_an_ordered_range_with_evidence(method: Method, task: Task | None) -> None:
    draft = None if method == "draft-mtp" or method in a.NGRAM else SMALL
    one = estimate(TARGET, draft, method, task=task, k=3, results=())
    assert 0 <= one.rate.low < one.rate.median < one.rate.high <= 1
    assert len(one.positions) == 3
    assert a.acceptance(one.positions) == pytest.approx(one.rate.median)
    assert one.evidence
    assert one.task == task
    assert 0 < one.draft_share <= 1


def test_provenance_says_what_is_known() -> None:
    known = estimate(TARGET, None, "draft-mtp", task="code", k=3, results=())
    assert known.kind == "published"
    assert "nearest: qwen3.8-27b MTP on code" in known.evidence
    related = estimate(OTHER, OTHER_DRAFT, "draft-simple", k=3, results=())
    assert related.kind == "fitted"
    assert "nearest: llama-3.1-8b + llama-3.2-1b" in related.evidence
    nothing = estimate(TARGET, SMALL, "draft-dspark", k=3, results=())
    assert nothing.kind == "assumed"
    assert nothing.rate.high - nothing.rate.low > known.rate.high - known.rate.low
    assert "no run" in nothing.evidence
    grounded = estimate(TARGET, None, "ngram-mod", task="code-edit", k=48, results=())
    assert grounded.kind == "assumed"
    assert "--sample" in grounded.evidence


def test_acceptance_falls_with_the_draft_length_but_tokens_do_not() -> None:
    for method, draft in (("draft-mtp", None), ("draft-simple", SMALL), ("draft-dflash", SMALL)):
        points = [estimate(TARGET, draft, method, k=k, results=()) for k in range(1, 9)]  # type: ignore[arg-type]  # literals
        rates = [p.rate.median for p in points]
        assert rates == sorted(rates, reverse=True)
        tokens = [k * r for k, r in enumerate(rates, 1)]
        assert tokens == sorted(tokens)


def test_mtp_decays_along_the_draft_as_published_sweeps_do() -> None:
    offsets = a.model().offsets["draft-mtp"]
    assert offsets[1] < -0.2
    assert offsets[2] < -0.2


def test_content_and_temperature_matter() -> None:
    def rate(**changes: Any) -> float:
        return estimate(TARGET, None, "draft-mtp", k=3, results=(), **changes).rate.median

    assert rate(task="math") > rate(task="prose")
    assert rate(task="code", temperature=1.0) < rate(task="code")
    unsure, sure = (
        estimate(TARGET, None, "draft-mtp", k=3, results=(), task="code", temperature=t).logit_sd for t in (1.0, 0.0)
    )
    assert unsure is not None
    assert sure is not None
    assert unsure > sure


def test_a_low_quantisation_loses_and_is_less_sure() -> None:
    low, high = (describe_catalogue(f"qwen3.8-27b:{q}") for q in ("IQ2_XXS", "Q8_0"))
    a_low, a_high = (estimate(x, None, "draft-eagle3", k=3, results=()) for x in (low, high))
    assert a_low.rate.median < a_high.rate.median
    assert a_low.rate.high - a_low.rate.low > a_high.rate.high - a_high.rate.low


def test_an_unknown_family_is_less_sure_than_a_known_one() -> None:
    stranger = TARGET.model_copy(update={"catalogue_slug": None, "name": "zebra-9b", "tokenizer": None})
    one, two = (estimate(x, None, "draft-mtp", k=3, results=()).logit_sd for x in (TARGET, stranger))
    assert one is not None
    assert two is not None
    assert two > one


def test_quantiles_and_shifts_follow_the_latent() -> None:
    one = estimate(TARGET, None, "draft-mtp", k=4, results=())
    low, middle, high = a.quantiles(one, (0.1, 0.5, 0.9), 4)
    assert (low, middle, high) == pytest.approx((one.rate.low, one.rate.median, one.rate.high))
    assert a.positions(one, 12)[-1] == a.positions(one, 9)[-1]
    assert a.at_length(a.at_length(one, 7), 4) == one


def test_a_stated_acceptance_is_taken_as_it_is() -> None:
    one = a.given(0.643, 3, "draft-simple")
    assert one.rate.low == one.rate.high == pytest.approx(0.643)
    assert one.kind == "given"
    assert a.at_length(one, 8).rate.median < 0.643 < a.at_length(one, 1).rate.median
    assert a.given(1.0, 3).rate.median == pytest.approx(1.0)
    assert a.given(0.0, 3, "draft-mtp").rate.median == pytest.approx(0.0)


@pytest.mark.parametrize("bad", [lambda: estimate(TARGET, None, "draft-mtp", k=0), lambda: a.given(1.2, 3)])
def test_impossible_questions(bad: Any) -> None:
    with pytest.raises(InputError):
        bad()


# --- own runs


def test_own_runs_of_the_pair_rule_and_are_named() -> None:
    before = estimate(TARGET, None, "draft-mtp", task="code", k=3, results=())
    after = estimate(TARGET, None, "draft-mtp", task="code", k=3, results=(own(540),))
    assert after.kind == "measured"
    assert after.evidence.startswith("12 of your own runs; ")
    assert before.rate.median - 0.45 > after.rate.median - 0.45 >= 0
    assert abs(after.rate.median - 0.45) < 0.4 * abs(before.rate.median - 0.45)
    assert after.rate.high - after.rate.low < before.rate.high - before.rate.low


@given(st.integers(0, 1200))
@settings(max_examples=40, deadline=None)
def test_an_own_run_pulls_towards_itself_and_never_beyond(accepted: int) -> None:
    before = estimate(TARGET, None, "draft-mtp", task="code", k=3, results=())
    after = estimate(TARGET, None, "draft-mtp", task="code", k=3, results=(own(accepted),))
    seen, _ = a.observe(accepted, 1200, 3, before.offsets, 0.0)
    assert before.logit_mean is not None
    assert after.logit_mean is not None
    assert before.logit_sd is not None
    assert after.logit_sd is not None
    assert min(before.logit_mean, seen) - 1e-6 <= after.logit_mean <= max(before.logit_mean, seen) + 1e-6
    assert after.logit_sd < before.logit_sd


def test_more_evidence_is_surer_and_other_pairs_and_tasks_teach_less() -> None:
    def shifted(*runs: OwnRun) -> tuple[float, float]:
        one = estimate(TARGET, None, "draft-mtp", task="code", k=3, results=runs)
        assert one.logit_mean is not None
        assert one.logit_sd is not None
        return one.logit_mean, one.logit_sd

    prior, _ = shifted()
    same, same_sd = shifted(own(540))
    short, short_sd = shifted(own(27, drafted=60, runs=1, prompts=1))
    task, _ = shifted(own(540, task="prose"))
    pair, _ = shifted(own(540, target="gemma-4-31b"))
    other, _ = shifted(own(540, method="draft-simple", draft="tiny"))
    assert same < task < prior
    assert same < pair < prior
    assert same < short < prior
    assert same_sd < short_sd
    assert other == prior
    assert "of other pairs" in estimate(
        TARGET, None, "draft-mtp", k=3, results=(own(540, target="gemma-4-31b"),)
    ).evidence  # fmt: skip


def test_own_runs_are_matched_by_file_as_well_as_by_name() -> None:
    renamed = TARGET.model_copy(update={"files": ("/models/Weird-Name-v3.gguf",), "name": "Weird-Name-v3"})
    one = estimate(renamed, None, "draft-mtp", task="code", k=3, results=(own(540, target="Weird-Name-v3.gguf"),))
    assert one.kind == "measured"
    assert a.slug_of_name("SmolLM2-135M-Instruct.Q4_1.gguf") == "smollm2-135m"
    assert a.slug_of_name("Qwen3.5-27B-UD-Q4_K_XL-00001-of-00002.gguf") == "qwen3.5-27b"


def test_a_long_history_stays_cheap_and_stable() -> None:
    runs = tuple(own(540 + i % 7, task=t, draft_max=1 + i % 8) for i in range(40) for t in ("code", "prose"))
    one = estimate(TARGET, None, "draft-mtp", task="code", k=3, results=runs)
    assert one.logit_sd is not None
    assert 0 < one.logit_sd < 0.6


def test_the_results_file_is_read_forced_and_damaged_records_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path))
    assert a.own_runs() == ()
    results = pytest.importorskip("advisor.llamacpp.results")
    record = confirmation("qwen3.8-27b.gguf", drafted=1200, accepted=540)
    results.append_result(record)
    results.append_result(record)
    results.append_result(record.model_copy(update={"forced_acceptance": 0.9}))
    with (tmp_path / results.FILE_NAME).open("a", encoding="utf-8") as file:
        file.write("{broken\n")
    runs = a.own_runs()
    assert runs == (OwnRun("draft-mtp", "qwen3.8-27b.gguf", "", "code", 3, 2400, 1080, 2, 1),)
    one = estimate(TARGET, None, "draft-mtp", task="code", k=3)
    assert one.kind == "measured"
    assert "2 of your own runs" in one.evidence


def confirmation(target: str, drafted: int, accepted: int) -> Any:
    from advisor.base import Range
    from advisor.llamacpp.confirm import Confirmation, Measurement, PromptResult

    one = Range(median=1.5, low=1.4, high=1.6, level=0.95)
    prompt = PromptResult(
        id="p", task="code", repetitions=2, tokens=96, baseline_tps=10, speculative_tps=15, speedup=1.5,
        drafted=drafted, accepted=accepted, identical=True, baseline_ttft_ms=1, speculative_ttft_ms=1,
    )  # fmt: skip
    measured = Measurement(
        draft_max=3, speedup=one, baseline_tps=10, speculative_tps=15, acceptance=accepted / drafted,
        mean_accepted_length=2.3, round_cost=one, rounds=400, drafted=drafted, accepted=accepted, identical=True,
        prompts=(prompt,), baseline_ttft_ms=1, speculative_ttft_ms=1, baseline_memory=1, speculative_memory=1,
        enough=True,
    )  # fmt: skip
    return Confirmation(
        created="2026-11-29T00:00:00+00:00", engine="e", build="b1", machine="m", target=target, draft=None,
        method="draft-mtp", context=2048, max_tokens=96, simultaneous=True, measurements=(measured,),
        best_draft_max=3, verdict="measured", reasons=(), commands=(),
    )  # fmt: skip
