"""The real llama.cpp: every architecture and type we write, known aborts, confirmations that win and lose."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from engine_fakes import shim

from advisor.errors import EngineError, InputError, NotDraftedError
from advisor.llamacpp import calibrate as calibrating
from advisor.llamacpp.confirm import confirm, forced_rates
from advisor.llamacpp.find import Engine, find_engine
from advisor.llamacpp.preflight import preflight
from advisor.llamacpp.probe import MATCH, MOST_VERIFIED, time_ratio, time_verifications
from advisor.llamacpp.prompts import Prompt, prompts_for
from advisor.llamacpp.server import NgramShape, Server, ServerOptions
from advisor.llamacpp.synthetic import (
    CYCLE,
    FIRST_TOKEN,
    KNOWN,
    TYPES,
    Architecture,
    Recipe,
    chain_prompt,
    successors,
    tiny,
    tiny_types,
    write_synthetic,
)
from advisor.performance.measured import MeasuredCosts, load_calibrations, save_calibration
from advisor.speculation.prediction import Method

pytest.importorskip("xllamacpp")
pytestmark = [pytest.mark.engine, pytest.mark.skipif(os.name != "posix", reason="the shim is a shell script")]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return find_engine("embedded")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("synthetic")
    names: tuple[Architecture, ...] = (
        "llama", "qwen3moe", "gpt-oss", "qwen35", "lfm2", "gemma3", "deepseek2", "eagle3", "dflash",
    )  # fmt: skip
    recipes = {a: tiny(a, mtp=a in ("qwen35", "deepseek2")) for a in names}
    return {a: write_synthetic(r, folder / f"{a}.gguf") for a, r in recipes.items()}


RUNS: list[tuple[Architecture, Method, Architecture | None]] = [
    ("llama", "draft-simple", "llama"),
    ("qwen3moe", "ngram-simple", None),
    ("gpt-oss", "draft-simple", "llama"),
    ("qwen35", "draft-mtp", None),
    ("lfm2", "ngram-simple", None),
    ("gemma3", "draft-simple", "llama"),
    ("deepseek2", "draft-mtp", None),
    ("llama", "draft-eagle3", "eagle3"),
    ("llama", "draft-dflash", "dflash"),
    ("qwen35", "draft-eagle3", "eagle3"),
]


@pytest.mark.parametrize(("target", "method", "draft"), RUNS)
def test_every_architecture_drafts(
    engine: Engine, models: dict[str, Path], target: Architecture, method: Method, draft: Architecture | None
) -> None:
    forced = draft in ("eagle3", "dflash")
    options = ServerOptions(
        model=str(models[target]),
        draft=str(models[draft]) if draft else None,
        method=method,
        draft_max=3,
        threads=1,
        synth_rates=forced_rates(0.6, 3) if forced else (),
    )
    assert preflight(models[target], models[draft] if draft else None, method, engine) == []
    with Server(engine, options) as server:
        server.prove_speculation()
        answer = server.client.complete(chain_prompt(512, KNOWN), 25, ignore_eos=True)
        assert answer.drafted
        if forced:
            assert answer.accepted is not None
            assert answer.accepted < answer.drafted
        else:
            # The chain is followed, and every draft of it is right, whatever the architecture.
            following = successors(512)
            assert answer.tokens is not None
            assert all(b == following[a] for a, b in zip(answer.tokens, answer.tokens[1:], strict=False))
            assert answer.accepted == answer.drafted


def test_verifications_are_rounds_of_their_length(engine: Engine, models: dict[str, Path]) -> None:
    options = ServerOptions(
        model=str(models["llama"]),
        method="ngram-simple",
        draft_max=MOST_VERIFIED - 1,
        ngram=NgramShape(match=MATCH),
        threads=1,
        context_checkpoints=0,
    )
    with Server(engine, options) as server:
        (timed,) = time_verifications([(server, (2, 5, MOST_VERIFIED))], 512, budget=0, least=2, most=2)
        (deep,) = time_verifications([(server, (4,))], 512, budget=0, least=2, most=2, depth=200)
    assert timed.verified
    # Only requests that were one round of exactly n accepted tokens are counted.
    assert {n: t.count for n, t in timed.passes.items()} == {1: 2, 2: 2, 5: 2, MOST_VERIFIED: 2}
    assert {n: t.count for n, t in deep.passes.items()} == {1: 2, 4: 2}
    assert timed.step.count == deep.step.count == 2
    plain = options.model_copy(update={"method": "none", "draft_max": None})
    short = options.model_copy(update={"draft_max": 3, "ngram": NgramShape(match=3)})
    with Server(engine, plain) as one, Server(engine, short) as other:
        ratio = time_ratio(one, other, 512, 3, rounds=4, repetitions=2)
    assert ratio.count == 2
    assert ratio.drafted == pytest.approx(3)
    assert ratio.ratio > 0


def test_every_block_type_runs(engine: Engine, tmp_path: Path) -> None:
    assert len(TYPES) == 16
    for recipe in tiny_types():
        path = write_synthetic(recipe, tmp_path / f"{recipe.quant}.gguf")
        with Server(engine, ServerOptions(model=str(path), threads=1, warmup=False)) as server:
            answer = server.client.complete(chain_prompt(512, 6), 4, ignore_eos=True)
        assert answer.tokens == tuple(chain_prompt(512, 10)[6:]), recipe.quant
        path.unlink()


def test_scrambled_chains_agree_less(engine: Engine, models: dict[str, Path], tmp_path: Path) -> None:
    draft = write_synthetic(tiny("llama", scramble=0.5), tmp_path / "half.gguf")
    options = ServerOptions(model=str(models["llama"]), draft=str(draft), method="draft-simple", draft_max=1, threads=1)
    drafted = accepted = 0
    with Server(engine, options) as server:
        for start in range(12):
            answer = server.client.complete(chain_prompt(512, 6, start), 13, ignore_eos=True)
            drafted += answer.drafted or 0
            accepted += answer.accepted or 0
    assert 0.25 < accepted / drafted < 0.75


ABORTS: list[tuple[Architecture, Method, Architecture, str, str]] = [
    ("gemma3", "draft-eagle3", "eagle3", "layer inputs", "does not hand its layer inputs"),
    ("llama", "draft-simple", "qwen35", "recurrent or hybrid", "cannot be rolled back"),
]


@pytest.mark.parametrize(("target", "method", "draft", "foreseen", "explained"), ABORTS)
def test_aborts_are_foreseen_and_explained(
    engine: Engine,
    models: dict[str, Path],
    target: Architecture,
    method: Method,
    draft: Architecture,
    foreseen: str,
    explained: str,
) -> None:
    (reason,) = preflight(models[target], models[draft], method, engine)
    assert foreseen in reason
    words: dict[str, object] = {"method": method, "draft_max": 3, "engine": engine, "threads": 1, "max_tokens": 24}
    prompts = (Prompt(id="x", prompt="abc abc abc", raw=True),)
    with pytest.raises(InputError, match=foreseen):
        confirm(models[target], models[draft], prompts=prompts, **words)  # type: ignore[arg-type]  # mixed values
    with pytest.raises(EngineError, match=explained):
        confirm(models[target], models[draft], prompts=prompts, force=True, forced_acceptance=0.4, **words)  # type: ignore[arg-type]


def test_mtp_without_layers(engine: Engine, models: dict[str, Path]) -> None:
    (reason,) = preflight(models["llama"], None, "draft-mtp")
    assert "holds no MTP layers" in reason
    with pytest.raises(EngineError, match="no MTP layers"):
        Server(engine, ServerOptions(model=str(models["llama"]), method="draft-mtp", draft_max=3, threads=1))


def test_a_draft_of_another_vocabulary_is_dropped(engine: Engine, models: dict[str, Path], tmp_path: Path) -> None:
    other = write_synthetic(tiny("llama", vocabulary=1024), tmp_path / "other.gguf")
    with pytest.raises(NotDraftedError, match="512 and 1,024"):
        confirm(
            models["llama"], other, method="draft-simple", draft_max=3, engine=engine, threads=1, force=True,
            prompts=(Prompt(id="x", prompt="abc", raw=True),),
        )  # fmt: skip


def test_damaged_model(engine: Engine, models: dict[str, Path], tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(models["llama"].read_bytes()[:-200_000])
    with pytest.raises(EngineError, match="damaged"):
        Server(engine, ServerOptions(model=str(cut), threads=1))


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target that waits for memory, and a tiny draft that is always right."""
    folder = tmp_path_factory.mktemp("wide")
    target = Recipe(architecture="llama", layers=2, width=1024, heads=16, kv_heads=4, ffn=4096, quant="F32")
    return write_synthetic(target, folder / "wide.gguf"), write_synthetic(tiny("llama"), folder / "tiny.gguf")


