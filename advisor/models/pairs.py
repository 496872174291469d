"""Whether llama.cpp will run a target with a draft, why not, and in which builds the answer is another one.

The vocabulary is compared for ``draft-simple`` only; drafter heads must fit their target's width and layers.
Source: ``common/speculative.cpp`` and ``src/models/eagle3.cpp``, ``dflash.cpp``, ``gemma4-assistant.cpp`` of b11434.
"""

from __future__ import annotations

from typing import Literal

from advisor.base import Frozen
from advisor.errors import InputError
from advisor.models import architectures
from advisor.models.description import ModelDescription
from advisor.models.tokenizer import (
    BOS_RULE_FIRST_NEW,
    BOS_RULE_LAST_OLD,
    OLD_SIZE_LIMIT,
    SIZE_LIMIT,
    SIZE_LIMIT_SINCE,
    Comparison,
    TokenDifference,
    examine,
    judge,
)
from advisor.text import clean

PAIR_SCHEMA_VERSION = 1
PairMethod = Literal["draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"]
Rule = Literal[
    "none", "type", "bos", "eos", "size", "token", "unknown", "width", "layers", "architecture", "state", "mtp"
]  # fmt: skip
_SINCE_HYBRID = 8861
"""PR #19493 let hybrid and recurrent targets speculate; it lies between b8808 and this build."""


class PairReport(Frozen):
    """The answer of ``advisor check``. ``compatible`` None = cannot be known from what was read.

    ``rule`` is what decided. ``differences`` counts token ids whose text differs, ``size_difference`` entries that
    one list has beyond the other. ``changes`` says in which builds the answer is different.
    """

    schema_version: int = PAIR_SCHEMA_VERSION
    target: str
    draft: str
    method: PairMethod
    compatible: bool | None
    rule: Rule
    reason: str
    build: int | None = None
    engine: str | None = None
    size_limit: int | None = None
    target_tokens: int | None = None
    draft_tokens: int | None = None
    size_difference: int | None = None
    padding_only: bool = False
    first_difference: TokenDifference | None = None
    differences: int = 0
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    hint: str | None = None


def method_of(draft: ModelDescription) -> PairMethod:
    """How llama.cpp would draft with this model."""
    return draft.drafter.method if draft.drafter else "draft-simple"


def require_target(model: ModelDescription) -> None:
    """Refuse what cannot be a target.

    Raises:
        InputError: a drafter, projector, adapter or other file that produces no text by itself.
    """
    if model.kind != "model":
        raise InputError(*refusal(model))


def require_draft(model: ModelDescription) -> None:
    """Refuse what can neither be a draft model nor a drafter.

    Raises:
        InputError: the file is something else.
    """
    if model.kind not in ("model", "drafter"):
        raise InputError(*refusal(model))


def refusal(model: ModelDescription) -> tuple[str, str]:
    """What a file is instead of a model, and what to do: message and hint."""
    name = clean(model.name)
    if model.kind == "drafter":
        return f"{name} is a drafter head ({model.architecture}) and cannot answer by itself.", "Give it as the draft."
    if model.kind == "mmproj":
        return f"{name} is a vision projector (mmproj), not a language model.", "Give the model file it lies beside."
    if model.kind == "lora":
        return f"{name} is a LoRA adapter, not a model.", "Give its base model; llama.cpp takes the adapter by --lora."
    if model.kind == "imatrix":
        return f"{name} is an importance matrix used for quantising, not a model.", "Give the model file itself."
    if model.kind == "vocabulary":
        return f"{name} holds a vocabulary but no weights.", "Give the whole model file."
    if model.architecture in architectures.DIFFUSION:
        return f"{name} is a text diffusion model ({model.architecture}).", "It does not generate token by token."
    if model.architecture in architectures.NOT_GENERATIVE:
        return (
            f"{name} is an encoder or decoder part ({model.architecture}) that generates no text.",
            "Give a text model.",
        )
    return f"{name} ({model.architecture}) is not a language model llama.cpp can run.", "Give a text model in GGUF."


def check_pair(
    target: ModelDescription, draft: ModelDescription, *, build: int | None = None, engine: str | None = None
) -> PairReport:
    """The verdict llama.cpp would give on a pair, and the true reason.

    Args:
        target: the model whose output is wanted.
        draft: a smaller model, or a drafter head.
        build: llama.cpp build number; None = a current one.
        engine: how to call the engine the build number is of.

    Raises:
        InputError: one of them is no model at all.
    """
    require_target(target)
    require_draft(draft)
    method = method_of(draft)
    report = PairReport(
        target=target.name, draft=draft.name, method=method, compatible=True, rule="none", reason="", build=build,
        engine=engine,
    )  # fmt: skip
    if method != "draft-simple":
        return _head(target, draft, report)
    return _simple(target, draft, report)


