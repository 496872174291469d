"""Combinations that llama.cpp accepts and then aborts on or answers wrongly, recognised from the headers alone.

Sources: llama.cpp b11434 ``common/common.cpp`` (sequence removal), ``common/speculative.cpp`` (EAGLE-3, DFlash, type
inference), ``src/models/*.cpp`` (which graphs expose ``t_layer_inp``); every abort was also seen when run.
"""

from __future__ import annotations

from pathlib import Path

from advisor.errors import AdvisorError
from advisor.hardware.machine import Setup
from advisor.llamacpp.find import Engine
from advisor.models.description import ModelDescription
from advisor.speculation.prediction import Method

LAYER_INPUT_ARCHITECTURES = frozenset(
    {
        "bailingmoe3", "deepseek4", "gemma4", "hunyuan-vl", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2",
        "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "gpt-oss", "qwen3",
        "qwen35", "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp",
    }
)  # fmt: skip
"""Graphs that hand their layer inputs to EAGLE-3 and DFlash drafters (b11434); the others abort when asked."""
_DRAFTERS: dict[str, tuple[str, ...]] = {
    "draft-eagle3": ("draft-eagle3",),
    "draft-dflash": ("draft-dflash", "draft-dspark"),
    "draft-dspark": ("draft-dspark", "draft-dflash"),
}


def preflight(target: Path | str, draft: Path | str | None, method: Method, engine: Engine | None = None) -> list[str]:
    """Reasons not to start this combination, each one sentence; empty = nothing known against it.

    Args:
        target: GGUF file.
        draft: GGUF file of the draft or drafter, if any.
        method: llama.cpp's method name.
        engine: the build that would run it, to check what it knows.

    Raises:
        ModelFileError: a file that cannot be read.
    """
    from advisor.models.reference import describe

    return check(describe(str(target)), describe(str(draft)) if draft is not None else None, method, engine)


def check(
    target: ModelDescription, draft: ModelDescription | None, method: Method, engine: Engine | None = None
) -> list[str]:
    """The same for descriptions."""
    reasons = []
    if target.kind != "model":
        reasons.append(f"{target.name} is a {target.kind} file, not a model that writes text.")
        return reasons
    if engine is not None and not engine.capabilities.supports(method):
        has = ", ".join(t for t in engine.capabilities.spec_types if t != "none") or "no speculation"
        reasons.append(f"{engine.label} does not know {method} (it has: {has}).")
    if method in ("draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark") and draft is None:
        reasons.append(f"{method} needs a draft file; without one llama.cpp runs without drafting and says nothing.")
    if method == "draft-mtp" and draft is None and not target.mtp_layers:
        reasons.append(f"{target.name} holds no MTP layers, so draft-mtp cannot start.")
    if draft is not None:
        reasons += _pair(target, draft, method)
    return reasons


def refusal(
    target: ModelDescription, draft: ModelDescription | None, method: Method, setup: Setup | None = None
) -> str | None:
    """The first reason of :func:`check` in one sentence, None if nothing is known against the combination.

    ``setup`` is accepted for callers that have one; no known abort depends on the machine.
    """
    return next(iter(check(target, draft, method)), None)


def _pair(target: ModelDescription, draft: ModelDescription, method: Method) -> list[str]:
    reasons = []
    if method.startswith("ngram") or method == "none":
        return [f"{method} uses no draft model; leave {draft.name} out."]
    if method == "draft-simple":
        if draft.kind != "model":
            return [f"{draft.name} is a {draft.kind} file and cannot draft by itself."]
        if draft.is_recurrent and not target.is_recurrent:
            reasons.append(
                f"{draft.name} is recurrent or hybrid and {target.name} is not: "
                "llama.cpp aborts at the first rejected token."
            )
        reasons += _vocabularies(target, draft)
    elif method in _DRAFTERS:
        if draft.drafter is None or draft.drafter.method not in _DRAFTERS[method]:
            return [f"{draft.name} is not a drafter for {method}."]
        if target.architecture not in LAYER_INPUT_ARCHITECTURES:
            reasons.append(
                f"llama.cpp's {target.architecture} graph does not hand out its layer inputs: "
                f"with {method} it aborts at the first request."
            )
        reasons += _head(target, draft)
    elif method == "draft-mtp":
        if draft.drafter is None and draft.mtp_layers == 0:
            return [f"{draft.name} holds no MTP layers, so it cannot be used with draft-mtp."]
        if draft.drafter is None and draft.embedding_length != target.embedding_length:
            return [
                f"{draft.name} is a full model with MTP layers of width {draft.embedding_length}, not a sidecar of "
                f"{target.name} (width {target.embedding_length}); use draft-simple to draft with the model itself."
            ]
        reasons += _head(target, draft)
    return reasons


def _head(target: ModelDescription, draft: ModelDescription) -> list[str]:
    head = draft.drafter
    if head is None:
        return []
    reasons = []
    if head.target_width and target.embedding_length and head.target_width != target.embedding_length:
        reasons.append(
            f"{draft.name} was made for a target {head.target_width} wide; {target.name} is "
            f"{target.embedding_length} wide."
        )
    deepest = max(head.target_layers, default=0)
    if target.layers and deepest > len(target.layers):
        reasons.append(f"{draft.name} reads layer {deepest} of its target, but {target.name} has {len(target.layers)}.")
    return reasons


def _vocabularies(target: ModelDescription, draft: ModelDescription) -> list[str]:
    try:
        from advisor.models.tokenizer import compare

        verdict = compare(target, draft)
    except (ImportError, AdvisorError):
        return []
    return [verdict.reason] if verdict.compatible is False else []