def test_a_pair_that_gains(engine: Engine, wide: tuple[Path, Path]) -> None:
    result = confirm(
        *wide, method="draft-simple", draft_max=3, engine=engine, threads=1, max_tokens=40,
        prompts=[Prompt(id=str(i), prompt=f"text {i}", raw=True) for i in range(2)],
    )  # fmt: skip
    m = result.measurement
    assert m.acceptance > 0.95
    assert m.identical
    assert m.speedup.low > 1.1
    assert result.best_draft_max == 3
    # tau = R * speedup holds for what was measured, whatever the machine.
    assert m.mean_accepted_length == pytest.approx(m.round_cost.median * m.speedup.median, rel=0.1)


def test_a_pair_that_loses_through_the_command_line_of_llama_server(tmp_path: Path, wide: tuple[Path, Path]) -> None:
    """The target drafts for itself: four passes to save three."""
    result = confirm(
        wide[0], wide[0], method="draft-simple", draft_max=3, engine=shim(tmp_path), threads=1, max_tokens=24,
        prompts=[Prompt(id=str(i), prompt=f"text {i}", raw=True) for i in range(2)], repetitions=(1, 2),
    )  # fmt: skip
    assert result.engine.startswith("llama-server")
    assert result.measurement.acceptance > 0.95
    assert result.measurement.speedup.median < 0.95
    assert result.best_draft_max == 0


