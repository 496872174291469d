"""The doctor answers whatever he meets, quickly, and always says what to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from advisor.cli import doctor
from advisor.cli.main import app
from advisor.errors import EngineError, InputError
from advisor.performance.measured import Calibration, Curve, Machine, MatrixCost


@pytest.fixture(autouse=True)
def strange_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's own caches, tokens or settings take part."""
    for name in (
        "HF_HUB_OFFLINE",
        "HF_TOKEN",
        "HF_ENDPOINT",
        "HF_HOME",
        "HF_HUB_CACHE",
        "LLAMA_CACHE",
        "OLLAMA_MODELS",
    ):
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CACHE_HOME", "ADVISOR_CACHE", "ADVISOR_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    return tmp_path


@contextmanager
def hub(status: int = 200, silent: bool = False) -> Iterator[str]:
    """A server that answers with ``status``, or accepts and never says a word."""
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if silent:
                released.wait(30)
                return
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def only(checks: list[doctor.Check], name: str) -> doctor.Check:
    found = [c for c in checks if c.name == name]
    assert len(found) == 1, [c.name for c in checks]
    return found[0]


def test_everything_is_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    app(["doctor", "--json", "--offline"], prog_name="advisor", standalone_mode=False)
    answer = json.loads(capsys.readouterr().out)
    diagnosis = doctor.Diagnosis.model_validate(answer)
    names = " ".join(c.name for c in diagnosis.checks)
    for part in ("package", "engine", "device", "calibration", "models", "disk", "extra embedded", "extra report"):
        assert part in names
    assert "Hub" not in names
    for check in diagnosis.checks:
        assert check.found
        assert check.status == "works" or check.cure, f"{check.name} does not say what to do"


def test_screen_shows_each_check_and_its_cure_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    diagnosis = doctor.diagnose(offline=True)
    doctor.show(diagnosis, Console(width=80))
    text = capsys.readouterr().out
    assert all(len(line) <= 80 for line in text.splitlines())
    flat = " ".join(text.split())
    for check in diagnosis.checks:
        assert check.name in flat
    assert ("Everything works." in flat) == (diagnosis.limits == 0)


def test_no_engine_is_a_finding_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(engine: str = "auto") -> None:
        raise EngineError("No llama.cpp can be run here.", "Install it.")

    monkeypatch.setattr("advisor.llamacpp.find.find_engine", nothing)
    check = only(doctor._engine(), "engine")
    assert (check.status, check.cure) == ("missing", "Install it.")


def test_unknown_devices_are_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise InputError("No device.", "Give --bandwidth.")

    monkeypatch.setattr("advisor.hardware.resolve.resolve", nothing)
    assert only(doctor._devices(), "devices").cure == "Give --bandwidth."


def test_a_check_that_breaks_does_not_break_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[doctor.Check]:
        raise RuntimeError("\x1b[31mboom")

    monkeypatch.setattr(doctor, "_extras", broken)
    found = only(list(doctor.diagnose(offline=True).checks), "extras")
    assert found.status == "missing"
    assert "RuntimeError" in found.found
    assert "\x1b" not in found.found


@pytest.mark.parametrize(("status", "expected"), [(200, "works"), (503, "limited"), (401, "limited")])
def test_hub_answers(status: int, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with hub(status) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        check = only(doctor._hub(), "Hugging Face Hub")
    assert check.status == expected
    assert "hf_secret" not in check.model_dump_json()
    if expected == "works":
        assert "a token is set" in check.found
    else:
        assert str(status) in check.found


def test_silent_hub_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "HUB_SECONDS", 0.2)
    with hub(silent=True) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        check = only(doctor._hub(), "Hugging Face Hub")
    assert check.status == "limited"
    assert "Timeout" in check.found


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "not an address", "http://"])
def test_no_hub_is_no_disaster(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    check = only(doctor._hub(), "Hugging Face Hub")
    assert check.status == "limited"
    assert "work without it" in (check.cure or "")


def test_switched_off_hub_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "HF_HUB_OFFLINE" in only(doctor._hub(), "Hugging Face Hub").found


def test_models_are_counted_by_program(strange_home: Path) -> None:
    assert doctor._models()[-1].status == "limited"
    folder = strange_home / ".lmstudio" / "models" / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "x.gguf").write_bytes(b"GGUF")
    found = next(c.found for c in doctor._models() if "LM Studio" in c.found)
    assert found.startswith("1 GGUF, ~/.lmstudio/models")


def test_low_disk_space_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 3e9})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    checks = doctor._disk()
    assert only(checks, "disk: downloads").status == "limited"
    assert "3 GB free" in only(checks, "disk: downloads").found
    assert only(checks, "disk: own data").status == "works"


def test_missing_extras_tell_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert only(doctor._extras(), "extra report").cure == 'pip install "draft-advisor[report]"'


def calibration(created: str) -> Calibration:
    curve = Curve(columns=(1,), values=(1e-11,))
    return Calibration(
        created=created, machine=Machine(processor="x", threads=2, memory=16), backend="cpu", engine="embedded 1",
        build="b11434", seconds=60, matrices=(MatrixCost(quant="Q8_0", seconds_per_byte=curve),),
        layers={"dense": curve}, step=1e-4, cache=curve,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("days", "applies", "status", "word"),
    [(3, True, "works", "3 days old"), (200, True, "limited", "200 days"), (3, False, "limited", "another machine")],
)
def test_calibration_is_judged_by_age_and_machine(
    days: int, applies: bool, status: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = calibration((datetime.now(timezone.utc) - timedelta(days=days, hours=1)).isoformat())
    monkeypatch.setattr("advisor.performance.measured.load_calibrations", lambda: (stored,))
    monkeypatch.setattr("advisor.performance.measured.applicable", lambda _: stored if applies else None)
    check = only(doctor._calibration(), "calibration")
    assert check.status == status
    assert word in check.found
    assert check.cure is None or "advisor calibrate" in check.cure


def test_no_calibration_is_no_fault() -> None:
    check = only(doctor._calibration(), "calibration")
    assert check.status == "limited"
    assert "Optional" in (check.cure or "")
