"""Starting, proving, explaining and ending engines, with fakes that fail in every known way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from engine_fakes import fake

from advisor.errors import CancelledError, EngineError, InputError, NotDraftedError
from advisor.llamacpp.client import Client, parse_completion
from advisor.llamacpp.failures import diagnose, exit_reason, failure
from advisor.llamacpp.find import inspect_binary
from advisor.llamacpp.server import NgramShape, Server, ServerOptions, effective_ngram, server_arguments

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the fakes are shell scripts")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "my model ü.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def leftovers() -> list[str]:
    """Command lines of engines and guards below this process."""
    return [
        " ".join(p.cmdline())
        for p in psutil.Process().children(recursive=True)
        if p.status() != psutil.STATUS_ZOMBIE and any(x in " ".join(p.cmdline()) for x in ("fake_server", "guard.py"))
    ]


def test_a_good_server(tmp_path: Path, model: str) -> None:
    engine = inspect_binary(fake(tmp_path, "ok"))
    with Server(engine, ServerOptions(model=model, draft=model, method="draft-simple", draft_max=3)) as server:
        assert server.client.speculative() is True
        answer = server.client.complete("hello", 31)
        assert (answer.drafted, answer.accepted, answer.predicted) == (30, 20, 31)
        assert answer.tokens_per_second == pytest.approx(30 / 0.24, rel=0.05)
        counters = server.client.counters()
        assert counters is not None
        assert (counters.rounds, counters.drafted, counters.accepted) == (10, 30, 20)
        assert server.client.apply_template("hi") == "<user>hi</user>"
        assert server.memory() > 1_000_000
        server.prove_speculation()
        assert model in server.command
    server.stop()  # twice is fine
    assert leftovers() == []


def test_waits_while_it_loads(tmp_path: Path, model: str) -> None:
    said: list[str] = []
    with Server(inspect_binary(fake(tmp_path, "slow")), ServerOptions(model=model), progress=said.append) as server:
        assert server.load_seconds > 0.2
    assert "loading the model" in said


FAILURES = [
    ("illegal", "illegal instruction", "Use a build for this processor"),
    ("out-of-memory", "not enough memory", "smaller quant"),
    ("killed", "killed from outside, most likely for lack of memory", "smaller quant"),
    ("abort", "it aborted", "Update llama.cpp"),
    ("missing-library", "library it needs is missing", "Reinstall"),
    ("refused", r"too old for the model's architecture \(qwen9\)", "Update llama.cpp"),
    ("port-taken", "another program took the port", "Try again"),
]


@pytest.mark.parametrize(("behaviour", "words", "cure"), FAILURES)
def test_death_at_the_start(tmp_path: Path, model: str, behaviour: str, words: str, cure: str) -> None:
    with pytest.raises(EngineError, match=words) as error:
        Server(inspect_binary(fake(tmp_path, behaviour)), ServerOptions(model=model))
    assert cure in (error.value.hint or "")
    assert "my model ü.gguf" in error.value.message
    assert "\n" not in str(error.value)
    assert leftovers() == []


def test_somebody_else_answers(tmp_path: Path, model: str) -> None:
    with pytest.raises(EngineError, match="Another server answers"):
        Server(inspect_binary(fake(tmp_path, "impostor")), ServerOptions(model=model))
    assert leftovers() == []


def test_standing_still(tmp_path: Path, model: str) -> None:
    with pytest.raises(EngineError, match="stood still"):
        Server(inspect_binary(fake(tmp_path, "stuck")), ServerOptions(model=model), stall=0.5)
    assert leftovers() == []


def test_cancelling_the_start(tmp_path: Path, model: str) -> None:
    asked = iter([False, False, True])
    with pytest.raises(CancelledError):
        Server(inspect_binary(fake(tmp_path, "stuck")), ServerOptions(model=model), cancel=lambda: next(asked))
    assert leftovers() == []


def test_death_while_generating(tmp_path: Path, model: str) -> None:
    with Server(inspect_binary(fake(tmp_path, "dies-generating")), ServerOptions(model=model)) as server:
        server.client.complete("one", 4)
        with pytest.raises(ConnectionError) as error:
            server.client.complete("two", 4)
        explained = server.explain(error.value)
        assert "does not hand its layer inputs" in explained.message
        assert "aborted" in explained.message
        assert explained.hint
    assert leftovers() == []


def test_dropped_draft(tmp_path: Path, model: str) -> None:
    options = ServerOptions(model=model, draft=model, method="draft-simple", draft_max=3)
    with (
        Server(inspect_binary(fake(tmp_path, "dropped")), options) as server,
        pytest.raises(NotDraftedError, match="vocabulary differs") as error,
    ):
        server.prove_speculation()
    assert error.value.exit_code == 12


def test_a_server_that_does_not_say(tmp_path: Path, model: str) -> None:
    options = ServerOptions(model=model, draft=model, method="draft-simple")
    with Server(inspect_binary(fake(tmp_path, "silent")), options) as server:
        assert server.client.speculative() is None
        server.prove_speculation()  # cannot be told here; draft_n decides later
        assert server.client.complete("x", 8).drafted is None


@pytest.mark.parametrize(("behaviour", "words"), [("no-timings", "without timings"), ("html", "no JSON: <html>")])
def test_wrong_answers(tmp_path: Path, model: str, behaviour: str, words: str) -> None:
    with (
        Server(inspect_binary(fake(tmp_path, behaviour)), ServerOptions(model=model)) as server,
        pytest.raises(EngineError, match=words),
    ):
        server.client.complete("hello", 4)


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Server(inspect_binary(fake(tmp_path, "ok")), ServerOptions(model=str(tmp_path / "none.gguf")))


def test_isolation_reaches_the_engine(tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config" / "llama.cpp"
    config.mkdir(parents=True)
    (config / "config.ini").write_text("[*]\nspec-type = ngram-mod\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(config.parent))
    monkeypatch.setenv("LLAMA_ARG_DRAFT_MAX", "8")  # alone fatal for a new build
    with Server(inspect_binary(fake(tmp_path, "ok")), ServerOptions(model=model)) as server:
        assert server.client.health() == "ok"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_process_survives_us(tmp_path: Path, model: str, how: signal.Signals) -> None:
    """Whatever ends the advisor, the engine and the guard end too."""
    script = textwrap.dedent(f"""
        import signal, threading
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
        from advisor.llamacpp.find import inspect_binary
        from advisor.llamacpp.server import Server, ServerOptions
        with Server(inspect_binary({fake(tmp_path, "ok")!r}), ServerOptions(model={model!r})) as server:
            print(server._pid, server._process.pid, flush=True)
            threading.Event().wait()
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        engine, guard = (psutil.Process(int(x)) for x in child.stdout.readline().split())
        child.send_signal(how)
        child.wait(20)
        gone, alive = psutil.wait_procs([engine, guard], timeout=20)
        assert alive == []
        assert len(gone) == 2


