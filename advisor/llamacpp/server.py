"""Starting a llama.cpp server that is surely ours, waiting for it, and surely ending it.

Both engines end up as one child process that serves HTTP on a port of this machine: the user's llama-server, or the
embedded one (``embedded.py``). A guard process stands between (``guard.py``), so the child ends with us on every path:
return, exception, Ctrl-C, crash or kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from advisor.base import Frozen
from advisor.errors import CancelledError, EngineError, InputError, NotDraftedError
from advisor.llamacpp.client import Client
from advisor.llamacpp.failures import failure
from advisor.llamacpp.find import Engine, isolated_environment
from advisor.llamacpp.guard import EXIT, PID
from advisor.speculation.prediction import Method
from advisor.text import clean

Cancel = Callable[[], bool]
"""Asked now and then by long work: True = stop."""

_GUARD = Path(__file__).with_name("guard.py")
_LOG_LINES = 80
_STALL = 120.0
"""A server that neither logs, nor computes, nor reads for this long will not become ready any more [s]."""
_POLL = 0.05


class NgramShape(Frozen):
    """Sizes of the n-gram methods; None = the engine's default (12/48, ngram-mod 24/48/64)."""

    match: int | None = None
    """Tokens that must match (``size-n``, ``n-match``)."""
    minimum: int | None = None
    """Shortest draft of ngram-mod."""


class ServerOptions(Frozen):
    """One server as we want it. Everything that could differ between builds is said explicitly."""

    model: str
    draft: str | None = None
    method: Method = "none"
    draft_max: int | None = None
    """Longest draft; None = the engine's default."""
    draft_min: int | None = None
    p_min: float | None = None
    synth_rates: tuple[float, ...] = ()
    """Forced acceptance: chance that the first i+1 drafts are all accepted, one per position, not increasing."""
    ngram: NgramShape = NgramShape()
    context: int = 2048
    threads: int | None = None
    batch: int | None = None
    ubatch: int | None = None
    gpu_layers: int | None = None
    draft_gpu_layers: int | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    warmup: bool = True
    context_checkpoints: int | None = None
    """Copies of recurrent or windowed state kept while a prompt is read; 0 keeps them out of timings."""
    extra: tuple[str, ...] = ()
    """Further llama-server arguments; not understood by the embedded engine."""


def server_arguments(engine: Engine, options: ServerOptions, port: int, alias: str) -> list[str]:
    """Command line of a llama-server, in the spelling of this build.

    Raises:
        EngineError: the build has no such method, or cannot force acceptance.
    """
    flags = engine.capabilities.flags

    def first(*names: str) -> str | None:
        return next((n for n in names if n in flags), None)

    arguments = [*engine.command, "--host", "127.0.0.1", "--port", str(port), "--alias", alias]
    arguments += ["--model", options.model, "--ctx-size", str(options.context), "--parallel", "1"]
    for name, value in (
        ("--slots", None), ("--metrics", None), ("--offline", None), ("--no-webui", None), ("--cache-ram", "0"),
        ("--log-verbosity", "3"), ("--log-colors", "off"), ("--no-warmup", None) if not options.warmup else ("", None),
    ):  # fmt: skip
        if name in flags:
            arguments += [name] if value is None else [name, value]
    settings: tuple[tuple[int | str | None, str], ...] = (
        (options.threads, "--threads"),
        (options.batch, "--batch-size"),
        (options.ubatch, "--ubatch-size"),
        (options.gpu_layers, "--n-gpu-layers"),
        (options.context_checkpoints if "--ctx-checkpoints" in flags else None, "--ctx-checkpoints"),
        (options.cache_type_k, "--cache-type-k"),
        (options.cache_type_v, "--cache-type-v"),
    )
    for setting, option in settings:
        if setting is not None:
            arguments += [option, str(setting)]
    if options.method == "none":
        if "none" in engine.capabilities.spec_types:
            arguments += ["--spec-type", "none"]
        return [*arguments, *options.extra]

    if not engine.capabilities.supports(options.method):
        has = ", ".join(t for t in engine.capabilities.spec_types if t != "none") or "no speculation at all"
        raise EngineError(
            f"{engine.label} does not know {options.method} (it has: {clean(has)}).",
            "Update llama.cpp or use --engine embedded.",
        )
    spec_type = engine.capabilities.spec_type(options.method)
    if spec_type:
        arguments += ["--spec-type", spec_type]
    if options.draft:
        arguments += ["-md", options.draft]
        if options.draft_gpu_layers is not None:
            arguments += ["-ngld", str(options.draft_gpu_layers)]
    arguments += _draft_length(engine, options, first)
    if options.p_min is not None:
        arguments += [first("--spec-draft-p-min", "--draft-p-min") or "--draft-p-min", str(options.p_min)]
    if options.synth_rates:
        if not engine.capabilities.synth:
            raise EngineError(
                f"{engine.label} cannot force the acceptance (no --spec-synth-rates).",
                "Update llama.cpp, use --engine embedded, or measure without --acceptance.",
            )
        arguments += ["--spec-synth-rates", ",".join(f"{r:.6g}" for r in options.synth_rates)]
    return [*arguments, *options.extra]


