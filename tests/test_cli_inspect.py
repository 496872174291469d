"""The commands inspect, check and models as a user runs them: screens, JSON, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from gguf_files import llama, vocabulary, write_gguf
from test_models_describe import mixture, qwen35
from test_models_gguf import BAD

from advisor.cli.main import main
from advisor.errors import EXIT_INPUT, EXIT_OK
from advisor.models.inspection import InspectReport
from advisor.models.pairs import PairReport


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


Run = Callable[..., Ran]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["advisor", *(str(a) for a in arguments)])
        monkeypatch.setenv("COLUMNS", "80")
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


# -- inspect ------------------------------------------------------------------------------------------------------


def test_one_screen(run: Run, gemma3: Path) -> None:
    ran = run("inspect", gemma3)
    assert ran.code == EXIT_OK
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert len(lines) <= 24
    assert max(len(line) for line in lines) <= 80
    for part in ("gemma-3-270m", "language model", "Q4_K_M", "262,144 tokens", "output matrix", "178 MB", "MTP layers"):
        assert part in ran.out


def test_json_holds_the_contract(run: Run, gemma3: Path) -> None:
    found = run("inspect", gemma3, "--json").json
    promised = (
        "schema_version kind architecture size_bytes total_parameters active_parameters decode_bytes "
        "kv_bytes_per_token state_bytes mtp_layers tokenizer assumptions"
    )
    assert set(promised.split()) <= set(found)
    report = InspectReport.model_validate(found)
    assert report.total_parameters == 268_098_176
    assert report.decode_bytes == sum(r.per_token for r in report.roles)
    assert report.layers == ()
    layers = run("inspect", gemma3, "--json", "--layers").json["layers"]
    assert len(layers) == 18


def test_roles_add_up_for_mixtures_and_hybrids(run: Run, tmp_path: Path) -> None:
    for number, shape in enumerate((mixture(), qwen35(), llama(tied=True), llama(arch="nanbeige", num_loops=3))):
        keys, tensors = shape
        path = write_gguf(tmp_path / f"{number}.gguf", {**keys, **vocabulary()}, tensors)
        report = InspectReport.model_validate(run("inspect", path, "--json").json)
        assert report.decode_bytes == pytest.approx(sum(r.per_token for r in report.roles), abs=2)
        assert report.total_parameters == sum(r.parameters for r in report.roles)


def test_layers_table(run: Run) -> None:
    ran = run("inspect", "lfm2-8b-a1b:Q8_0", "--layers")
    assert ran.out.count("convolution") >= 18
    assert "4/32" in ran.out


def test_catalogue_names_and_assumptions(run: Run) -> None:
    ran = run("inspect", "qwen3.6-35b-a3b:UD-Q4_K_XL")
    assert ran.code == EXIT_OK
    assert "8 of 256 per token" in ran.out
    assert "assumed: " in ran.out
    drafter = run("inspect", "gemma-4-31b-assistant")
    assert drafter.code == EXIT_OK
    assert "drafter head" in drafter.out
    assert "for targets 5376 wide" in drafter.out


@pytest.mark.parametrize("case", ["lfs pointer", "html", "version 1", "truncated weights", "2^60 tensors", "empty"])
def test_bad_files_exit_with_2_and_one_line(run: Run, tmp_path: Path, case: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(BAD[case][0])
    for options in ((), ("--json",)):
        ran = run("inspect", path, *options)
        assert ran.code == EXIT_INPUT
        assert ran.out == ""
        assert ran.err.count("\n") == 1
        assert ran.err.startswith("advisor: bad.gguf")


@pytest.mark.parametrize(
    ("keys", "tensors", "kind", "words"),
    [
        ({"general.architecture": "clip"}, [("v.a.weight", (8, 8), "F16")], "mmproj", "vision projector"),
        ({"general.architecture": "llama", "general.type": "adapter"}, [("a.lora_a", (8, 8), "F16")], "lora", "LoRA"),
        (
            {"general.architecture": "x", "general.type": "imatrix"},
            [("a.in_sum2", (8,), "F32")],
            "imatrix",
            "importance",
        ),
        ({"general.architecture": "llama", **vocabulary()}, [], "vocabulary", "no weights"),
    ],
)
def test_files_that_are_no_models(
    run: Run, tmp_path: Path, keys: dict[str, Any], tensors: list[Any], kind: str, words: str
) -> None:
    path = write_gguf(tmp_path / "thing.gguf", keys, tensors)
    ran = run("inspect", path)
    assert (ran.code, ran.out) == (EXIT_INPUT, "")
    assert words in ran.err
    as_json = run("inspect", path, "--json")
    assert as_json.code == EXIT_INPUT
    assert as_json.json["kind"] == kind
    assert as_json.json["usable"] is False
    assert words in as_json.json["problem"]


def test_nothing_from_a_file_reaches_the_terminal_raw(run: Run, tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[31m\u202e\u200b\x00"
    keys, tensors = llama(layers=1)
    keys |= {"general.name": evil, "general.basename": evil, "tokenizer.chat_template": evil}
    keys |= vocabulary(pre=evil, changed={9: evil})
    keys["general.architecture"] = "llama"
    one = write_gguf(tmp_path / f"a{evil[:-1]}.gguf", keys, tensors)
    two = write_gguf(tmp_path / "b.gguf", {**keys, **vocabulary(pre=evil, changed={9: "x"})}, tensors)
    for arguments in (("inspect", one), ("inspect", one, "--layers"), ("check", one, two, "--build", 11434)):
        ran = run(*arguments)
        assert ran.code == EXIT_OK
        assert not set("\x1b\x07\u202e\u200b\x00") & set(ran.out + ran.err)
    hostile = {**keys, "general.architecture": "clip" + evil}
    ran = run("inspect", write_gguf(tmp_path / "c.gguf", hostile, [("\x1b[2J.weight", (8, 8), "F16")]))
    assert not set("\x1b\x07\u202e") & set(ran.out + ran.err)


def test_unknown_names(run: Run) -> None:
    ran = run("inspect", "qwen3.6-27")
    assert ran.code == EXIT_INPUT
    assert "Did you mean qwen3.6-27b" in ran.err


def test_as_a_process_without_colour(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "advisor", "inspect", "smollm2-135m:Q8_0"],
        capture_output=True, text=True, timeout=60, check=True,
        env={"PATH": "", "NO_COLOR": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert "\x1b" not in done.stdout
    assert done.stderr == ""


def test_heavy_packages_stay_out(smollm2: Path) -> None:
    """What makes the command start fast: none of these is imported to read a header."""
    code = (
        "import sys; sys.argv = ['advisor', 'inspect', sys.argv[1], '--json']\n"
        "from advisor.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('numpy', 'scipy', 'huggingface_hub', 'httpx', 'gguf', 'altair') if m in sys.modules], "
        "file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(smollm2)], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


# -- check --------------------------------------------------------------------------------------------------------


def test_check_tells_the_true_reason(run: Run, tmp_path: Path) -> None:
    keys, tensors = llama()
    one = write_gguf(tmp_path / "one.gguf", {**keys, **vocabulary()}, tensors)
    two = write_gguf(tmp_path / "two.gguf", {**keys, **vocabulary(changed={39: "<other>"})}, tensors)
    ran = run("check", one, two, "--build", 11434)
    assert ran.code == EXIT_OK
    assert "one + two: not compatible" in ran.out
    assert 'Token 39 is "tok39" in the target and "<other>" in the draft' in ran.out
    report = PairReport.model_validate(run("check", one, two, "--build", 11434, "--json").json)
    assert (report.compatible, report.rule, report.build) == (False, "token", 11434)
    assert report.first_difference is not None
    assert report.first_difference.id == 39


def test_check_of_real_strangers(run: Run, smollm2: Path, gemma3: Path) -> None:
    ran = run("check", gemma3, smollm2, "--build", 11434)
    assert "SPM (target) and BPE (draft)" in ran.out
    assert max(len(line) for line in ran.out.splitlines()) <= 80


def test_check_says_what_builds_change(run: Run, tmp_path: Path) -> None:
    keys, tensors = llama()
    paths = [
        write_gguf(tmp_path / f"{n}.gguf", {**keys, **vocabulary(n)}, tensors) for n in (200, 320)
    ]  # 120 entries apart
    assert run("check", *paths, "--build", 11434, "--json").json["compatible"] is True
    assert run("check", *paths, "--build", 4000, "--json").json["compatible"] is False
    assert "before about b4170 refuse" in run("check", *paths, "--build", 11434).out


def test_check_names_and_drafters(run: Run) -> None:
    found = run("check", "qwen3.6-27b", "qwen3.5-0.8b", "--build", 11434, "--json").json
    assert found["compatible"] is None
    assert "Expected to match" in found["reason"]
    assert run("check", "qwen3-8b", "qwen3-8b-eagle3", "--build", 11434, "--json").json["compatible"] is True
    wrong = run("check", "gemma-4-31b-assistant", "qwen3-8b", "--build", 11434)
    assert wrong.code == EXIT_INPUT
    assert "drafter head" in wrong.err


def test_check_without_an_engine(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.cli.check._engine_build", lambda: (None, None))
    assert "no engine found" in run("check", "qwen3-8b", "qwen3-0.6b").out


# -- models -------------------------------------------------------------------------------------------------------


def test_catalogue_search(run: Run) -> None:
    ran = run("models", "qwen3.6")
    assert "qwen3.6-35b-a3b" in ran.out
    assert "gemma" not in ran.out
    found = run("models", "qwen3.6 27b", "--json", "--quant", "Q8_0").json["models"]
    assert {m["name"] for m in found} == {"qwen3.6-27b", "qwen3.6-27b-dflash"}
    assert {m["quant"] for m in found} == {"Q8_0"}
    nothing = run("models", "qwen3.6-28b")
    assert nothing.code == EXIT_INPUT
    assert "Did you mean qwen3.6-27b" in nothing.err


def test_models_in_a_folder(run: Run, tmp_path: Path) -> None:
    keys, tensors = llama()
    write_gguf(tmp_path / "fine.gguf", {**keys, **vocabulary()}, tensors)
    (tmp_path / "bad.gguf").write_text("<html>")
    ran = run("models", "--folder", tmp_path)
    assert "fine" in ran.out
    assert "bad.gguf is a web page" in ran.out.replace("\n", " ")
    found = run("models", "--folder", tmp_path, "--json").json
    assert [m["name"] for m in found["models"]] == ["fine"]
    assert len(found["unreadable"]) == 1
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "No GGUF models found" in run("models", "--folder", empty).out