def test_temporary_folders_do_not_survive_us() -> None:
    script = textwrap.dedent("""
        import threading
        from advisor.llamacpp.calibrate import temporary_folder
        with temporary_folder() as folder:
            (folder / "model.gguf").write_bytes(b"x" * 1000)
            print(folder, flush=True)
            threading.Event().wait()
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        folder = Path(child.stdout.readline().decode().strip())
        assert folder.is_dir()
        keeper = psutil.Process(child.pid).children()
        child.kill()
        child.wait(20)
        psutil.wait_procs(keeper, timeout=20)
        assert not folder.exists()


# ------------------------------------------------------------------------------------------------ words


def test_new_spelling(tmp_path: Path) -> None:
    engine = inspect_binary(fake(tmp_path, "ok"))
    options = ServerOptions(
        model="t.gguf", draft="d.gguf", method="draft-simple", draft_max=5, p_min=0.5, synth_rates=(0.8, 0.64)
    )
    words = server_arguments(engine, options, 8080, "a")
    assert words[words.index("--spec-draft-n-max") + 1] == "5"
    assert words[words.index("--spec-type") + 1] == "draft-simple"
    assert words[words.index("--spec-synth-rates") + 1] == "0.8,0.64"
    assert "--draft-max" not in words
    assert words[words.index("--parallel") + 1] == "1"


def test_old_spelling(tmp_path: Path) -> None:
    engine = inspect_binary(fake(tmp_path, "old"))
    words = server_arguments(engine, ServerOptions(model="t", draft="d", method="draft-simple", draft_max=5), 1, "a")
    assert words[words.index("--draft-max") + 1] == "5"
    assert "--spec-type" not in words
    with pytest.raises(EngineError, match="does not know draft-mtp"):
        server_arguments(engine, ServerOptions(model="t", method="draft-mtp", draft_max=3), 1, "a")
    with pytest.raises(EngineError, match="cannot force the acceptance"):
        server_arguments(engine, ServerOptions(model="t", draft="d", method="draft-simple", synth_rates=(0.5,)), 1, "a")


def test_baseline_says_none(tmp_path: Path) -> None:
    words = server_arguments(inspect_binary(fake(tmp_path, "ok")), ServerOptions(model="t"), 1, "a")
    assert words[words.index("--spec-type") + 1] == "none"


def test_ngram_lengths(tmp_path: Path) -> None:
    engine = inspect_binary(fake(tmp_path, "ok"))
    words = server_arguments(engine, ServerOptions(model="t", method="ngram-simple", draft_max=4), 1, "a")
    # size-m below size-n drafts nothing at all.
    assert words[words.index("--spec-ngram-simple-size-m") + 1] == "4"
    assert words[words.index("--spec-ngram-simple-size-n") + 1] == "4"
    words = server_arguments(engine, ServerOptions(model="t", method="ngram-mod", draft_max=16), 1, "a")
    assert words[words.index("--spec-ngram-mod-n-max") + 1] == "16"
    assert words[words.index("--spec-ngram-mod-n-min") + 1] == "16"


def test_ngram_shapes() -> None:
    assert effective_ngram(ServerOptions(model="t", method="ngram-simple", draft_max=48)).match == 12
    assert effective_ngram(ServerOptions(model="t", method="ngram-simple")).match is None
    chosen = ServerOptions(model="t", method="ngram-map-k", draft_max=8, ngram=NgramShape(match=3))
    assert effective_ngram(chosen).match == 3
    assert effective_ngram(ServerOptions(model="t", method="ngram-mod", draft_max=64)).minimum == 48


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("E srv load_model: failed to create MTP context", "no MTP layers"),
        ("error: invalid argument: --draft-max", r"does not know an option we used \(--draft-max\)"),
        ("key not found in model: llama.context_length", r"damaged.*llama.context_length"),
        ("common.cpp: failed to remove sequence 0 with p0=41, p1=-1", "cannot be rolled back"),
        ("EAGLE3: target layer id 10 exceeds target n_layer 8", "more layers"),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "not enough memory"),
    ],
)
def test_diagnosis(line: str, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        raise failure("it could not start", 1, ["noise", line])


def test_harmless_lines_are_not_shown() -> None:
    log = ["failed to initialize the context: eagle3 requires ctx_other to be set", "the last line"]
    assert "the last line" in failure("x", 1, log).message
    assert "ctx_other" not in failure("x", 1, log).message
    assert diagnose(["all is well"]) is None


def test_terminal_escapes_in_logs_are_removed() -> None:
    assert "\x1b" not in failure("x", 1, ["error: \x1b[31mred\x1b[0m"]).message


def test_exit_statuses() -> None:
    assert "illegal instruction" in (exit_reason(-4) or "")
    assert "illegal instruction" in (exit_reason(132) or "")
    assert "memory" in (exit_reason(137) or "")
    assert "access violation" in (exit_reason(0xC0000005) or "")
    assert exit_reason(1) is None


def test_completion_fields() -> None:
    with pytest.raises(EngineError, match="without timings"):
        parse_completion({"content": "x"})
    got = parse_completion({"content": "x", "timings": {"predicted_n": 1, "predicted_ms": 0.1}})
    assert got.tokens_per_second is None
    assert got.drafted is None


def test_addresses() -> None:
    assert Client("localhost:8080").url == "http://localhost:8080"
    assert Client("https://example.org/x/").url == "https://example.org/x"
    for wrong in ("ftp://a", "http://"):
        with pytest.raises(InputError, match="not an address"):
            Client(wrong)
    with pytest.raises(ConnectionError):
        Client("http://127.0.0.1:9").json("GET", "/props", timeout=1)
    assert Client("http://127.0.0.1:9").health() == "refused"