def _draft_length(engine: Engine, options: ServerOptions, first: Callable[..., str | None]) -> list[str]:
    """Arguments for the longest draft, which every method family calls differently."""
    k, method = options.draft_max, options.method
    shape = effective_ngram(options)
    pairs: list[tuple[int | None, str | None]] = []
    if method == "ngram-mod":
        pairs = [
            (k, first("--spec-ngram-mod-n-max")),
            (shape.minimum, first("--spec-ngram-mod-n-min")),
            (shape.match, first("--spec-ngram-mod-n-match", "--spec-ngram-size-n")),
        ]
    elif method in ("ngram-simple", "ngram-map-k", "ngram-map-k4v"):
        pairs = [
            (k, first(f"--spec-{method}-size-m", "--spec-ngram-size-m")),
            (shape.match, first(f"--spec-{method}-size-n", "--spec-ngram-size-n")),
        ]
    elif method != "ngram-cache":  # its length is fixed at 8 in llama.cpp
        pairs = [
            (k, first("--spec-draft-n-max", "--draft-max", "--draft")),
            (options.draft_min, first("--spec-draft-n-min", "--draft-min")),
        ]
    arguments = []
    for value, name in pairs:
        if value is not None:
            if name is None:
                raise EngineError(
                    f"{engine.label} has no option for the draft length of {method}.", "Update llama.cpp."
                )
            arguments += [name, str(value)]
    return arguments


_NGRAM_MATCH = {"ngram-simple": 12, "ngram-map-k": 12, "ngram-map-k4v": 12, "ngram-mod": 24}


def effective_ngram(options: ServerOptions) -> NgramShape:
    """The n-gram sizes to ask for.

    ngram-simple drafts nothing if ``size-m`` < ``size-n`` and ngram-mod drops drafts under ``n-min``, so a short draft
    length pulls both down.
    """
    k, method = options.draft_max, options.method
    match, minimum = options.ngram.match, options.ngram.minimum
    if k is not None and method in _NGRAM_MATCH:
        if match is None and method != "ngram-mod":
            match = min(k, _NGRAM_MATCH[method])
        if minimum is None and method == "ngram-mod":
            minimum = min(k, 48)
    return NgramShape(match=match, minimum=minimum)


