"""`advisor acceptance` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

from advisor.cli.acceptance import app
from advisor.errors import AdvisorError
from advisor.models.catalogue import describe_catalogue
from advisor.models.describe import describe_header
from advisor.models.gguf import read_header
from advisor.speculation.overview import AcceptanceReport, outlook
from advisor.speculation.prediction import Task

GPU = ("-H", "RTX 3090")


@pytest.fixture(autouse=True)
def _no_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "80")


def run(*words: str) -> str:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def report(*words: str) -> AcceptanceReport:
    return AcceptanceReport.model_validate_json(run(*words, "--json"))


def test_one_task_with_evidence_conversions_and_break_even() -> None:
    found = report("qwen3.8-27b:Q4_K_M", "-t", "code", "-k", "4", *GPU)
    assert found.schema_version == 1
    assert (found.method, found.draft_max, found.draft) == ("draft-mtp", 4, None)
    (one,) = found.tasks
    assert one.acceptance.kind == "published"
    assert len(one.survival) == 4
    rate = sum(one.survival) / 4
    assert rate == pytest.approx(one.acceptance.rate.median)
    assert one.mean_accepted_length.median == pytest.approx(1 + 4 * rate)
    assert one.calls_saved.median == pytest.approx(1 - 1 / (1 + 4 * rate))
    assert one.break_even_acceptance is not None
    assert one.margin == pytest.approx(rate - one.break_even_acceptance)
    assert one.speedup is not None
    assert one.speedup.low < one.speedup.median < one.speedup.high
    text = run("qwen3.8-27b:Q4_K_M", "-t", "code", "-k", "4", *GPU)
    assert "break-even" in text
    assert "runs, " in text
    assert "nearest: qwen3.8-27b MTP on code" in " ".join(text.split())


def test_all_tasks_in_eighty_columns() -> None:
    words = ("qwen3.6-35b-a3b:Q4_K_M", "qwen3.5-0.8b:Q8_0", "-t", "all", *GPU)
    text = run(*words)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    found = report(*words)
    assert [t.task for t in found.tasks] == list(get_args(Task))
    by_task = {t.task: t for t in found.tasks}
    assert all(t.speedup is not None for t in found.tasks)
    assert by_task["math"].acceptance.rate.median > by_task["chat"].acceptance.rate.median
    # physics does not depend on content
    assert len({t.break_even_acceptance for t in found.tasks}) == 1


def test_a_pair_that_can_never_win_says_so() -> None:
    words = ("gpt-oss-120b:MXFP4", "gpt-oss-20b:MXFP4", "-H", "Ryzen AI Max+ 395")
    (one,) = report(*words).tasks
    assert one.break_even_acceptance is None
    assert one.margin is None
    assert "even if every draft were accepted" in " ".join(run(*words).split())


def test_a_range_across_one_names_the_way_to_find_out() -> None:
    words = ("gemma-4-31b:Q4_K_M", "gemma-4-e2b:Q8_0", "-H", "RTX 4090")
    (one,) = report(*words).tasks
    assert one.speedup is not None
    assert one.confirm_seconds is not None
    text = run(*words)
    assert ("advisor confirm" in text) == (one.speedup.low < 1 < one.speedup.high)
    assert "advisor confirm" not in run("gpt-oss-120b:MXFP4", "gpt-oss-20b:MXFP4", "-H", "Ryzen AI Max+ 395")
    # reading both models twice and some 3,500 tokens at tens of tokens per second
    assert 30 < one.confirm_seconds < 1200


def test_the_articles_acceptances_lie_in_the_ranges() -> None:
    for target, draft, seen in (
        ("qwen3.5-27b:Q8_0", "qwen3.5-2b:Q8_0", 0.643),
        ("gpt-oss-120b:MXFP4", "gpt-oss-20b:MXFP4", 0.718),
    ):
        one = outlook(describe_catalogue(target), describe_catalogue(draft), "draft-simple", "code-edit", draft_max=3)
        assert one.acceptance.rate.low < seen < one.acceptance.rate.high


def test_n_grams_on_a_sample_with_the_models_own_tokens(smollm2: Path, tmp_path: Path) -> None:
    old = "\n".join(f"def function_{i}(value):\n    return value + {i * 37 % 101}" for i in range(30))
    sample = tmp_path / "edits.json"
    sample.write_text(json.dumps({"prompt": old, "response": old, "task": "code-edit"}), encoding="utf-8")
    found = report(str(smollm2), "--sample", str(sample), *GPU)
    assert found.method == "ngram-mod"
    lines = {r.replay.method: r for r in found.replays}
    assert len(lines) == 5
    simple = lines["ngram-simple"]
    assert simple.task == "code-edit"
    assert simple.acceptance is not None
    assert simple.acceptance > 0.8
    assert simple.mean_accepted_length > 4
    assert simple.speedup is not None
    assert simple.speedup.median > 1
    text = run(str(smollm2), "--sample", str(sample), *GPU)
    assert "replayed on your text" in text
    assert max(map(len, text.splitlines())) <= 80


def test_replays_on_a_hybrid_target_pay_for_checkpoints() -> None:
    from advisor.hardware.resolve import resolve
    from advisor.speculation.ngram import replay
    from advisor.speculation.overview import replay_outlook

    text = [(7 * i * i + 3 * i) % 1009 for i in range(300)]
    # copies that break off soon: most of each draft is rejected, so the state must be restored
    output = [token for i in range(12) for token in (*text[20 * i : 20 * i + 18], 5000 + i)]
    setup = resolve("RTX 3090")
    speeds = []
    for name, hybrid in (("qwen3-8b:Q4_K_M", False), ("qwen3.5-9b:Q4_K_M", True)):
        target = describe_catalogue(name)
        assert target.is_recurrent is hybrid
        one = replay_outlook(replay("ngram-simple", text, output, checkpoint=hybrid), "code-edit", target, setup)
        assert one.speedup is not None
        speeds.append(one.speedup.median)
    assert speeds[1] < 0.9 * speeds[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("qwen3.8-27b:Q4_K_M", "-m", "none", *GPU), "nothing is drafted"),
        (("qwen3.8-27b:Q4_K_M", "-m", "guess", *GPU), "no method"),
        (("qwen3.8-27b:Q4_K_M", "-t", "poetry", *GPU), "no task"),
        (("llama-3.1-8b:Q4_K_M", *GPU), "no MTP layers"),
        (("qwen3.8-27b:Q4_K_M", "--sample", "x.txt", *GPU), "known by name only"),
        (("qwen3.8-27b:Q4_K_M", "-H", "no such machine"), "no such machine"),
        (("no-such-model-at-all", *GPU), "no-such-model-at-all"),
    ],
)
def test_bad_questions_are_one_sentence(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(AdvisorError, match=message):
        run(*words)


def test_an_unknown_machine_costs_only_the_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.errors import UnknownHardwareError

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise UnknownHardwareError("This machine is not known.")

    monkeypatch.setattr("advisor.cli.common.setup_of", fail)
    found = report("qwen3.8-27b:Q4_K_M", "-t", "code")
    assert found.hardware is None
    assert found.tasks[0].speedup is None
    assert "This machine is not known." in found.notes[0]
    assert "No speeds" in run("qwen3.8-27b:Q4_K_M", "-t", "all")


def test_names_from_files_cannot_move_the_cursor(smollm2: Path) -> None:
    from advisor.cli.acceptance import _show
    from advisor.speculation.overview import overview

    hostile = describe_header(read_header(smollm2)).model_copy(update={"name": "a\x1b[2Jb\u202ec"})
    shown = overview(hostile, None, "ngram-mod", draft_max=64)
    import contextlib
    import io

    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        _show(shown)
    assert "\x1b" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()
