"""Starting the recommended command, exactly as printed, and ending it surely."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from advisor.advice.recommendation import Recommendation
from advisor.errors import CancelledError, EngineError, InputError
from advisor.llamacpp import guard
from advisor.llamacpp.client import Client
from advisor.llamacpp.failures import failure
from advisor.llamacpp.find import Engine
from advisor.text import clean

_LOG_LINES = 80
_POLL = 0.1
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8080


def check_port(host: str, port: int) -> None:
    """Refuse an address on which somebody already listens: that server would answer instead of ours.

    Raises:
        InputError: the port is taken or cannot be used.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
            if os.name == "posix":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (OSError, OverflowError) as error:
        raise InputError(
            f"Port {port} on {clean(host)} cannot be used: {getattr(error, 'strerror', None) or error}.",
            "Choose another with --port.",
        ) from error


class Launched:
    """A server started from an argument list. A guard process ends it with us on every path; use as a context manager.

    Args:
        argv: program and arguments.
        url: where it will answer.
        progress: told what is happening.
        cancelled: asked while the model loads.

    Raises:
        EngineError: it could not be started, or ended while loading; the message quotes its last lines.
        CancelledError: ``cancelled()`` said so.
    """

    def __init__(
        self,
        argv: Sequence[str],
        url: str,
        *,
        progress: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        self.argv, self.url = tuple(argv), url
        self._log: deque[str] = deque(maxlen=_LOG_LINES)
        self._status: int | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(guard.__file__)), "--", *argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Ctrl-C in the terminal must reach us alone; we end the rest in order.
            start_new_session=os.name == "posix",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._reader = threading.Thread(target=self._read, name="server log", daemon=True)
        self._reader.start()
        try:
            self._wait(progress, cancelled)
        except BaseException:
            self.stop()
            raise

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            if line.startswith(guard.EXIT):
                text = line[len(guard.EXIT) :]
                if text.lstrip("-").isdigit():
                    self._status = int(text)
                else:
                    self._log.append(text)
            elif not line.startswith(guard.PID):
                self._log.append(line)
        self._process.stdout.close()

    def _wait(self, progress: Callable[[str], None] | None, cancelled: Callable[[], bool] | None) -> None:
        """Until it is healthy. There is no time limit: loading a large model from a slow disk takes what it takes."""
        client = Client(self.url)
        if progress is not None:
            progress("loading the model")
        try:
            while client.health() != "ok":
                if cancelled is not None and cancelled():
                    raise CancelledError("Stopped while the model was loading.")
                if not self.alive():
                    raise self.explain()
                time.sleep(_POLL)
        finally:
            client.close()

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def explain(self) -> EngineError:
        """Why it ended, with its last lines."""
        self._reader.join(2)
        return failure(f"{clean(Path(self.argv[0]).name)} ended", self._status, list(self._log))

    def stop(self) -> None:
        """End it; may be called any number of times."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()  # the guard takes this as the end
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)

    def __enter__(self) -> Launched:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(
    answer: Recommendation,
    engine: Engine,
    port: int = DEFAULT_PORT,
    *,
    host: str = DEFAULT_HOST,
    progress: Callable[[str], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> Launched | Embedded:
    """Start what was recommended, with the user's llama-server or, without one, the embedded engine.

    Args:
        answer: the recommendation; its models must be files on this disk.
        engine: the llama.cpp to run.
        port: where it shall listen (the embedded engine chooses its own).
        host: address it shall listen on.
        progress: told what is happening.
        cancelled: asked while the model loads.

    Raises:
        InputError: a model that is not on this disk, or a port that is taken.
        EngineError: it could not be started.
        CancelledError: ``cancelled()`` said so.
    """
    if answer.command is None or not answer.command.ready:
        what = (
            answer.command.notes[0] if answer.command is not None and answer.command.notes else "It cannot be started."
        )
        raise InputError("The recommended run cannot be started yet.", what)
    if not engine.command:
        return Embedded(answer, engine, progress=progress, cancelled=cancelled)
    check_port(host, port)
    argv = [*answer.command.argv, "--host", host, "--port", str(port)]
    return Launched(
        argv, f"http://{f'[{host}]' if ':' in host else host}:{port}", progress=progress, cancelled=cancelled
    )


class Embedded:
    """The same with the embedded engine, which takes the settings instead of a command line."""

    def __init__(
        self,
        answer: Recommendation,
        engine: Engine,
        *,
        progress: Callable[[str], None] | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> None:
        from advisor.llamacpp.server import Server, ServerOptions

        argv = answer.command.argv if answer.command is not None else ()
        model = _after(argv, "-m")
        if model is None:
            raise EngineError(
                "The embedded engine downloads nothing.", "Get the model file first, or install llama-server."
            )
        best = answer.best
        if len(best.methods) > 1:
            raise EngineError(
                "The embedded engine runs one method at a time.",
                "Install llama-server to combine n-grams with a draft.",
            )
        place = best.placement
        self._server = Server(
            engine,
            ServerOptions(
                model=model,
                draft=_after(argv, "-md"),
                method=best.methods[0] if best.methods else "none",
                draft_max=best.draft_max if best.methods and not best.spec_default else None,
                p_min=best.p_min if best.methods and best.p_min else None,
                context=answer.context,
                gpu_layers=place.gpu_layers,
            ),
            progress=progress,
            cancel=cancelled,
        )
        self.url = self._server.client.url

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._server.alive()

    def stop(self) -> None:
        """End it; may be called any number of times."""
        self._server.stop()

    def __enter__(self) -> Embedded:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _after(argv: Sequence[str], flag: str) -> str | None:
    return argv[argv.index(flag) + 1] if flag in argv else None