class Server:
    """A running server of ours. Use as a context manager; ``stop`` may be called any number of times."""

    def __init__(
        self,
        engine: Engine,
        options: ServerOptions,
        *,
        progress: Callable[[str], None] | None = None,
        cancel: Cancel | None = None,
        stall: float = _STALL,
    ) -> None:
        self.engine = engine
        self.options = options
        self.command: tuple[str, ...] = ()
        """What was really started, for reports."""
        self.load_seconds = 0.0
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._status: int | None = None
        self._address: str | None = None
        self._client: Client | None = None
        self._reader: threading.Thread | None = None
        self._lines = 0
        self._peak = 0
        try:
            self._start(progress, cancel, stall)
        except BaseException:
            self.stop()
            raise

    # ---- life

    def _start(self, progress: Callable[[str], None] | None, cancel: Cancel | None, stall: float) -> None:
        began = time.monotonic()
        for path in (self.options.model, self.options.draft):
            if path is not None and not Path(path).is_file():
                raise InputError(f"{clean(path)} does not exist.")
        alias = f"advisor-{secrets.token_hex(8)}"
        environment = isolated_environment()
        if self.engine.kind == "embedded":
            from advisor.llamacpp.embedded import worker_command

            self.command = tuple(worker_command(self.options, alias))
            environment["PYTHONUNBUFFERED"] = "1"
        elif self.engine.command:
            port = _free_port()
            self.command = tuple(server_arguments(self.engine, self.options, port, alias))
            self._address = f"http://127.0.0.1:{port}"
        else:
            raise EngineError(f"{self.engine.label} cannot be started from here.")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), "--", *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            # Ctrl-C in the terminal must reach us alone; we end the rest in order.
            start_new_session=os.name == "posix",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._reader = threading.Thread(target=self._read, name="engine log", daemon=True)
        self._reader.start()
        self._wait(alias, progress, cancel, stall)
        self.load_seconds = time.monotonic() - began

    def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            if line.startswith(PID):
                self._pid = int(line[len(PID) :])
            elif line.startswith(EXIT):
                text = line[len(EXIT) :]
                try:
                    self._status = int(text)
                except ValueError:
                    self._status = 126
                    self._log.append(text)
            elif line.startswith("advisor-embedded: "):
                self._address = str(json.loads(line.partition(" ")[2])["address"])
            elif line:
                self._log.append(line)
            self._lines += 1
        process.stdout.close()

    def _wait(self, alias: str, progress: Callable[[str], None] | None, cancel: Cancel | None, stall: float) -> None:
        """Until the server is healthy and proven ours; no fixed time limit, only a limit of standing still."""
        what = f"{self.engine.label} could not start with {clean(Path(self.options.model).name)}"
        seen: tuple[Any, ...] = ()
        moved = time.monotonic()
        said = ""
        while True:
            if cancel is not None and cancel():
                raise CancelledError("Stopped while the model was loading.")
            if not self.alive():
                raise failure(what, self._exit_status(), self.log())
            health = "refused"
            if self._address is not None:
                if self._client is None:
                    self._client = Client(self._address)
                health = self._client.health()
            if health == "ok":
                self._prove(alias)
                return
            state = (self._lines, *self._activity())
            now = time.monotonic()
            if state != seen:
                seen, moved = state, now
            elif now - moved > stall:
                raise failure(f"{what}: it stood still for {stall:.0f} s", None, self.log())
            if progress is not None and (text := "loading the model" if self._address else "starting") != said:
                said = text
                progress(text)
            time.sleep(_POLL)

    def _prove(self, alias: str) -> None:
        """The answering process must be the one we started, not somebody else's on the same port."""
        client = self.client
        if self.engine.kind == "embedded":
            return  # its address came through our own pipe
        answer = client.json("GET", "/v1/models", timeout=10)
        names = json.dumps(answer)
        if alias not in names:
            raise EngineError(
                f"Another server answers on {client.url}, not the one just started.", "Stop it, or try again."
            )
        if not self.alive():
            raise failure(f"{self.engine.label} ended right after its start", self._exit_status(), self.log())

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process is not None and self._process.poll() is None

    def _exit_status(self) -> int | None:
        if self._reader is not None:
            self._reader.join(2)
        return self._status

    def _activity(self) -> tuple[int, int]:
        """Memory and processor time of the child: proof of progress while a big model loads silently."""
        import psutil

        if self._pid is None:
            return (0, 0)
        try:
            process = psutil.Process(self._pid)
            times = process.cpu_times()
            return (process.memory_info().rss >> 20, round((times.user + times.system) * 10))
        except psutil.Error:
            return (0, 0)

    def stop(self) -> None:
        """End the server and wait until it is gone."""
        if self._client is not None:
            self._client.close()
        process = self._process
        if process is None:
            return
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join(5)

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---- use

    @property
    def client(self) -> Client:
        """The connection to it."""
        if self._client is None:
            raise EngineError("The engine is not running.")
        return self._client

    def log(self) -> list[str]:
        """The last lines it wrote."""
        return list(self._log)

    def memory(self) -> int:
        """Peak resident memory seen so far [bytes]; 0 = cannot be read."""
        import psutil

        if self._pid is not None:
            try:
                info = psutil.Process(self._pid).memory_info()
                self._peak = max(self._peak, int(getattr(info, "peak_wset", info.rss)))
            except psutil.Error:
                pass
        return self._peak

    def processor_seconds(self) -> float | None:
        """Processor time used so far [s]; None = cannot be read."""
        import psutil

        if self._pid is None:
            return None
        try:
            times = psutil.Process(self._pid).cpu_times()
        except psutil.Error:
            return None
        return float(times.user + times.system)

    def explain(self, error: Exception) -> EngineError:
        """The same trouble with the reason behind it: died engines say why in their log."""
        if isinstance(error, ConnectionError) and self._process is not None:
            # The connection breaks before the process is gone; an abort still writes its reason.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
        if not self.alive():
            return failure(f"{self.engine.label} died while generating", self._exit_status(), self.log())
        return error if isinstance(error, EngineError) else EngineError(str(error))

    def prove_speculation(self) -> None:
        """Refuse a server that was asked to speculate and silently does not.

        Raises:
            NotDraftedError: the engine dropped the draft.
        """
        if self.options.method == "none" or self.client.speculative() is not False:
            return
        raise not_drafted(self.options, self.log())


def not_drafted(options: ServerOptions, log: list[str]) -> NotDraftedError:
    """Why nothing was drafted, as far as the log and the two files tell."""
    why = None
    if options.draft and options.method == "draft-simple":
        try:
            from advisor.models.reference import describe
            from advisor.models.tokenizer import compare

            verdict = compare(describe(options.model), describe(options.draft))
            if verdict.compatible is False:
                why = verdict.reason
        except (ImportError, EngineError, InputError):
            why = None
    if why is None:
        from advisor.llamacpp.failures import diagnose

        found = diagnose(log)
        why = f"{found[0]}." if found else None
    hint = None
    if why is None and options.method.startswith("ngram"):
        why = "The text never repeated itself, so the n-gram tables had nothing to offer."
        hint = "Use prompts that ask for repetition (--task code-edit), or longer answers."
    return NotDraftedError(
        f"llama.cpp drafted nothing with {options.method}"
        + (f" from {clean(Path(options.draft).name)}" if options.draft else "")
        + f". {why or 'It gave no reason.'}",
        hint,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
