"""Finding a llama.cpp that can be run here, and what that build can do.

The build number cannot be trusted (shallow clones say 1, tarballs 0), so abilities are read from ``--help``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from advisor.base import Frozen
from advisor.errors import EngineError
from advisor.speculation.prediction import Method
from advisor.text import clean

EngineKind = Literal["llama-server", "llama-serve", "embedded", "url", "lmstudio"]
Family = Literal["spec", "draft", "none"]
"""Spelling of the draft options: ``--spec-draft-n-max`` (since April 2026), ``--draft-max`` before, or neither."""

_OLD_TYPES: dict[str, tuple[str, ...]] = {
    # Names the same methods had before May 2026, still found in older builds.
    "draft-simple": ("draft-simple", "draft"),
    "draft-eagle3": ("draft-eagle3", "eagle3"),
    "draft-mtp": ("draft-mtp", "mtp"),
}


class Capabilities(Frozen):
    """What a build offers, as its own help text says."""

    flags: frozenset[str]
    """Option names that are accepted; removed ones are not among them."""
    spec_types: tuple[str, ...] = ()
    """Values of ``--spec-type``; empty = the option does not exist."""
    family: Family = "none"

    @property
    def synth(self) -> bool:
        """Whether acceptance can be forced (``--spec-synth-rates``)."""
        return "--spec-synth-rates" in self.flags

    def spec_type(self, method: Method) -> str | None:
        """This build's name of a method; None = it does not have it (or needs no name, see ``supports``)."""
        return next((t for t in _OLD_TYPES.get(method, (method,)) if t in self.spec_types), None)

    def supports(self, method: Method) -> bool:
        """Whether the build knows the method. Before ``--spec-type``, ``-md`` alone meant a draft model."""
        if method == "none" or self.spec_type(method) is not None:
            return True
        return method == "draft-simple" and self.family == "draft"


class EngineDevice(Frozen):
    """One device as the engine itself lists it; memory in bytes, None = not said."""

    name: str
    description: str
    memory: int | None = None
    free: int | None = None


class Engine(Frozen):
    """A llama.cpp that can be started: the user's own server, or the embedded one."""

    kind: EngineKind
    command: tuple[str, ...]
    """Start of the command line; empty for the embedded engine."""
    version: str
    """As the build tells it."""
    build: str
    """``b11434``, or ``unknown`` where the number is no evidence."""
    capabilities: Capabilities
    origin: str = ""
    """Where it was found: PATH, Homebrew, the xllamacpp package…"""

    @property
    def label(self) -> str:
        """Short name for screens and records."""
        return f"{self.kind} {self.version}"


_ENTRY = re.compile(r"^-{1,2}[A-Za-z]")
_NAME = re.compile(r"(?<![\w-])-{1,2}[A-Za-z][\w-]*")
_VERSION = re.compile(
    r"version:\s*(?P<version>\S+)\s*(?:\(build\s+(?P<build>\d+),\s*commit\s+(?P<commit>\w+)\)|\((?P<old>\w+)\))?"
)
_HELP_COLUMN = 40
_SMALLEST_REAL_BUILD = 100
"""Build numbers below this come from shallow clones (1) or tarballs (0)."""


def parse_help(text: str) -> Capabilities:
    """Abilities from the output of ``llama-server --help``.

    Entries begin in column 0 with all spellings of an option; the description starts in column 40 or on the next
    line. Removed options are still listed, with "the argument has been removed" as their description.
    """
    flags: set[str] = set()
    spec_types: tuple[str, ...] = ()
    entry: list[str] = []

    def close() -> None:
        nonlocal spec_types
        if not entry:
            return
        first = entry[0]
        split = len(first) > _HELP_COLUMN and first[_HELP_COLUMN - 1] == " "
        names = first[:_HELP_COLUMN] if split else first
        description = " ".join([first[_HELP_COLUMN:] if split else "", *entry[1:]])
        if "has been removed" in " ".join(description.split()):
            return
        found = _NAME.findall(names)
        flags.update(found)
        if "--spec-type" in found:
            values = names.split("--spec-type", 1)[1]
            spec_types = tuple(t for t in re.split(r"[\s,|\[\]{}]+", values) if t)

    for line in text.splitlines():
        if _ENTRY.match(line):
            close()
            entry = [line]
        elif entry and (line.startswith(" ") or not line.strip()):
            entry.append(line.strip())
        else:
            close()
            entry = []
    close()
    family: Family = (
        "spec" if "--spec-draft-n-max" in flags else "draft" if flags & {"--draft-max", "--draft"} else "none"
    )
    return Capabilities(flags=frozenset(flags), spec_types=spec_types, family=family)


