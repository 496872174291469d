"""The library as a launcher uses it: quiet, lazy, typed, one family of errors, safe in threads."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from advice_samples import model, setup
from scripts import load

import advisor
from advisor.errors import AdvisorError

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", [n for n in advisor.__all__ if n != "__version__"])
def test_every_public_name_exists(name: str) -> None:
    assert getattr(advisor, name) is not None
    assert name in dir(advisor)


def test_the_public_names_are_the_documented_ones() -> None:
    assert set(advisor.__all__) == {*advisor._EXPORTS, "__version__"}
    documented = (ROOT / "docs" / "library.md").read_text(encoding="utf-8")
    missing = [n for n in advisor.__all__ if n != "__version__" and f"`{n}" not in documented]
    assert not missing, f"docs/library.md does not mention {missing}"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'predcit'"):
        advisor.predcit  # noqa: B018 - reading it is the test


def test_importing_loads_nothing_and_touches_nothing() -> None:
    """No submodule, no heavy package, no output, no file written, no process, no socket."""
    probe = """
import sys, os
def refuse(event, arguments):
    if event in ("socket.connect", "subprocess.Popen", "os.system") or (
        event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")):
        raise RuntimeError(event)
sys.addaudithook(refuse)
import advisor
loaded = [m for m in sys.modules if m.startswith("advisor.") or m.split(".")[0] in
          ("pydantic", "numpy", "scipy", "httpx", "huggingface_hub", "rich", "typer", "gguf")]
print(loaded)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", probe], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_answers_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    target, draft = model("t", 27e9, layers=64, width=5120), model("d", 0.6e9, width=1024)
    advisor.predict(target, draft, setup=setup(), task="code")
    advisor.recommend(target, setup=setup(), drafts=[draft], local=False, catalogue=True)
    out = capfd.readouterr()
    assert out.out == ""
    assert out.err == ""


def test_errors_are_one_family_and_fit_for_a_dialog(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_text("<html>")
    machine = setup()
    calls = [
        lambda: advisor.describe(str(bad)),
        lambda: advisor.describe("no-such-model-at-all"),
        lambda: advisor.find_hardware("Commodore 64 GPU"),
        lambda: advisor.resolve("395", backend="abacus"),
        lambda: advisor.recommend(str(bad), setup=machine),
        lambda: advisor.predict(model(), None, setup=machine),
        lambda: advisor.predict(model(), model("d", 1e9, width=1024), setup=machine, acceptance=64.3),
        lambda: advisor.scan([tmp_path / "missing"], setup=machine),
        lambda: advisor.find_engine(str(tmp_path / "no-llama")),
    ]
    for call in calls:
        with pytest.raises(AdvisorError) as caught:
            call()
        text = str(caught.value)
        assert text
        assert "\n" not in text
        assert "Traceback" not in text
        assert caught.value.exit_code in (2, 3, 4)
    assert issubclass(advisor.HubError, advisor.AdvisorError)
    assert issubclass(advisor.CancelledError, advisor.AdvisorError)


def test_threads_get_the_same_answer() -> None:
    target = model("t", 27e9, layers=64, width=5120)
    drafts = [model(f"d{i}", 0.4e9 + 0.2e9 * i, width=1024, layers=24) for i in range(6)]
    machine = setup()
    tasks = ["code", "chat", "math", None] * 4

    def ask(task: Any) -> str:
        answer = advisor.recommend(target, setup=machine, drafts=drafts, local=False, catalogue=False, task=task)
        return answer.model_copy(update={"seconds": 0.0}).model_dump_json()

    alone = [ask(t) for t in tasks]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(ask, tasks)) == alone


def test_long_work_stops_from_another_thread() -> None:
    stop = threading.Event()

    def progress(what: str, done: int, total: int) -> None:
        if done >= 2:
            stop.set()

    drafts = [model(f"d{i}", 0.4e9 + 0.1e9 * i, width=1024, layers=24) for i in range(20)]
    with pytest.raises(advisor.CancelledError):
        advisor.recommend(
            model("t", 27e9, layers=64, width=5120), setup=setup(), drafts=drafts, local=False, catalogue=False,
            progress=progress, cancelled=stop.is_set,
        )  # fmt: skip


def test_answers_are_immutable() -> None:
    answer = advisor.recommend(model(), setup=setup(), local=False, catalogue=False)
    with pytest.raises(ValueError, match="frozen"):
        answer.speculate = True


# ------------------------------------------------------------------------------------------------- example


def test_the_launcher_example(smollm2: Path, gemma3: Path) -> None:
    launcher = load("examples/launcher.py")
    one = launcher.Advisor("395")
    plan = one.plan(str(gemma3), [str(smollm2)], task="code", context=4096)
    assert plan.arguments[0].endswith("llama-server")
    assert str(gemma3) in plan.arguments
    assert plan.speculates == ("--spec-type" in plan.arguments or "--spec-default" in plan.arguments)
    assert plan.expected.speed.median > 0
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(advisor.CancelledError):
        one.plan(str(gemma3), stop=stopped)


def test_the_launcher_example_as_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launcher = load("examples/launcher.py")
    assert launcher.main([]) == 2
    assert launcher.main([str(tmp_path / "missing.gguf")]) == 2
    assert "missing.gguf" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------- schemas


def test_published_schemas_are_current() -> None:
    schemas = load("docs/schemas.py")
    assert schemas.stale() == [], "run: python docs/schemas.py"


def test_schemas_describe_what_is_printed() -> None:
    """Every key of a real answer is in the published schema, required keys are there."""
    answer = json.loads(
        advisor.recommend(model(mtp=True), setup=setup(), local=False, catalogue=False, task="code").model_dump_json()
    )
    schema = json.loads((ROOT / "docs" / "schemas" / "recommendation.json").read_text(encoding="utf-8"))
    assert set(answer) == set(schema["properties"])
    option = schema["$defs"]["Option"]
    for one in answer["options"]:
        assert set(one) == set(option["properties"])
    assert set(answer["prediction"]) == set(schema["$defs"]["Prediction"]["properties"])
