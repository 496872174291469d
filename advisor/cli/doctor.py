"""`advisor doctor`: what works on this machine, and what to do about the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from advisor.base import Frozen
from advisor.cli import options
from advisor.text import clean

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer()

Status = Literal["works", "limited", "missing"]
MARKS: dict[Status, tuple[str, str]] = {
    "works": ("ok", "green"),
    "limited": ("note", "yellow"),
    "missing": ("NO", "bold red"),
}
HUB_SECONDS = 5.0
"""Longest wait for the Hub [s]."""
OLD_DAYS = 90
"""Age from which a calibration should be repeated [days]: drivers and llama.cpp change faster than that."""
ROOM = 20e9
"""Free space below which a model download is likely to fail [bytes]."""


class Check(Frozen):
    """One thing that was looked at; ``cure`` says what to do where something is missing."""

    name: str
    status: Status
    found: str
    cure: str | None = None


class Diagnosis(Frozen):
    """Everything ``advisor doctor`` looked at."""

    schema_version: int = 1
    version: str
    checks: tuple[Check, ...]

    @property
    def limits(self) -> int:
        """How many things are not as they could be."""
        return sum(c.status != "works" for c in self.checks)


@app.command()
def doctor(
    offline: Annotated[bool, typer.Option("--offline", help="Do not try to reach the Hub.")] = False,
    json: options.Json = False,
) -> None:
    """Look at engine, devices, model folders, calibration, Hub access, disk space and extras: what works, what to do.

    \b
    Examples:
      advisor doctor
      advisor doctor --json
    """
    diagnosis = diagnose(offline=offline)
    if json:
        typer.echo(diagnosis.model_dump_json(indent=2))
        return
    from advisor.report.console import console

    show(diagnosis, console())


def diagnose(offline: bool = False) -> Diagnosis:
    """Run all checks; each of them answers, whatever it meets."""
    from advisor import __version__

    looks: list[tuple[str, Callable[[], list[Check]]]] = [
        ("package", _package),
        ("engine", _engine),
        ("devices", _devices),
        ("calibration", _calibration),
        ("models on this disk", _models),
        ("disk space", _disk),
        *([] if offline else [("Hugging Face Hub", _hub)]),
        ("extras", _extras),
    ]
    checks: list[Check] = []
    for name, look in looks:
        try:
            checks += look()
        except Exception as error:  # a doctor must not fall ill himself: whatever goes wrong is a finding
            text = clean(f"{type(error).__name__}: {error}", 300)
            checks.append(Check(name=name, status="missing", found=text, cure="Please report this."))
    return Diagnosis(version=__version__, checks=tuple(checks))


def _package() -> list[Check]:
    import platform

    from advisor import __version__

    found = f"draft-advisor {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    return [Check(name="package", status="works", found=found)]


def _engine() -> list[Check]:
    from advisor.errors import AdvisorError
    from advisor.llamacpp.find import find_engine

    try:
        engine = find_engine()
    except AdvisorError as error:
        return [Check(name="engine", status="missing", found=clean(error.message, 400), cure=error.hint)]
    found = f"{clean(engine.label)}, build {clean(engine.build)}, {clean(engine.origin)}"
    checks = [Check(name="engine", status="works", found=found)]
    abilities = engine.capabilities
    if not abilities.spec_types and abilities.family == "none":
        cure = "Install a llama.cpp from April 2026 or later."
        checks.append(Check(name="speculation", status="missing", found="this build cannot draft", cure=cure))
    else:
        known = ", ".join(clean(t) for t in abilities.spec_types) or "draft models only"
        checks.append(Check(name="speculation", status="works", found=known))
    return checks


def _devices() -> list[Check]:
    from advisor.errors import AdvisorError
    from advisor.hardware.resolve import resolve

    try:
        setup = resolve("auto")
    except AdvisorError as error:
        return [Check(name="devices", status="missing", found=clean(error.message), cure=error.hint)]
    checks = []
    for device in setup.hardware.devices:
        parts = [clean(device.name)]
        if device.memory:
            parts.append(f"{device.memory.value:.4g} {device.memory.unit}")
        if device.bandwidth:
            parts.append(f"{device.bandwidth.value:.4g} {device.bandwidth.unit} ({device.bandwidth.kind})")
        checks.append(Check(name="device", status="works", found=", ".join(parts)))
        if device.bandwidth is None or device.bandwidth.kind == "assumed":
            cure = "Run `advisor calibrate`, or give --bandwidth and --memory."
            checks.append(Check(name="bandwidth", status="limited", found="memory bandwidth is not known", cure=cure))
    if setup.hardware.host is not None:
        checks.append(Check(name="host", status="works", found=clean(setup.hardware.host.name)))
    checks.append(Check(name="backend", status="works", found=setup.backend))
    return checks


def _calibration() -> list[Check]:
    from datetime import datetime, timezone

    from advisor.errors import AdvisorError
    from advisor.hardware.resolve import resolve
    from advisor.performance.measured import applicable, load_calibrations

    stored = load_calibrations()
    if not stored:
        cure = "Optional: `advisor calibrate` measures this machine once; predictions for it become much narrower."
        return [Check(name="calibration", status="limited", found="none yet: fitted constants are used", cure=cure)]
    try:
        used = applicable(resolve("auto"))
    except AdvisorError:
        used = None
    newest = used or stored[0]
    made = datetime.fromisoformat(newest.created.replace("Z", "+00:00"))
    if made.tzinfo is None:
        made = made.replace(tzinfo=timezone.utc)
    days = (datetime.now(timezone.utc) - made).days
    many = f", mean of {newest.averaged}" if newest.averaged > 1 else ""
    found = f"{days} days old{many}, {clean(newest.engine, 60)}, {newest.backend}"
    if used is None:
        cure = "Run `advisor calibrate` again."
        return [Check(name="calibration", status="limited", found=f"{found}: of another machine or backend", cure=cure)]
    if days > OLD_DAYS:
        cure = "Run `advisor calibrate` again: drivers and llama.cpp change."
        return [Check(name="calibration", status="limited", found=found, cure=cure)]
    return [Check(name="calibration", status="works", found=found)]


def _models() -> list[Check]:
    from collections import Counter

    from advisor.models import places

    name = "models on this disk"
    folders = {
        "LM Studio": places.lmstudio_folders(),
        "llama.cpp": places.llamacpp_folders(),
        "Hugging Face cache": places.huggingface_folders(),
        "Ollama": places.ollama_folders(),
    }
    there = {program: next((f for f in found if f.is_dir()), None) for program, found in folders.items()}
    found: Counter[str] = Counter(model.origin for model in places.model_files())
    checks = [
        Check(name=name, status="works", found=f"{found.get(program, 0)} GGUF, {shown_path(folder)} ({program})")
        for program, folder in there.items()
        if folder is not None
    ]
    if not sum(found.values()):
        cure = "Not needed for predictions. Others lie elsewhere? `advisor scan FOLDER` looks there."
        checks.append(Check(name=name, status="limited", found="none in the usual places", cure=cure))
    return checks


def _disk() -> list[Check]:
    import os
    import shutil

    from advisor.llamacpp.results import data_dir
    from advisor.models import cache, places

    checks = []
    for what, folder, room in (
        ("own data", data_dir(), 1e6),
        ("own cache", cache.folder(), 1e7),
        ("downloads", places.huggingface_folders()[0], ROOM),
    ):
        base = next((p for p in (folder, *folder.parents) if p.is_dir()), None)
        name = f"disk: {what}"
        if base is None or not os.access(base, os.W_OK):
            cure = "Make the folder writable, or name another: ADVISOR_DATA_DIR, ADVISOR_CACHE, HF_HOME."
            checks.append(Check(name=name, status="limited", found=f"{shown_path(folder)} is read-only", cure=cure))
            continue
        free = shutil.disk_usage(base).free
        found = f"{shown_path(folder)}, {free / 1e9:.0f} GB free"
        low = free < room
        advice = "Free some space, or move the folder with HF_HOME." if low else None
        checks.append(Check(name=name, status="limited" if low else "works", found=found, cure=advice))
    return checks


def _hub() -> list[Check]:
    import os

    import httpx

    name = "Hugging Face Hub"
    address = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    shown = clean(address, 80)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        cure = "Unset HF_HUB_OFFLINE to read headers of models you have not downloaded."
        return [Check(name=name, status="limited", found="switched off by HF_HUB_OFFLINE", cure=cure)]
    started = time.monotonic()
    try:
        answer = httpx.get(f"{address}/api/models?limit=1", timeout=HUB_SECONDS, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        found = f"{shown} cannot be reached ({type(error).__name__})"
        cure = "Files, the catalogue and all predictions work without it; else check network, proxy or HF_ENDPOINT."
        return [Check(name=name, status="limited", found=found, cure=cure)]
    if answer.status_code != 200:
        cure = "Try again later; files and the catalogue work without it."
        return [Check(name=name, status="limited", found=f"{shown} answers {answer.status_code}", cure=cure)]
    from huggingface_hub import get_token

    token = "a token is set" if get_token() else "no token: gated models stay closed"
    found = f"{shown} answers in {time.monotonic() - started:.1f} s; {token}"
    return [Check(name=name, status="works", found=found)]


def _extras() -> list[Check]:
    from importlib.util import find_spec

    checks = []
    for extra, modules, what in (
        ("embedded", ("xllamacpp",), "llama.cpp's server inside Python"),
        ("report", ("vl_convert",), "charts in reports"),
        ("lmstudio", ("lmstudio",), "a running LM Studio, measured with a draft length per request"),
    ):
        if all(find_spec(module) for module in modules):
            checks.append(Check(name=f"extra {extra}", status="works", found=what))
        else:
            cure = f'pip install "draft-advisor[{extra}]"'
            checks.append(Check(name=f"extra {extra}", status="limited", found=f"not installed: {what}", cure=cure))
    return checks


def show(diagnosis: Diagnosis, out: Console) -> None:
    """One line per check, cures below."""
    from rich.table import Table
    from rich.text import Text

    from advisor.report.console import printable

    ascii_only = not out.encoding.lower().startswith("utf")
    table = Table.grid(padding=(0, 1))
    table.add_column(width=4, no_wrap=True)
    table.add_column(width=19)
    table.add_column()
    for check in diagnosis.checks:
        mark, style = MARKS[check.status]
        table.add_row(Text(mark, style=style), check.name, printable(check.found, ascii_only))
        if check.cure:
            table.add_row("", "", Text(printable(check.cure, ascii_only), style="dim"))
    out.print(table)
    limits = diagnosis.limits
    out.print()
    out.print("Everything works." if not limits else f"{limits} of {len(diagnosis.checks)} could be better; see above.")


def shown_path(path: Path) -> str:
    """A folder for the screen, with the home directory as ``~``."""
    try:
        return clean(f"~/{path.relative_to(Path.home()).as_posix()}")
    except ValueError:
        return clean(str(path))
