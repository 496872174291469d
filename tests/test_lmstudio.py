"""Measuring LM Studio, played by a fake that speaks REST and, to the real SDK, its WebSocket protocol."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from engine_fakes import FOLDER
from typer.testing import CliRunner

from advisor.errors import AdvisorError, CancelledError, EngineError, InputError, NotDraftedError
from advisor.llamacpp import lmstudio as module
from advisor.llamacpp.client import Client
from advisor.llamacpp.confirm import Confirmation
from advisor.llamacpp.lmstudio import Model, list_models
from advisor.llamacpp.prompts import Prompt
from advisor.llamacpp.remote import confirm_server, describe_server

PROMPTS = tuple(Prompt(id=f"p{i}", prompt=f"Say {i}") for i in range(3))
TOKEN = "sk-lm-fakefake:notarealtokenatall00"


@contextmanager
def lm_studio(behaviour: str = "ok") -> Iterator[str]:
    command = [sys.executable, str(FOLDER / "fake_lm_studio.py"), behaviour]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def asked(url: str) -> list[dict[str, Any]]:
    with Client(url) as client:
        found: list[dict[str, Any]] = client.json("GET", "/asked")
        return found


def measure(url: str, **more: Any) -> Confirmation:
    return confirm_server(url, **{"draft": "small-0.5b", "prompts": PROMPTS, "max_tokens": 41, **more})


def nothing_left(url: str) -> None:
    """No thread of the SDK and no open socket to the server."""
    assert not [t.name for t in threading.enumerate() if type(t).__module__.startswith("lmstudio")]
    port = int(url.rpartition(":")[2])
    left = [c for c in psutil.Process().net_connections("tcp") if c.raddr and c.raddr.port == port]
    assert not [c for c in left if c.status == psutil.CONN_ESTABLISHED]


@pytest.fixture(scope="module")
def well() -> Iterator[str]:
    """One that behaves, for tests that do not look at what it was asked."""
    with lm_studio() as url:
        yield url


@pytest.fixture
def no_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmstudio", None)


# ---- through the SDK


def test_both_arms() -> None:
    with lm_studio() as url:
        result = measure(url)
        requests = asked(url)
        nothing_left(url)
    m = result.measurement
    assert (result.target, result.draft) == ("big-7b", "small-0.5b")  # the loaded one
    assert m.draft_max == 3
    assert m.speedup.median == pytest.approx(1.6)
    assert m.baseline_tps == pytest.approx(50)
    assert m.acceptance == pytest.approx(0.6, abs=0.02)
    assert m.identical
    assert m.baseline_ttft_ms == pytest.approx(200)
    assert result.engine.startswith("lmstudio LM Studio at http://127.0.0.1")
    assert result.build == "llama.cpp-linux-x86_64-vulkan 2.9.0"
    assert any("neither token ids nor memory" in r for r in result.reasons)
    assert Confirmation.model_validate_json(result.model_dump_json()) == result
    assert {r["route"] for r in requests} == {"sdk"}
    assert {r["temperature"] for r in requests} == {0}
    assert {r["k"] for r in requests if r["drafting"]} == {3}
    pinned = {"minDraftLengthToConsider": 0, "minContinueDraftingProbability": 0}
    assert all(r["rest"] == (pinned if r["drafting"] else {}) for r in requests)
    # after the warm-up the arms take turns in being first
    assert [r["drafting"] for r in requests[1:7]] == [False, True, True, False, False, True]


def test_sweep() -> None:
    said = []
    with lm_studio() as url:
        result = measure(url, draft_max=(1, 3, 8, 3), progress=said.append)
        requests = asked(url)
    assert [m.draft_max for m in result.measurements] == [1, 3, 8]
    assert [m.speedup.median for m in result.measurements] == pytest.approx([1.2, 1.6, 1.1])
    assert result.best_draft_max == 3
    assert {r["k"] for r in requests if r["drafting"]} == {1, 3, 8}
    assert max(p.total for p in said) == 3 * 5 * 3 * 2
    assert any("set per request" in r for r in result.reasons)


def test_raw_prompts() -> None:
    raw = tuple(p.model_copy(update={"raw": True}) for p in PROMPTS)
    with lm_studio() as url:
        measure(url, prompts=raw)
        assert [r["raw"] for r in asked(url)] == [False] + 12 * [True]  # the warm-up is a chat


@pytest.mark.parametrize(
    ("behaviour", "error", "words"),
    [
        ("ignores-draft", NotDraftedError, "drafted nothing"),
        ("always-drafts", EngineError, "drafts although"),
        ("no-stats", EngineError, "without statistics"),
        ("refuses-draft", EngineError, r"refused: Draft model is not compatible: Vocabularies differ.\[31m\. Try"),
        ("unloads", EngineError, "ended a request early: modelUnloaded"),
        ("closes", EngineError, "closed a request without an answer"),
        ("dies", EngineError, "broke the connection off.*The server went away"),
        ("forgets", InputError, "cannot find the model big-7b"),
        ("locked", EngineError, "wants an API token"),
        ("locked-in-words", EngineError, "wants an API token"),
        ("token", EngineError, "wants an API token"),
        ("no-websocket", EngineError, "does not let the SDK"),
    ],
)
def test_troubles(behaviour: str, error: type[AdvisorError], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with lm_studio(behaviour) as url:
        with pytest.raises(error, match=words) as caught:
            measure(url, repetitions=(1, 1))
        nothing_left(url)
    assert type(caught.value) is error
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.1)
    with lm_studio("mute") as url:
        with pytest.raises(EngineError, match="was silent for"):
            measure(url)
        nothing_left(url)


def test_silence_in_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GREETING", 0.1)
    with lm_studio("stalls") as url:
        with pytest.raises(EngineError, match="does not let the SDK"):
            measure(url)
        nothing_left(url)


def test_cancelled(well: str) -> None:
    answers = iter([False, False, True])
    result = measure(well, cancel=lambda: next(answers))
    assert not result.complete
    with pytest.raises(CancelledError):
        measure(well, cancel=lambda: True)
    nothing_left(well)


def test_token(well: str) -> None:
    with lm_studio("token") as url:
        result = measure(url, api_key=TOKEN, repetitions=(1, 1))
        assert result.measurement.speedup.median == pytest.approx(1.6)
        assert TOKEN not in result.model_dump_json()
        with pytest.raises(EngineError, match="refuses this API token"):
            measure(url, api_key=TOKEN.replace("real", "fake"))
    with lm_studio("locked") as url, pytest.raises(EngineError, match="refuses this API token"):
        measure(url, api_key=TOKEN)
    with pytest.raises(InputError, match="none of LM Studio's") as caught:
        measure(well, api_key="something")
    assert "something" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"draft": "other"}, r"no model other\. It has: big-7b, small-0.5b\."),
        ({"target": "embed"}, "no model embed"),
        ({"draft": None}, "none was named"),
        ({"method": "draft-mtp"}, "with a draft model only"),
        ({"baseline_url": "http://127.0.0.1:9"}, "both arms itself"),
        ({"draft_max": ()}, "between 1 and 256"),
    ],
)
def test_wrong_wishes(well: str, more: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        measure(well, **more)


def test_a_quantisation_in_the_key(well: str) -> None:
    assert measure(well, target="big-7b@q4_k_m", repetitions=(1, 1)).target == "big-7b@q4_k_m"


def test_nobody_there() -> None:
    with pytest.raises(EngineError, match="did not answer"):
        measure("http://127.0.0.1:9")


# ---- through REST


@pytest.mark.parametrize("behaviour", ["ok", "old"])
def test_listing(behaviour: str) -> None:
    with lm_studio(behaviour) as url, Client(url) as client:
        assert list_models(client, None) == (Model("big-7b", ("big-7b",)), Model("small-0.5b", ()))
        assert describe_server(url) is None


@pytest.mark.parametrize("behaviour", ["ok", "old"])
@pytest.mark.usefixtures("no_sdk")
def test_without_the_sdk(behaviour: str) -> None:
    with lm_studio(behaviour) as url:
        result = measure(url, draft_max=7)
        assert {r["route"] for r in asked(url)} == {"v0"}
    assert result.measurement.speedup.median == pytest.approx(1.6)
    assert result.measurement.draft_max == 7  # noted, not set
    assert result.build == "llama.cpp-linux-x86_64-vulkan 2.9.0"
    assert any("draft-advisor[lmstudio]" in r and "could not be set" in r for r in result.reasons)


@pytest.mark.parametrize(
    ("behaviour", "more", "error", "words"),
    [
        ("ignores-draft", {}, NotDraftedError, "drafted nothing"),
        ("always-drafts", {}, EngineError, "drafts although"),
        ("no-stats", {}, EngineError, "without statistics"),
        ("dies", {}, EngineError, "The server went away"),
        ("token", {}, EngineError, "wants an API token"),
        ("token", {"api_key": "wrong"}, EngineError, "refuses this API token"),
        ("ok", {"draft_max": (1, 2)}, InputError, r"not installed \(pip install .* so draft lengths cannot be swept"),
        ("ok", {"prompts": (Prompt(id="r", prompt="x", raw=True),)}, InputError, "raw prompt r needs the SDK"),
    ],
)
@pytest.mark.usefixtures("no_sdk")
def test_troubles_without_the_sdk(behaviour: str, more: dict[str, Any], error: type[AdvisorError], words: str) -> None:
    with lm_studio(behaviour) as url, pytest.raises(error, match=words) as caught:
        measure(url, **{"repetitions": (1, 1), **more})
    assert type(caught.value) is error


def test_https_is_not_for_the_sdk() -> None:
    assert "https" in str(module._why_no_sdk("https://studio.example:1234"))
    assert module._why_no_sdk("http://127.0.0.1:1234") is None


# ---- the command


def test_command_line(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.cli.main import app

    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path))
    with lm_studio("token") as url:
        words = ["confirm", "--url", url, "big-7b", "small-0.5b", "-k", "1,3", "-n", "20", "--repeat", "1"]
        done = CliRunner().invoke(app, [*words, "--json"], env={"LM_API_TOKEN": TOKEN})
        assert done.exit_code == 0, done.exception
        answer = json.loads(done.stdout)
        assert answer["verdict"] == "measured"
        assert [m["draft_max"] for m in answer["measurements"]] == [1, 3]
        assert "notareal" not in done.stdout
        shown = CliRunner().invoke(app, [*words, "--no-save"], env={"LM_API_TOKEN": TOKEN, "COLUMNS": "100"})
        assert "First token after 200 ms plain, 200 ms drafting." in shown.stdout
        assert "Fastest draft length here: 3." in shown.stdout
        wrong = CliRunner().invoke(app, [*words, "--engine", "embedded"])
        assert isinstance(wrong.exception, InputError)
        refused = CliRunner().invoke(app, words)
        assert isinstance(refused.exception, EngineError)
    none = CliRunner().invoke(app, ["confirm"])
    assert isinstance(none.exception, InputError)
