"""Runs one command and ends it when whoever started us ends, however that happens.

Started as ``python -I -S guard.py [--remove FOLDER] [-- COMMAND...]`` with a pipe as standard input. The pipe closes
when the parent exits, crashes or is killed, on every system, and then the command is ended and FOLDER deleted. Standard
library only, and no import of this package: it must start in milliseconds and survive anything.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading

PID = "advisor-guard: pid "
EXIT = "advisor-guard: exit "
_PATIENCE = 5.0
"""How long the command may take to end by itself before it is killed [s]."""


def _die_with_parent() -> None:
    """Linux only: should this guard itself be killed, the kernel ends the command."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _wait_for_parent() -> None:
    # Not sys.stdin: a thread inside its buffer would make the interpreter complain at its end.
    while os.read(0, 4096):
        pass


def _say(line: str) -> None:
    # One write with its own line breaks: the command writes to the same pipe, in pieces of lines.
    with contextlib.suppress(OSError):
        os.write(1, f"\n{line}\n".encode())


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def main(arguments: "list[str]") -> int:
    """Run, watch, clean up; returns the exit status of this guard."""
    folders = []
    while arguments[:1] == ["--remove"]:
        folders.append(arguments[1])
        arguments = arguments[2:]
    command = arguments[1:] if arguments[:1] == ["--"] else []
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        # The parent decides when to stop: a Ctrl-C reaches it, and then us through the pipe.
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    status = 0
    try:
        if command:
            status = _watch(command)
        else:
            _wait_for_parent()
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
    return status


def _restore_signals() -> None:
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    if sys.platform == "linux":
        _die_with_parent()


def _watch(command: "list[str]") -> int:
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, preexec_fn=_restore_signals if os.name == "posix" else None
        )
    except OSError as error:
        _say(f"{EXIT}cannot start: {error}")
        return 1
    _say(f"{PID}{child.pid}")

    def end_with_parent() -> None:
        _wait_for_parent()
        _end(child)

    threading.Thread(target=end_with_parent, daemon=True).start()
    status = child.wait()
    _say(f"{EXIT}{status}")
    return 0 if status == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
