"""Confirming against fakes: arithmetic, verdicts, exit codes, interruptions, records."""

from __future__ import annotations

import json
import math
import os
from itertools import pairwise
from pathlib import Path

import pytest
from engine_fakes import fake
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.base import Range
from advisor.errors import CancelledError, EngineError, InputError, NotDraftedError
from advisor.llamacpp import confirm as confirming
from advisor.llamacpp.client import Completion
from advisor.llamacpp.confirm import Progress, both_fit, confirm, divergence, forced_rates, verdict_of
from advisor.llamacpp.find import inspect_binary
from advisor.llamacpp.prompts import TASKS, Prompt, prompts_for, read_prompts
from advisor.llamacpp.results import append_result, read_results
from advisor.llamacpp.statistics import half_width, noise, ratio_range, spread, student_t
from advisor.llamacpp.synthetic import tiny, write_synthetic

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fakes are shell scripts")
PROMPTS = tuple(Prompt(id=f"p{i}", prompt=f"Say {i}", task="chat") for i in range(3))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    return (
        write_synthetic(tiny("llama", layers=6), folder / "target.gguf"),
        write_synthetic(tiny("llama", layers=2), folder / "draft.gguf"),
    )


def test_the_numbers(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    """The fake decodes 100 tok/s; its rounds take 24 ms and give 3 tokens: 1.25x, R = 2.4, acceptance 2/3."""
    said: list[Progress] = []
    engine = inspect_binary(fake(tmp_path, "ok"))
    result = confirm(*pair, engine=engine, draft_max=3, prompts=PROMPTS, max_tokens=31, progress=said.append)
    m = result.measurement
    assert result.verdict == "measured"
    assert result.exit_code == 0
    assert m.speedup.median == pytest.approx(1.25, rel=0.03)
    assert m.baseline_tps == pytest.approx(100, rel=0.03)
    assert m.acceptance == pytest.approx(2 / 3)
    assert m.mean_accepted_length == pytest.approx(3.0)
    assert m.round_cost.median == pytest.approx(2.4, rel=0.03)
    assert m.identical
    assert m.enough
    assert m.positions == (1.0, 1.0)
    assert result.best_draft_max == 3
    assert len(m.prompts) == 3
    assert m.prompts[0].repetitions == 2  # stopped as soon as it was sure
    assert said[-1].done == said[-1].total
    assert any("--spec-type draft-simple" in c and "--spec-draft-n-max 3" in c for c in result.commands)
    assert result.target == "target.gguf"
    assert str(tmp_path) not in result.model_dump_json(exclude={"commands"})


def test_taking_turns_gives_the_same(tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirming, "both_fit", lambda *_: False)
    engine = inspect_binary(fake(tmp_path, "ok"))
    result = confirm(*pair, engine=engine, draft_max=3, prompts=PROMPTS, max_tokens=31)
    assert not result.simultaneous
    assert result.measurement.speedup.median == pytest.approx(1.25, rel=0.03)


def test_a_sweep_keeps_every_length(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    engine = inspect_binary(fake(tmp_path, "ok"))
    result = confirm(*pair, engine=engine, draft_max=[2, 4], prompts=PROMPTS[:2], max_tokens=16, repetitions=(1, 1))
    assert [m.draft_max for m in result.measurements] == [2, 4]


def test_old_builds_are_spoken_to_in_their_words(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    engine = inspect_binary(fake(tmp_path, "old"))
    result = confirm(*pair, engine=engine, draft_max=3, prompts=PROMPTS[:1], max_tokens=16, repetitions=(1, 1))
    assert any("--draft-max 3" in c for c in result.commands)
    assert result.measurement.positions == ()  # no counters in such builds
    assert result.measurement.acceptance == pytest.approx(2 / 3)


def test_divergence_is_reported_not_condemned(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    engine = inspect_binary(fake(tmp_path, "diverges"))
    result = confirm(*pair, engine=engine, draft_max=3, prompts=PROMPTS, max_tokens=16, repetitions=(1, 1))
    assert result.exit_code == 0
    assert not result.measurement.identical
    assert result.measurement.prompts[0].divergence == 4
    assert any("part at token 4" in r and "no failure" in r for r in result.reasons)


@pytest.mark.parametrize("behaviour", ["silent", "dropped"])
def test_a_run_without_drafts_is_never_a_result(tmp_path: Path, pair: tuple[Path, Path], behaviour: str) -> None:
    with pytest.raises(NotDraftedError, match="drafted nothing") as error:
        confirm(*pair, engine=inspect_binary(fake(tmp_path, behaviour)), draft_max=3, prompts=PROMPTS, max_tokens=16)
    assert error.value.exit_code == 12


def test_incompatible_tokenizers_are_refused_with_the_true_reason(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    other = write_synthetic(tiny("llama", vocabulary=1024), tmp_path / "other.gguf")
    engine = inspect_binary(fake(tmp_path, "dropped"))
    with pytest.raises(InputError, match="512 and 1,024"):
        confirm(pair[0], other, engine=engine, draft_max=3, prompts=PROMPTS)
    with pytest.raises(NotDraftedError, match="512 and 1,024"):
        confirm(pair[0], other, engine=engine, draft_max=3, prompts=PROMPTS, force=True)


def test_an_engine_that_dies_is_explained(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    with pytest.raises(EngineError, match="layer inputs"):
        confirm(*pair, engine=inspect_binary(fake(tmp_path, "dies-generating")), draft_max=3, prompts=PROMPTS)


def test_stopping_keeps_what_there_is(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    engine = inspect_binary(fake(tmp_path, "ok"))
    asked = {"n": 0}

    def cancel_after(n: int) -> bool:
        asked["n"] += 1
        return asked["n"] > n

    seen: list[str] = []
    result = confirm(
        *pair, engine=engine, draft_max=3, prompts=PROMPTS, max_tokens=16, progress=lambda p: seen.append(p.message),
        cancel=lambda: len([s for s in seen if "tok/s" in s]) >= 4,
    )  # fmt: skip
    assert not result.complete
    assert len(result.measurement.prompts) == 2
    assert any("Interrupted" in r for r in result.reasons)
    with pytest.raises(CancelledError):
        confirm(*pair, engine=engine, draft_max=3, prompts=PROMPTS, cancel=lambda: cancel_after(0))


def test_bad_input(tmp_path: Path, pair: tuple[Path, Path]) -> None:
    engine = inspect_binary(fake(tmp_path, "ok"))
    with pytest.raises(InputError, match="Draft lengths"):
        confirm(*pair, engine=engine, draft_max=0)
    with pytest.raises(InputError, match="no prompt"):
        confirm(*pair, engine=engine, draft_max=3, prompts=())
    with pytest.raises(InputError, match="not a share"):
        confirm(*pair, engine=engine, draft_max=3, forced_acceptance=1.5)
    with pytest.raises(InputError, match="At least 2 tokens"):
        confirm(*pair, engine=engine, draft_max=3, max_tokens=1)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    with pytest.raises(InputError, match=r"broken\.gguf"):
        confirm(broken, pair[1], engine=engine, draft_max=3)


# ------------------------------------------------------------------------------------------------ verdicts and sums


def interval(low: float, median: float, high: float) -> Range:
    return Range(median=median, low=low, high=high)


@pytest.mark.parametrize(
    ("predicted", "measured", "verdict"),
    [
        (interval(1.2, 1.4, 1.6), interval(1.38, 1.42, 1.46), "confirmed"),
        (interval(0.8, 1.1, 1.4), interval(0.90, 0.93, 0.96), "confirmed"),  # "too close to call" covers both
        (interval(1.2, 1.4, 1.6), interval(0.70, 0.80, 0.90), "refuted"),
        (interval(0.5, 0.6, 0.7), interval(0.9, 1.0, 1.1), "refuted"),
        (interval(1.2, 1.4, 1.6), interval(0.9, 1.3, 1.9), "inconclusive"),  # too blunt to mean anything
        (interval(1.2, 1.4, 1.6), interval(1.58, 1.65, 1.72), "inconclusive"),  # touches, but lies beside
    ],
)
def test_verdicts(predicted: Range, measured: Range, verdict: str) -> None:
    assert verdict_of(predicted, measured) == verdict


@given(st.floats(0, 1), st.integers(1, 16))
def test_forced_rates(acceptance: float, k: int) -> None:
    rates = forced_rates(acceptance, k)
    assert len(rates) == k
    assert sum(rates) / k == pytest.approx(acceptance, abs=1e-6)
    assert all(a >= b for a, b in pairwise(rates))
    assert all(0 <= r <= 1 for r in rates)


def test_intervals() -> None:
    exact = ratio_range([[math.log(1.5)] * 2] * 3)
    assert (exact.low, exact.median, exact.high) == pytest.approx((1.5, 1.5, 1.5))
    single = ratio_range([[math.log(2.0)]])
    assert single.high / single.low > 50  # one observation proves nothing
    few = ratio_range([[0.0, 0.1]])
    assert half_width(few) == pytest.approx(12.706 * 0.0707107 / math.sqrt(2), rel=1e-3)
    # Spread between prompts counts, however exact each is.
    assert half_width(ratio_range([[0.0] * 9, [0.3] * 9, [0.6] * 9])) > 0.5
    assert noise([[0.1, 0.3], [0.2, 0.4]]) == pytest.approx(math.sqrt(0.02) / 2)
    assert noise([[0.1], [0.2]]) is None
    assert student_t(1) > student_t(2) > student_t(30) > student_t(1000) > 1.95
    assert spread([1.0, 1.1, 0.9]) == pytest.approx(0.148, rel=0.01)


def completion(tokens: tuple[int, ...] | None, text: str = "") -> Completion:
    return Completion(
        text=text, tokens=tokens, prompt_tokens=1, cached_tokens=0, prompt_ms=1, predicted=3, predicted_ms=2,
        drafted=None, accepted=None,
    )  # fmt: skip


def test_where_texts_part() -> None:
    assert divergence(completion((1, 2, 3)), completion((1, 2, 3))) is None
    assert divergence(completion((1, 2, 3)), completion((1, 9, 3))) == 1
    assert divergence(completion((1, 2, 3)), completion((1, 2))) == 2
    assert divergence(completion(None, "abc"), completion((1,), "abd")) == 2


def test_two_servers_need_room(tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = inspect_binary(fake(tmp_path, "ok"))  # says 23,000 MiB are free
    assert both_fit(engine, *pair)
    monkeypatch.setattr(confirming, "_size", lambda _: 10 << 30)
    assert not both_fit(engine, *pair)


def test_shards_count_together(tmp_path: Path) -> None:
    for i in (1, 2):
        (tmp_path / f"m-0000{i}-of-00002.gguf").write_bytes(b"x" * 100 * i)
    assert confirming._size(tmp_path / "m-00001-of-00002.gguf") == 300


# ------------------------------------------------------------------------------------------------ prompts and results


def test_shipped_prompts() -> None:
    mixed = prompts_for(["mixed"], 99)
    assert {p.task for p in mixed} == set(TASKS)
    assert len({p.prompt for p in mixed}) == len(mixed)  # a repeated prompt would flatter n-gram methods
    assert [p.task for p in prompts_for(["code", "chat"], 2)] == ["code", "chat", "code", "chat"]
    with pytest.raises(InputError, match="No task"):
        prompts_for([])


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.jsonl", '{"prompt": "one", "task": "code", "id": "x"}\n\n"two"\n', 2),
        ("a.json", '["one", {"prompt": "two", "raw": true}]', 2),
        ("a.txt", "first line\nsecond line\n---\nanother\n", 2),
    ],
)
def test_own_prompts(tmp_path: Path, name: str, text: str, count: int) -> None:
    path = tmp_path / name
    path.write_text(text)
    found = read_prompts(path)
    assert len(found) == count
    assert len({p.id for p in found}) == count


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", b'{"prompt": "x"}\n{broken\n', "line 2 is not valid JSON"),
        ("a.jsonl", b'{"text": "x"}\n', "no text in its field prompt"),
        ("a.jsonl", b'{"prompt": "x", "task": "singing"}\n', "no task singing"),
        ("a.json", b'{"prompt": "x"}', "must be a list"),
        ("a.txt", b"   \n---\n", "holds no prompt"),
        ("a.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("a.jsonl", b'{"prompt":"x","id":"1"}\n{"prompt":"y","id":"1"}', "same id twice"),
    ],
)
def test_prompts_that_cannot_be_used(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InputError, match=words):
        read_prompts(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "missing.jsonl")


def test_results_file(tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path / "data"))
    assert read_results() == ()
    engine = inspect_binary(fake(tmp_path, "ok"))
    result = confirm(*pair, engine=engine, draft_max=3, prompts=PROMPTS[:1], max_tokens=16, repetitions=(1, 1))
    path = append_result(result)
    # A line that a crash cut in half, a line of the future and plain rubbish must not cost the others.
    with path.open("a") as file:
        file.write('{"schema_version": 1, "cut')
    append_result(result)
    with path.open("a") as file:
        file.write('{"schema_version": 99}\n[1]\n\n')
    assert read_results() == (result, result)
    assert json.loads(path.read_text().splitlines()[0])["schema_version"] == 1


# ------------------------------------------------------------------------------------------------ command line


def run(*arguments: str) -> tuple[int, str]:
    from advisor.cli.main import (
        app,
        main,  # noqa: F401 - the group is what users start
    )

    result = CliRunner().invoke(app, ["confirm", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_command_line(tmp_path: Path, pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path / "data"))
    prompts = tmp_path / "p.txt"
    prompts.write_text("one\n---\ntwo\n---\nthree")
    words = [*map(str, pair), "--engine", fake(tmp_path, "ok"), "--prompts", str(prompts), "-k", "3", "-n", "16"]
    code, text = run(*words, "--json", "--repeat", "2")
    record = json.loads(text)
    assert record["comparison"]["measured_speedup"]["median"] == pytest.approx(1.2, abs=0.08)
    assert code == {"confirmed": 0, "refuted": 10, "inconclusive": 11}[record["verdict"]]
    assert len(read_results()) == 1
    code, text = run(*words, "--no-save", "--repeat", "1")
    assert "95 % range" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert len(read_results()) == 1


@pytest.mark.parametrize("text", ["x", "1-", "3,,4", "-", "1-999"])
def test_draft_lengths_that_are_none(text: str) -> None:
    from advisor.cli.confirm import lengths

    with pytest.raises(InputError, match="draft length"):
        lengths(text)


def test_draft_lengths() -> None:
    from advisor.cli.confirm import lengths

    assert lengths("3") == (3,)
    assert lengths("1,2,8") == (1, 2, 8)
    assert lengths("1-4") == (1, 2, 3, 4)
    assert lengths(None) is None
