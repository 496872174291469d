"""Measuring a llama-server that already runs, played by the fake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from engine_fakes import fake

from advisor.errors import EngineError, InputError, NotDraftedError
from advisor.llamacpp.find import inspect_binary
from advisor.llamacpp.prompts import Prompt
from advisor.llamacpp.remote import confirm_server, describe_server
from advisor.llamacpp.server import Server, ServerOptions

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fakes are shell scripts")
PROMPTS = tuple(Prompt(id=f"p{i}", prompt=f"Say {i}") for i in range(3))


@contextmanager
def llama_server(folder: Path, behaviour: str = "ok", drafting: bool = True) -> Iterator[str]:
    model = folder / "m.gguf"
    model.write_bytes(b"GGUF")
    options = ServerOptions(model=str(model))
    if drafting:
        options = options.model_copy(update={"method": "draft-simple", "draft": str(model), "draft_max": 3})
    with Server(inspect_binary(fake(folder, behaviour)), options) as server:
        yield server.client.url


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


def test_a_running_llama_server_cannot_be_swept(tmp_path: Path) -> None:
    with llama_server(tmp_path) as url, pytest.raises(InputError, match="has one draft length, so"):
        confirm_server(url, draft_max=(1, 2), prompts=PROMPTS)
    with pytest.raises(InputError, match="between 1 and 256"):
        confirm_server(url, draft_max=0, prompts=PROMPTS)