def parse_version(text: str) -> tuple[str, str]:
    """Version and build from ``--version``: both known forms, ``unknown`` where the number means nothing."""
    match = _VERSION.search(text)
    if not match:
        return "unknown", "unknown"
    number = match["build"] or (match["version"] if match["version"].isdigit() else None)
    build = f"b{number}" if number and int(number) >= _SMALLEST_REAL_BUILD else "unknown"
    return clean(match["version"]), build


def find_engine(engine: str = "auto") -> Engine:
    """The llama.cpp to use.

    Args:
        engine: ``auto`` (a working llama-server of the user, else the embedded one), ``embedded``, or a path or
            command name of a llama-server (or ``llama``).

    Raises:
        EngineError: nothing can be run, and what to install.
    """
    if engine == "embedded":
        return _embedded()
    if engine != "auto":
        path = shutil.which(os.path.expanduser(engine))
        if path is None:
            raise EngineError(
                f"{clean(engine)} is not a program that can be run.",
                "Give the path of llama-server, or --engine embedded.",
            )
        return inspect_binary(path, "given")
    troubles = []
    for path, origin in candidates():
        try:
            return inspect_binary(path, origin)
        except EngineError as error:
            troubles.append(error.message)
    try:
        return _embedded()
    except EngineError as error:
        found = f" Found, but not usable: {' '.join(troubles)}" if troubles else ""
        raise EngineError(
            f"No llama.cpp can be run here.{found}",
            "Install llama.cpp (brew or winget install llama.cpp), or pip install 'draft-advisor[embedded]'.",
        ) from error


def candidates() -> Iterator[tuple[str, str]]:
    """Paths that may be a llama-server, with where they come from, best first, each once."""
    seen: set[str] = set()
    for path, origin in _places():
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            yield path, origin


def _places() -> Iterator[tuple[str, str]]:
    chosen = os.environ.get("ADVISOR_ENGINE")
    if chosen and (path := shutil.which(os.path.expanduser(chosen))):
        yield path, "ADVISOR_ENGINE"
    for name in ("llama-server", "llama"):
        if path := shutil.which(name):
            yield path, "PATH"
    home = Path.home()
    folders: list[tuple[str | Path, str]] = [
        ("/opt/homebrew/bin", "Homebrew"),
        ("/usr/local/bin", "Homebrew"),
        ("/home/linuxbrew/.linuxbrew/bin", "Homebrew"),
        (home / ".linuxbrew/bin", "Homebrew"),
        (home / ".local/bin", "user folder"),
        (home / "llama.cpp/build/bin", "own build"),
        ("/usr/lib/ollama", "Ollama"),
        ("/usr/local/lib/ollama", "Ollama"),
        ("/Applications/Ollama.app/Contents/Resources", "Ollama"),
        ("/snap/bin", "snap"),
    ]
    local = os.environ.get("LOCALAPPDATA")
    if local:
        folders += [
            (Path(local) / "Microsoft/WinGet/Links", "winget"),
            (Path(local) / "Programs/Ollama/lib/ollama", "Ollama"),
        ]
    suffix = ".exe" if sys.platform == "win32" else ""
    for folder, origin in folders:
        for name in ("llama-server", "llama"):
            program = Path(folder) / f"{name}{suffix}"
            if program.is_file() and os.access(program, os.X_OK):
                yield str(program), origin
    # LM Studio keeps one folder per runtime; only those with a real server program are of use.
    for root in (home / ".lmstudio/extensions/backends", home / ".cache/lm-studio/extensions/backends"):
        if root.is_dir():
            for program in sorted(root.glob(f"*/llama-server{suffix}"), reverse=True):
                yield str(program), "LM Studio"


