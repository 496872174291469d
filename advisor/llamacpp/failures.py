"""What a dead or silent llama.cpp means, in one sentence, with a cure."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from advisor.errors import EngineError
from advisor.text import clean

_SIGNALS = {
    4: "it was stopped by an illegal instruction (this build was made for a newer processor)",
    6: "it aborted (an internal check of llama.cpp failed)",
    7: "it was stopped by a bus error",
    9: "it was killed from outside, most likely for lack of memory",
    11: "it crashed (segmentation fault)",
    15: "it was asked to stop from outside",
}
_WINDOWS = {
    0xC0000005: "it crashed (access violation)",
    0xC000001D: _SIGNALS[4],
    0xC0000135: "a DLL it needs is missing",
    0xC0000017: "it ran out of memory",
    0xC0000409: _SIGNALS[6],
}


def exit_reason(status: int) -> str | None:
    """Why a process ended with this status; None for an ordinary exit code.

    Negative numbers are signals (POSIX), 128 + n the same as reported by a shell.
    """
    if sys.platform == "win32" or status > 255:
        return _WINDOWS.get(status & 0xFFFFFFFF)
    signal = -status if status < 0 else status - 128 if status > 128 else 0
    if signal:
        return _SIGNALS.get(signal, f"it was ended by signal {signal}")
    return "a program or library it needs is missing" if status == 127 else None


_CURES: tuple[tuple[str, str, str | None], ...] = (
    # pattern in the log, what it means, what to do
    (
        r"the argument has been removed|invalid argument: (?P<flag>\S+)|error: unknown argument:? ?(?P<flag2>\S*)",
        "this build does not know an option we used",
        "Update llama.cpp, or use --engine embedded.",
    ),
    (
        r"error while loading shared libraries|cannot open shared object|Library not loaded|\.dll was not found",
        "a library it needs is missing",
        "Reinstall llama.cpp, or use --engine embedded.",
    ),
    (
        r"couldn't bind|bind\(\) failed|address already in use|failed to bind",
        "another program took the port in the meantime",
        "Try again.",
    ),
    (
        r"failed to allocate|out of memory|cudaMalloc failed|ErrorOutOfDeviceMemory|unable to allocate|std::bad_alloc"
        r"|alloc_tensor_range: failed",
        "there is not enough memory for this model and context",
        "Use a smaller quant, a shorter --context, or close other programs.",
    ),
    (
        r"unknown model architecture: '?(?P<arch>[\w.-]+)",
        "this build is too old for the model's architecture",
        "Update llama.cpp.",
    ),
    (
        r"context type MTP requested but model doesn't contain MTP layers|failed to create MTP context",
        "the model file holds no MTP layers that this build can run",
        "Use a file converted with MTP layers, or another method.",
    ),
    (
        r"layer input tensor is null",
        "the target's architecture does not hand its layer inputs to an EAGLE-3 or DFlash drafter in this build",
        "Use a separate draft model or an n-gram method.",
    ),
    (
        r"target layer id \d+ exceeds target",
        "the drafter was made for a target with more layers",
        "Use the drafter that belongs to this target.",
    ),
    (
        r"failed to remove sequence \d+ with p0",
        "a recurrent or hybrid draft cannot be rolled back under this target",
        "Use a draft model with plain attention.",
    ),
    (
        r"the target and draft vocabs are not compatible|draft model vocab type must match",
        "llama.cpp dropped the draft because its vocabulary differs from the target's",
        "Use a draft with the same tokenizer.",
    ),
    (
        r"failed to load draft model|failed to open draft|draft model .* not found",
        "the draft could not be loaded",
        "Check the draft file with `advisor inspect`.",
    ),
    (
        r"key not found in model: (?P<key>[\w.-]+)|tensor '(?P<tensor>[^']+)' not found|wrong number of tensors"
        r"|has wrong shape|failed to read magic|invalid magic|gguf_init_from_file|tensor .* data is not within",
        "the model file is damaged or not made for this build",
        "Check it with `advisor inspect`, or download it again.",
    ),
    (
        r"failed to load model|error loading model|unable to load model",
        "the model was refused",
        "Check it with `advisor inspect`.",
    ),
    (r"unknown speculative type", "this build does not know the method", "Update llama.cpp."),
    (
        r"GGML_ASSERT\((?P<what>.*)\)",
        "an internal check of llama.cpp failed",
        "Update llama.cpp, or use another method.",
    ),
)


def telling_lines(log: Sequence[str], limit: int = 3) -> list[str]:
    """The last lines of a log that say something about a failure, cleaned for a screen."""
    harmless = (
        "requires ctx_other to be set",
        "failed to measure the memory of the extra model",
        "security: no API key",
    )
    candidates = [line for line in log if line.strip() and not any(h in line for h in harmless)]
    loud = [
        line
        for line in candidates
        if re.search(
            r"(?i)\berror\b|\bfail|abort|assert|invalid|unknown|exceed|missing|cannot|couldn't|unable|^\S+ E ", line
        )
    ]
    return [clean(line.strip(), 240) for line in (loud or candidates)[-limit:]]


def diagnose(log: Sequence[str]) -> tuple[str, str | None] | None:
    """What the log says went wrong and what to do; None if nothing is recognised."""
    text = "\n".join(log)
    for pattern, meaning, cure in _CURES:
        if match := re.search(pattern, text):
            details = [v for v in match.groupdict().values() if v]
            return (f"{meaning} ({clean(details[0], 80)})" if details else meaning), cure
    return None


def failure(what: str, status: int | None, log: Sequence[str]) -> EngineError:
    """The error to raise when an engine died or never became ready.

    Args:
        what: e.g. ``llama-server could not load model.gguf``.
        status: its exit status; None = still alive or unknown.
        log: its last lines.
    """
    found = diagnose(log)
    reason = exit_reason(status) if status is not None else None
    parts = [p for p in (found[0] if found else None, reason) if p]
    if not parts:
        parts = [f"it ended with status {status}" if status is not None else "it gave no reason"]
    lines = telling_lines(log)
    tail = f" Its last words: {' | '.join(lines)}" if lines else ""
    cure = found[1] if found else None
    if cure is None and status is not None and reason:
        signal = -status if status < 0 else status - 128
        cure = {
            4: "Use a build for this processor, or --engine embedded.",
            9: "Use a smaller quant or a shorter --context.",
        }.get(signal)
    return EngineError(f"{what}: {'; '.join(parts)}.{tail}", cure)