def _head(target: ModelDescription, draft: ModelDescription, report: PairReport) -> PairReport:
    """MTP, EAGLE-3, DFlash: shapes decide, vocabularies are not compared."""
    drafter = draft.drafter
    assert drafter is not None
    update: dict[str, object] = {}
    if draft.architecture == "gemma4-assistant" and target.architecture != "gemma4":
        update = _no(
            "architecture", f"The assistant reads a Gemma 4 target's cache; {target.name} is {target.architecture}."
        )
    elif drafter.target_width and target.embedding_length and drafter.target_width != target.embedding_length:
        update = _no(
            "width",
            f"The drafter fits targets {drafter.target_width} wide; {target.name} is {target.embedding_length}.",
        )
    elif target.layers and max(drafter.target_layers, default=0) > len(target.layers):
        update = _no(
            "layers",
            f"The drafter reads layer {max(drafter.target_layers)} of its target, but {target.name} has "
            f"{len(target.layers)}.",
        )
    elif report.method != "draft-mtp" and target.architecture not in architectures.LAYER_INPUTS:
        update = _no(
            "architecture",
            f"llama.cpp b11434 hands no layer inputs of {target.architecture} to a drafter and aborts at the first "
            "request.",
        )
    elif drafter.target_width is None or not target.embedding_length:
        update = {
            "compatible": None,
            "rule": "unknown",
            "reason": "Not known: the drafter does not name its target's width.",
        }
    else:
        update = {
            "reason": f"The widths agree ({target.embedding_length}); no vocabularies are compared for {report.method}."
        }
    notes = []
    if drafter.vocabulary and target.vocabulary_size and drafter.vocabulary < target.vocabulary_size:
        notes.append(f"trimmed vocabulary: {drafter.vocabulary:,} of {target.vocabulary_size:,} tokens can be drafted")
    notes.append("a fitting shape does not prove the drafter was trained for this very model")
    return report.model_copy(update={**update, "notes": tuple(notes)})


def _no(rule: Rule, reason: str) -> dict[str, object]:
    return {"compatible": False, "rule": rule, "reason": reason}


def _simple(target: ModelDescription, draft: ModelDescription, report: PairReport) -> PairReport:
    facts = examine(target, draft)
    if facts is None:
        return report.model_copy(
            update={"compatible": None, "rule": "unknown", "reason": "Not known: no vocabulary was read."}
        )
    build = report.build
    compatible, rule, reason = judge(facts, build)
    update: dict[str, object] = {
        "compatible": compatible, "rule": rule, "reason": reason, "target_tokens": facts.target_size,
        "size_limit": OLD_SIZE_LIMIT if build is not None and build < SIZE_LIMIT_SINCE else SIZE_LIMIT,
        "draft_tokens": facts.draft_size, "size_difference": facts.size_difference,
        "padding_only": facts.padding_only, "first_difference": facts.first_difference,
        "differences": facts.differences,
    }  # fmt: skip
    if compatible is not False and draft.is_recurrent and not target.is_recurrent:
        update |= _no(
            "state",
            f"The draft keeps a recurrent state ({draft.architecture}) and the target does not: llama.cpp aborts at "
            "the first partly accepted round.",
        )
    elif compatible is not False and target.is_recurrent and build is not None and build < 8808:
        update |= _no(
            "state", f"Build {build} cannot speculate with hybrid or recurrent targets such as {target.architecture}."
        )
    notes = []
    if draft.mtp_layers:
        notes.append(
            "the draft holds MTP layers: without --spec-type draft-simple llama.cpp would take it for draft-mtp"
        )
    if facts.padding_only:
        notes.append(f"the lists differ only in {facts.size_difference} padding entries, which are never generated")
    hint = None
    if update["compatible"] is False and rule in ("type", "size", "token"):
        hint = "llama.cpp has no token translation: choose a draft with the target's own vocabulary."
    changes = (*_changes(facts, build), *_state_changes(target, build))
    return report.model_copy(update={**update, "notes": tuple(notes), "changes": changes, "hint": hint})


def _changes(facts: Comparison, build: int | None) -> tuple[str, ...]:
    """In which builds the vocabulary verdict is another one."""
    now, _, _ = judge(facts, build)
    found: list[str] = []
    refused = False
    for other, words in (
        (BOS_RULE_FIRST_NEW, f"builds from b{BOS_RULE_FIRST_NEW} on"),
        (BOS_RULE_LAST_OLD, f"builds up to b{BOS_RULE_LAST_OLD}"),
        (SIZE_LIMIT_SINCE - 1, f"builds before about b{SIZE_LIMIT_SINCE}"),
    ):
        then, rule, _ = judge(facts, other)
        if then is None or now is None or then == now or (refused and not then):
            continue
        refused = not then
        why = f"their limit is {OLD_SIZE_LIMIT}" if rule == "size" else "they compare ids that are never added"
        found.append(f"{words} accept this pair" if then else f"{words} refuse this pair: {why}")
    return tuple(found)


def _state_changes(target: ModelDescription, build: int | None) -> tuple[str, ...]:
    if target.is_recurrent and (build is None or build >= 8808):
        return (f"builds before b8808-b{_SINCE_HYBRID} cannot speculate with hybrid targets at all",)
    return ()
