"""What recommend, confirm and validate contribute to a report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from markupsafe import escape
from report_samples import around, prediction, sheet

from advisor.advice.recommendation import Exclusion, Option, Recommendation, TaskOutlook
from advisor.cli.main import app
from advisor.errors import InputError
from advisor.hardware.machine import Placement
from advisor.llamacpp.confirm import Comparison, Confirmation, Measurement, PromptResult
from advisor.report import build, html, markdown
from advisor.report.document import Report
from advisor.validation.report import Group, LinePrediction, SkipCount, ValidationReport


def measurement(draft_max: int, speedup: float) -> Measurement:
    prompt = PromptResult(
        id="edit-1", task="code-edit", repetitions=2, tokens=96, baseline_tps=7.1, speculative_tps=7.1 * speedup,
        speedup=speedup, drafted=150, accepted=96, identical=True, baseline_ttft_ms=90, speculative_ttft_ms=120,
    )  # fmt: skip
    return Measurement(
        draft_max=draft_max, speedup=around(speedup, 0.02), baseline_tps=7.1, speculative_tps=7.1 * speedup,
        acceptance=0.64, mean_accepted_length=2.92, round_cost=around(1.9, 0.03), rounds=100, drafted=300, accepted=192,
        identical=True, prompts=(prompt,), baseline_ttft_ms=90, speculative_ttft_ms=120,
        baseline_memory=30_000_000_000, speculative_memory=32_000_000_000, enough=True,
    )  # fmt: skip


def confirmation(**changes: object) -> Confirmation:
    told = Comparison(
        draft_max=3, predicted_speedup=around(1.58), measured_speedup=around(1.52, 0.02), predicted_round_cost=1.85,
        measured_round_cost=1.9, measured_acceptance=0.64, measured_baseline_tps=7.1,
        speedup_at_measured_acceptance=1.55, verdict="confirmed",
    )  # fmt: skip
    fields: dict[str, object] = {
        "created": "2026-11-29T12:00:00Z", "engine": "embedded 2026.10", "build": "b11549", "machine": "x",
        "target": "a.gguf", "draft": "b.gguf", "method": "draft-simple", "context": 2048, "max_tokens": 96,
        "simultaneous": True, "measurements": (measurement(2, 1.4), measurement(3, 1.52), measurement(6, 1.6)),
        "best_draft_max": 6, "comparison": told, "verdict": "confirmed", "reasons": ("The interval lies inside.",),
        "commands": ("llama-server -m a.gguf", "llama-server -m a.gguf -md b.gguf"),
    }  # fmt: skip
    return Confirmation(**{**fields, **changes})  # type: ignore[arg-type]  # changes are fields


def test_confirmation_stands_beside_its_prediction() -> None:
    done = build.confirmed(sheet(compared=(), confirmed=None, commands=()), confirmation())
    rows = {c.quantity: c for c in done.compared}
    # The draft length that was predicted, not the fastest of the sweep.
    assert rows["speedup"].measured == around(1.52, 0.02)
    assert rows["speedup"].predicted == around(1.58)
    known = rows["acceptance known"].predicted
    assert known is not None
    assert known.median == 1.55
    assert done.confirmed is not None
    assert done.confirmed.startswith("The measurement bears the prediction out. 1.52x (1.49-1.55)")
    assert [c.text for c in done.commands] == ["llama-server -m a.gguf", "llama-server -m a.gguf -md b.gguf"]
    page = html.render_html(build.report_from([done, confirmation()]))
    for needle in ("Predicted against measured", "Measured by draft length", "edit-1", "96 / 150", "b11549"):
        assert needle in page


def test_refuted_predictions_are_called_so() -> None:
    done = build.confirmed(sheet(), confirmation(verdict="refuted", comparison=None))
    assert done.confirmed is not None
    assert "contradicts" in done.confirmed
    assert {c.quantity for c in done.compared} >= {"speedup", "round cost", "acceptance"}


def option(rank: int, label: str, speed: float) -> Option:
    return Option(
        rank=rank, label=label, methods=("draft-mtp",) if rank == 1 else (), draft_max=2 if rank == 1 else 0,
        placement=Placement(), speed=around(speed), speedup=around(speed / 7.09), probability_faster=0.9,
        verdict="faster", memory_total=2**35, fits=True, origin="given",
        download_bytes=5_000_000_000 if rank == 1 else 0,
    )  # fmt: skip


def test_recommendation_becomes_tables() -> None:
    p = prediction()
    answer = Recommendation(
        target=p.target, hardware=p.hardware, backend=p.backend, task=None, temperature=0, depth=0, context=4096,
        speculate=True, best=option(1, "MTP layers", 12), runner_up=None,
        options=(option(1, "MTP layers", 12), option(2, "nothing", 7.09)),
        excluded=(Exclusion(name="other.gguf", reference="other.gguf", kind="tokenizer", reason="Token 139 differs."),),
        prediction=p, headline="Use the MTP layers.", why=("They are cheapest.",), changes=("Acceptance below 20 %.",),
        outlook=(TaskOutlook(task="code", speedup=around(1.8), probability_faster=0.99),), margin="Gains above 3 %.",
    )  # fmt: skip
    report = build.report_from([p, answer])
    assert report.summary.startswith("Use the MTP layers. They are cheapest.")
    assert len(report.sheets) == 1
    text = markdown.render_markdown(report)
    for needle in (
        "MTP layers",
        "nothing",
        "32.0 GiB",
        "5.00 GB",
        "Token 139 differs.",
        "Acceptance below 20 %.",
        "1.80x",
    ):
        assert needle in text, needle


def test_validation_becomes_a_scatter_and_a_table() -> None:
    lines = tuple(
        LinePrediction(id=f"r{i}", predicted=1 + i / 10, low=0.9 + i / 10, high=1.1 + i / 10, measured=1 + i / 8)
        for i in range(9)
    )
    group = Group(
        name="draft-mtp", rows=9, clusters=3, median_error_pct=8.2, p90_error_pct=21.0, sign_accuracy=1.0,
        interval_coverage=0.8,
    )  # fmt: skip
    validation = ValidationReport(
        table="speculation", rows=11, used=9, skipped=(SkipCount(reason="no acceptance", count=2),), acceptance="given",
        median_error_pct=8.2, p90_error_pct=21.0, sign_accuracy=1.0, interval_coverage=0.8, groups=(group,),
        predictions=lines,
    )  # fmt: skip
    report = build.report_from([validation])
    assert "9 of 11 rows" in report.summary
    assert "8.2 %" in report.summary
    page = html.render_html(report)
    assert "no acceptance" in page
    drawn = re.findall(r'<svg role="img" aria-label="Scatter plot of 9 predictions', page)
    assert len(drawn) == 1


@pytest.mark.parametrize("bad", [0.0, -1.0])
def test_impossible_rows_do_not_break_a_logarithmic_plot(bad: float) -> None:
    from advisor.report.charts import draw, scatter
    from advisor.report.document import Scatter, ScatterPoint

    points = (
        ScatterPoint(id="a", predicted=1, low=0.5, high=2, measured=1.1),
        ScatterPoint(id="b", predicted=bad, low=bad, high=1, measured=1),
    )
    svg = draw(scatter(Scatter(title="t", unit="x", points=points)), "two")
    assert svg is not None
    assert "NaN" not in svg


def test_commands_of_a_sheet_run_the_pair_and_its_baseline() -> None:
    from advisor.hardware.resolve import resolve
    from advisor.models.catalogue import describe_catalogue
    from advisor.speculation.predict import predict

    target, draft, setup = (
        describe_catalogue("gpt-oss-120b:MXFP4"),
        describe_catalogue("gpt-oss-20b:MXFP4"),
        resolve("395"),
    )
    built = build.sheet_of(predict(target, draft, setup=setup, draft_max=2), target, draft, setup)
    with_draft, without, prove = (c.text for c in built.commands)
    assert "--spec-type draft-simple" in with_draft
    assert "--spec-draft-n-max 2" in with_draft
    assert "-md" in with_draft
    assert "-md" not in without
    assert prove.startswith("advisor confirm gpt-oss-120b-MXFP4.gguf gpt-oss-20b-MXFP4.gguf")
    assert {r.rule for r in built.rules} >= {"same-tokenizer", "active"}


# ---------------------------------------------------------------- the commands


def advisor(*arguments: str) -> None:
    app(list(arguments), prog_name="advisor", standalone_mode=False)


PAIR = ("gpt-oss-120b:MXFP4", "gpt-oss-20b:MXFP4", "--hardware", "395", "--acceptance", "0.718")


def test_report_command_compares_drafts_and_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.json"
    drafts = ("qwen3-0.6b:Q8_0", "qwen3-1.7b:Q8_0")
    advisor("report", "qwen3-32b:Q4_K_M", *drafts, "-H", "395", "-H", "RTX 3090", "--task", "code", "-o", str(path))
    assert capsys.readouterr().out == f"Wrote {path}.\n"
    report = Report.model_validate_json(path.read_text(encoding="utf-8"))
    pairs = [(s.prediction.draft.reference, s.prediction.backend) for s in report.sheets if s.prediction.draft]
    assert pairs == [(d, b) for b in ("vulkan", "cuda") for d in drafts]
    assert all(s.what_if and s.rules and s.commands for s in report.sheets)


def test_report_command_without_a_file_prints_markdown_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    advisor("report", *PAIR)
    text = capsys.readouterr().out
    assert text.startswith("# gpt-oss-120b MXFP4 + gpt-oss-20b MXFP4 on Ryzen AI Max")
    assert "**Slower.**" in text
    advisor("report", *PAIR, "--json")
    assert Report.model_validate_json(capsys.readouterr().out).sheets[0].prediction.verdict == "slower"


def test_report_command_refuses_before_it_works(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"r\.txt"):
        advisor("report", "no-such-model-at-all", "-o", str(tmp_path / "r.txt"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("predict", *PAIR), ("recommend", PAIR[0], "-H", "395", "--no-local")])
def test_html_beside_the_answer(command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    advisor(*command, "--html", str(path), "--json")
    answer = json.loads(capsys.readouterr().out)  # standard output stays pure JSON
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "What if?" in page
    if command[0] == "recommend":
        assert escape(answer["headline"]) in page
        assert "What would change the answer" in page