def inspect_binary(path: str, origin: str = "given") -> Engine:
    """Ask a program for its help and version.

    Raises:
        EngineError: it cannot be run, or is no llama-server.
    """
    name = Path(path).stem.lower()
    serve = name == "llama"
    command = (path, "serve") if serve else (path,)
    status, out, err = _ask([*command, "--help"])
    text = out if "--model" in out else f"{out}\n{err}"
    if status != 0 or "--ctx-size" not in text:
        raise EngineError(
            f"{clean(path)} is not a usable llama-server: {_why(status, out, err)}",
            "Give another with --engine, or use --engine embedded.",
        )
    _, version_out, version_err = _ask([*command, "--version"])
    version, build = parse_version(f"{version_err}\n{version_out}")
    return Engine(
        kind="llama-serve" if serve else "llama-server",
        command=command,
        version=version,
        build=build,
        capabilities=parse_help(text),
        origin=origin,
    )


def _why(status: int | None, out: str, err: str) -> str:
    from advisor.llamacpp.failures import exit_reason

    if status is None:
        return "it did not answer --help within 30 s."
    reason = exit_reason(status)
    last = next((line for line in reversed(f"{out}\n{err}".splitlines()) if line.strip()), "")
    if reason:
        return f"{reason}."
    return f"--help ended with status {status}{': ' + clean(last) if last else ''}."


def _ask(command: list[str], timeout: float = 30.0) -> tuple[int | None, str, str]:
    """Exit status (None = took too long), stdout, stderr of a short question to a program."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=isolated_environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, "", ""
    except OSError as error:
        return 126, "", str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def isolated_environment() -> dict[str, str]:
    """Our environment without anything that would configure llama.cpp behind our back.

    llama.cpp reads ``LLAMA_ARG_*`` and ``config.ini`` below XDG_CONFIG_HOME (APPDATA on Windows) before its command
    line. The folder named here cannot exist, because its parent is a file or a device.
    """
    environment = {k: v for k, v in os.environ.items() if not k.upper().startswith(("LLAMA_ARG_", "LLAMA_API_KEY"))}
    nowhere = os.path.join(os.path.abspath(__file__), "none")
    environment["XDG_CONFIG_HOME"] = nowhere
    # An abort would start a debugger and drown its own reason in a backtrace.
    environment["GGML_NO_BACKTRACE"] = "1"
    if sys.platform == "win32":
        environment["APPDATA"] = nowhere
    return environment


def system_config() -> Path | None:
    """The machine-wide llama.cpp configuration that no option can switch off, if there is one with content."""
    if sys.platform == "win32":
        path = Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / "llama.cpp/config.ini"
    else:
        path = Path("/etc/llama.cpp/config.ini")
    try:
        return path if path.is_file() and path.stat().st_size > 0 else None
    except OSError:
        return None


_DEVICE = re.compile(
    r"^\s+(?P<name>[A-Za-z]\w*): (?P<text>.*?)(?:\s*\((?P<total>\d+) MiB, (?P<free>\d+) MiB free\))?\s*$"
)


def parse_devices(text: str) -> tuple[EngineDevice, ...]:
    """Devices from ``--list-devices``."""
    found = []
    for line in text.partition("Available devices:")[2].splitlines():
        if match := _DEVICE.match(line):
            found.append(
                EngineDevice(
                    name=clean(match["name"]),
                    description=clean(match["text"]),
                    memory=int(match["total"]) << 20 if match["total"] else None,
                    free=int(match["free"]) << 20 if match["free"] else None,
                )
            )
    return tuple(found)


def list_devices(engine: Engine) -> tuple[EngineDevice, ...]:
    """The accelerators this engine would use; empty = it computes on the CPU."""
    if engine.kind == "embedded":
        from advisor.llamacpp.embedded import embedded_devices

        return embedded_devices()
    if not engine.command or "--list-devices" not in engine.capabilities.flags:
        return ()
    status, out, err = _ask([*engine.command, "--list-devices"])
    return parse_devices(f"{out}\n{err}") if status == 0 else ()


def _embedded() -> Engine:
    from advisor.llamacpp.embedded import embedded_engine

    return embedded_engine()