def test_forced_acceptance(engine: Engine, models: dict[str, Path]) -> None:
    result = confirm(
        models["llama"], models["llama"], method="draft-simple", draft_max=3, engine=engine, threads=1, max_tokens=120,
        forced_acceptance=0.5, prompts=[Prompt(id=str(i), prompt=f"text {i}", raw=True) for i in range(3)],
        repetitions=(1, 1),
    )  # fmt: skip
    assert 0.35 < result.measurement.acceptance < 0.65
    assert result.forced_acceptance == 0.5


def test_a_real_model_repeats_what_it_reads(engine: Engine, smollm2: Path) -> None:
    result = confirm(
        smollm2, method="ngram-simple", draft_max=4, engine=engine, threads=1, max_tokens=40, repetitions=(1, 1),
        prompts=prompts_for(["code-edit"], 1),
    )  # fmt: skip
    m = result.measurement
    assert m.drafted > 0
    assert m.baseline_ttft_ms > 0
    assert m.prompts[0].task == "code-edit"


def test_calibrating(engine: Engine, models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole calibration in small: fewer types, smaller probes, then stored, found and used."""
    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr(calibrating, "TYPES", ("Q8_0", "F16"))
    monkeypatch.setattr(calibrating, "EXPERT_TYPES", ("Q8_0",))
    monkeypatch.setattr(calibrating, "COLUMNS", (1, 2, 4, 8, 16))
    monkeypatch.setattr(calibrating, "_FEW", (1, 2, 4, 8))
    monkeypatch.setattr(calibrating, "_BYTES", 24 << 20)
    monkeypatch.setattr(calibrating, "_PASS", 0.0)
    said: list[float | None] = []
    result = calibrating.calibrate(
        [models["llama"]], engine=engine, threads=1, patience=0.1, progress=lambda p: said.append(p.remaining)
    )
    assert len(said) > 20
    assert said[1] is not None
    assert {m.quant for m in result.matrices} == {"Q8_0", "F16"}
    for m in result.matrices:
        rate = m.seconds_per_byte
        assert 0.1e9 < 1 / rate.at(1) < 1e12
        assert rate.at(16) > rate.at(2)  # sixteen columns are never free on a processor
    assert set(result.layers) == {"dense", "sandwich", "experts", "delta", "convolution", "latent"}
    assert {"draft-simple", "draft-mtp", "draft-eagle3"} <= set(result.drafting)
    assert len(result.checks) == 4
    assert [c.architecture for c in result.corrections] == ["llama"]
    save_calibration(result)
    assert load_calibrations() == (result,)
    assert MeasuredCosts(result).kind == "measured"
    assert list(tmp_path.glob("**/*.gguf")) == []


def test_an_engine_without_ngram_drafts_cannot_be_calibrated(engine: Engine) -> None:
    old = engine.model_copy(update={"capabilities": engine.capabilities.model_copy(update={"spec_types": ()})})
    with pytest.raises(EngineError, match="ngram-simple") as caught:
        calibrating.calibrate(engine=old)
    assert "build of 2026" in (caught.value.hint or "")


def test_calibrating_can_be_stopped(engine: Engine, tmp_path: Path) -> None:
    from advisor.errors import CancelledError

    before = set(Path(tmp_path).iterdir())
    with pytest.raises(CancelledError):
        calibrating.calibrate(engine=engine, threads=1, cancel=lambda: True)
    assert set(Path(tmp_path).iterdir()) == before


def test_recipes_are_checked(tmp_path: Path) -> None:
    for wrong, words in (
        (tiny("llama", vocabulary=100), "vocabulary"),
        (tiny("qwen3moe", experts=0), "needs experts"),
        (tiny("llama", mtp=True), "no MTP layers"),
        (tiny("lfm2", heads=3), "fill the width"),
        (tiny("eagle3", target_layers=(1,)), "three layers"),
        (tiny("llama", quant="Q9_Z"), "type Q9_Z"),
    ):
        with pytest.raises(InputError, match=words):
            write_synthetic(wrong, tmp_path / "x.gguf")
        assert list(tmp_path.iterdir()) == []


def test_the_chain() -> None:
    following = successors(512)
    assert sorted(following) == list(range(512))  # a permutation: every token is somebody's successor once
    token = FIRST_TOKEN
    for _ in range(CYCLE):
        token = following[token]
    assert token == FIRST_TOKEN
    changed = sum(a != b for a, b in zip(following, successors(512, 0.3), strict=True))
    assert changed == pytest.approx(0.3 * (512 - FIRST_TOKEN), rel=0.4)
    assert math.isclose(len(json.dumps(following)), len(str(following)))
