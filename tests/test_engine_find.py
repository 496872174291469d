"""Finding a llama.cpp and reading what it can do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from engine_fakes import FOLDER, fake
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import EngineError
from advisor.llamacpp import find
from advisor.llamacpp.find import find_engine, inspect_binary, list_devices, parse_devices, parse_help, parse_version

NEW = parse_help((FOLDER / "help_new.txt").read_text())
OLD = parse_help((FOLDER / "help_old.txt").read_text())

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fakes are shell scripts")


def test_new_help() -> None:
    assert NEW.family == "spec"
    assert NEW.synth
    assert NEW.spec_types[:3] == ("none", "draft-simple", "draft-eagle3")
    assert {"--spec-draft-n-max", "-md", "--ctx-checkpoints", "--no-warmup", "-ngld"} <= NEW.flags


def test_removed_options_are_not_offered() -> None:
    # They are still listed in --help, which misled other tools.
    assert not {"--draft-max", "--draft", "--draft-min", "--spec-ngram-size-n"} & NEW.flags


def test_old_help() -> None:
    assert OLD.family == "draft"
    assert OLD.spec_types == ()
    assert not OLD.synth
    assert OLD.supports("draft-simple")
    assert not OLD.supports("draft-mtp")
    assert OLD.supports("none")


def test_names_of_the_time_between() -> None:
    text = "--spec-type [none|draft|eagle3|mtp|ngram-simple]\n" + " " * 40 + "type (default: none)\n"
    found = parse_help(text)
    assert found.spec_type("draft-simple") == "draft"
    assert found.spec_type("draft-mtp") == "mtp"
    assert found.spec_type("draft-dflash") is None


@pytest.mark.parametrize(
    ("text", "version", "build"),
    [
        ("version: 0.6.0-dev (build 11434, commit unknown)\nbuilt with GNU", "0.6.0-dev", "b11434"),
        ("version: 5163 (8cf427ff)", "5163", "b5163"),
        ("version: 0.1.0-dev (build 1, commit 7e4c0a9)", "0.1.0-dev", "unknown"),
        ("version: 0 (unknown)", "0", "unknown"),
        ("ggml_cuda_init: found 1 device\nversion: 6100 (abc)\n", "6100", "b6100"),
        ("something else", "unknown", "unknown"),
    ],
)
def test_versions(text: str, version: str, build: str) -> None:
    assert parse_version(text) == (version, build)


@given(st.text(max_size=400))
def test_help_parser_takes_anything(text: str) -> None:
    found = parse_help(text)
    assert found.family in ("spec", "draft", "none")
    assert all(flag.startswith("-") for flag in found.flags)


def test_devices() -> None:
    text = (
        "ggml_cuda_init: noise\nAvailable devices:\n  CUDA0: NVIDIA GeForce RTX 3090 (24247 MiB, 23000 MiB free)\n"
        "  Vulkan1: AMD Radeon (RADV GFX1151) (98304 MiB, 90000 MiB free)\n  BLAS: OpenBLAS\n"
    )
    found = parse_devices(text)
    assert [d.name for d in found] == ["CUDA0", "Vulkan1", "BLAS"]
    assert found[0].description == "NVIDIA GeForce RTX 3090"
    assert found[1].description == "AMD Radeon (RADV GFX1151)"
    assert found[1].free == 90000 << 20
    assert found[2].memory is None
    assert parse_devices("no list here") == ()


def test_inspecting_a_program(tmp_path: Path) -> None:
    engine = inspect_binary(fake(tmp_path, "ok"))
    assert (engine.kind, engine.version, engine.build) == ("llama-server", "0.6.0-dev", "b11434")
    assert engine.capabilities == NEW
    assert [d.name for d in list_devices(engine)] == ["CUDA0"]
    old = inspect_binary(fake(tmp_path, "old"))
    assert old.build == "b5163"
    assert list_devices(old) == ()


def test_llama_with_subcommand(tmp_path: Path) -> None:
    engine = inspect_binary(fake(tmp_path, "ok", name="llama"))
    assert engine.kind == "llama-serve"
    assert engine.command[1:] == ("serve",)


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [("illegal-at-help", "illegal instruction"), ("not-llama", "is not a usable llama-server")],
)
def test_programs_that_are_of_no_use(tmp_path: Path, behaviour: str, words: str) -> None:
    with pytest.raises(EngineError, match=words) as error:
        inspect_binary(fake(tmp_path, behaviour))
    assert error.value.hint
    assert error.value.exit_code == 4


def test_missing_program() -> None:
    with pytest.raises(EngineError, match="is not a program"):
        find_engine("/nowhere/llama-server")


def test_auto_prefers_a_working_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.mkdir()
    fake(bad, "illegal-at-help")
    path = fake(good, "ok")
    monkeypatch.delenv("ADVISOR_ENGINE", raising=False)
    monkeypatch.setenv("PATH", f"{bad}:{os.environ['PATH']}")
    monkeypatch.setattr(find, "_places", lambda: iter([(str(bad / "llama-server"), "PATH"), (path, "Homebrew")]))
    engine = find_engine("auto")
    assert engine.command == (path,)
    assert engine.origin == "Homebrew"


def test_auto_falls_back_to_the_embedded_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "_places", lambda: iter([(fake(tmp_path, "not-llama"), "PATH")]))
    pytest.importorskip("xllamacpp")
    assert find_engine("auto").kind == "embedded"


def test_nothing_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> find.Engine:
        raise EngineError("not installed")

    monkeypatch.setattr(find, "_places", lambda: iter(()))
    monkeypatch.setattr(find, "_embedded", missing)
    with pytest.raises(EngineError, match=r"draft-advisor\[embedded\]"):
        find_engine("auto")


def test_places_know_the_path_and_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    chosen, on_path = fake(one, "ok"), fake(two, "ok")
    monkeypatch.setenv("PATH", str(two))
    monkeypatch.setenv("ADVISOR_ENGINE", chosen)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    backends = tmp_path / "home/.lmstudio/extensions/backends/llama.cpp-linux-x86_64-avx2-1.50.0"
    backends.mkdir(parents=True)
    fake(backends, "ok")
    found = list(find.candidates())
    assert found[0] == (chosen, "ADVISOR_ENGINE")
    assert found[1] == (on_path, "PATH")
    assert ("LM Studio" in [origin for _, origin in found]) is True


def test_environment_is_isolated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_SPEC_TYPE", "draft-simple")
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    environment = find.isolated_environment()
    assert not any(name.startswith("LLAMA_A") for name in environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    with pytest.raises(OSError, match="ot a directory"):
        os.listdir(os.path.join(environment["XDG_CONFIG_HOME"], "llama.cpp"))
