"""Measuring servers that already run: llama-server (played by the fake) and LM Studio (played by a fake)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_fakes import FOLDER, fake
from typer.testing import CliRunner

from advisor.errors import EngineError, InputError, NotDraftedError
from advisor.llamacpp.confirm import Confirmation
from advisor.llamacpp.find import inspect_binary
from advisor.llamacpp.prompts import Prompt
from advisor.llamacpp.remote import confirm_server, describe_server
from advisor.llamacpp.server import Server, ServerOptions

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fakes are shell scripts")
PROMPTS = tuple(Prompt(id=f"p{i}", prompt=f"Say {i}") for i in range(3))


@contextmanager
def lm_studio(behaviour: str = "ok") -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, str(FOLDER / "fake_lm_studio.py"), behaviour], stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


@contextmanager
def llama_server(folder: Path, behaviour: str = "ok", drafting: bool = True) -> Iterator[str]:
    model = folder / "m.gguf"
    model.write_bytes(b"GGUF")
    options = ServerOptions(model=str(model))
    if drafting:
        options = options.model_copy(update={"method": "draft-simple", "draft": str(model), "draft_max": 3})
    with Server(inspect_binary(fake(folder, behaviour)), options) as server:
        yield server.client.url


def test_lm_studio() -> None:
    with lm_studio() as url:
        result = confirm_server(url, draft="small-0.5b", prompts=PROMPTS, max_tokens=41)
    m = result.measurement
    assert result.target == "big-7b"  # the loaded one
    assert result.draft == "small-0.5b"
    assert m.speedup.median == pytest.approx(1.6)
    assert m.baseline_tps == pytest.approx(50)
    assert m.acceptance == pytest.approx(0.6, abs=0.02)
    assert m.identical
    assert m.baseline_ttft_ms == pytest.approx(200)
    assert result.engine.startswith("lmstudio LM Studio at http://127.0.0.1")
    assert result.build == "llama.cpp-linux-x86_64-vulkan 2.9.0"
    assert any("does not tell token ids" in r for r in result.reasons)
    assert Confirmation.model_validate_json(result.model_dump_json()) == result


@pytest.mark.parametrize(
    ("behaviour", "draft", "error", "words"),
    [
        ("ignores-draft", "small-0.5b", NotDraftedError, "drafted nothing"),
        ("always-drafts", "small-0.5b", EngineError, "drafts although"),
        ("no-stats", "small-0.5b", EngineError, "without statistics"),
        ("ok", "other", InputError, "no model other"),
        ("token", "small-0.5b", EngineError, "wants an API token"),
    ],
)
def test_lm_studio_troubles(behaviour: str, draft: str, error: type[Exception], words: str) -> None:
    with lm_studio(behaviour) as url, pytest.raises(error, match=words):
        confirm_server(url, draft=draft, prompts=PROMPTS, max_tokens=20)


def test_lm_studio_token() -> None:
    with lm_studio("token") as url:
        result = confirm_server(url, draft="small-0.5b", prompts=PROMPTS, max_tokens=20, api_key="secret")
    assert result.measurement.speedup.median == pytest.approx(1.6)


def test_a_running_llama_server_alone(tmp_path: Path) -> None:
    with llama_server(tmp_path) as url:
        assert describe_server(url) == str(tmp_path / "m.gguf")
        result = confirm_server(url, draft="d", prompts=PROMPTS, max_tokens=31)
    m = result.measurement
    assert m.baseline_tps == pytest.approx(100, rel=0.03)  # from two-token requests, which draft nothing
    assert m.speedup.median == pytest.approx(1.25, rel=0.03)
    assert m.positions == (1.0, 1.0)
    assert any("single steps without drafts" in r for r in result.reasons)
    assert result.build == "b11434-abc"


def test_a_running_llama_server_beside_a_plain_one(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    with llama_server(tmp_path) as url, llama_server(plain, drafting=False) as other:
        result = confirm_server(url, baseline_url=other, prompts=PROMPTS, max_tokens=31)
        assert result.measurement.speedup.median == pytest.approx(1.25, rel=0.03)
        assert not any("single steps" in r for r in result.reasons)
        with pytest.raises(InputError, match="baseline-url speculates too"):
            confirm_server(url, baseline_url=url, prompts=PROMPTS)


def test_a_server_that_does_not_speculate(tmp_path: Path) -> None:
    with llama_server(tmp_path, drafting=False) as url, pytest.raises(NotDraftedError, match="does not speculate"):
        confirm_server(url, prompts=PROMPTS)


def test_nobody_there() -> None:
    with pytest.raises(EngineError, match="did not answer"):
        confirm_server("http://127.0.0.1:9", prompts=PROMPTS)


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.cli.main import app

    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path))
    with lm_studio("token") as url:
        words = ["confirm", "--url", url, "big-7b", "small-0.5b", "--json", "-n", "20", "--repeat", "1"]
        done = CliRunner().invoke(app, words, env={"LM_API_TOKEN": "secret"})
        assert done.exit_code == 0, done.exception
        assert json.loads(done.stdout)["verdict"] == "measured"
        assert "secret" not in done.stdout
        wrong = CliRunner().invoke(app, [*words, "--engine", "embedded"])
        assert isinstance(wrong.exception, InputError)
    none = CliRunner().invoke(app, ["confirm"])
    assert isinstance(none.exception, InputError)
