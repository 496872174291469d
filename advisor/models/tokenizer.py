"""Whether a draft speaks the target's language, by llama.cpp's own rules, and the true reason if it does not.

Rules: ``common_speculative_are_compatible`` in ``common/speculative.cpp`` and the defaults in
``src/llama-vocab.cpp`` of llama.cpp b11434. Only ``draft-simple`` applies them; MTP, EAGLE-3 and DFlash compare
no vocabularies.
"""

from __future__ import annotations

from typing import Literal

from advisor.models.description import Tokenizer
from advisor.models.gguf import Header

VocabularyType = Literal["SPM", "BPE", "WPM", "UGM", "RWKV", "PLaMo2", "none", "unknown"]
_TYPES: dict[str, VocabularyType] = {
    "llama": "SPM", "gpt2": "BPE", "hybriddna": "BPE", "whitespace": "BPE", "gemma4": "BPE", "bert": "WPM",
    "t5": "UGM", "rwkv": "RWKV", "plamo2": "PLaMo2", "none": "none", "no_vocab": "none",
}  # fmt: skip
_ADD_BOS_PRE = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
     "tekken", "chameleon", "gemma4"}
)  # fmt: skip
"""Pre-tokenizers for which llama.cpp adds a BOS although the file does not ask for it."""
_NO_BOS_PRE = frozenset({"chatglm-bpe", "glm4", "glm5"})


def identity(header: Header, prefix: str) -> Tokenizer | None:
    """The vocabulary as llama.cpp would load it from this header; None if the file has none.

    ``prefix`` is the architecture's key prefix (for ``vocab_size`` of files without a vocabulary).
    """
    model = header.text("tokenizer.ggml.model")
    tokens = header.tokens
    if model is None and tokens is None:
        return None
    kind: VocabularyType = _TYPES.get(model or "", "unknown")
    if kind == "none":
        size = header.integer(f"{prefix}.vocab_size") or 0
        return Tokenizer(type="none", model=model, size=size, add_bos=False, add_eos=False)
    size = tokens.length if tokens else 0
    pre = "gemma4" if model == "gemma4" else header.text("tokenizer.ggml.pre")
    add_bos = kind in ("SPM", "WPM") or (kind == "BPE" and pre in _ADD_BOS_PRE)
    add_eos = kind == "UGM"
    stated = header.flag("tokenizer.ggml.add_bos_token")
    if stated is not None and not (pre == "gemma4" and kind == "BPE"):
        add_bos = stated
    stated = header.flag("tokenizer.ggml.add_eos_token")
    if stated is not None:
        add_eos = stated
    bos: int | None = {"SPM": 1, "BPE": 11, "WPM": 101}.get(kind)
    eos: int | None = {"SPM": 2, "BPE": 11, "UGM": 1}.get(kind)
    if model == "gemma4":
        bos = eos = None
    if pre in _NO_BOS_PRE and kind == "BPE":
        bos = None
    return Tokenizer(
        type=kind,
        model=model,
        pre=pre,
        size=size,
        digest=header.token_digest,
        add_bos=add_bos,
        add_eos=add_eos,
        bos_id=_special(header, "tokenizer.ggml.bos_token_id", bos, size),
        eos_id=_special(header, "tokenizer.ggml.eos_token_id", eos, size),
    )


def _special(header: Header, key: str, default: int | None, size: int) -> int | None:
    """A special token's id: an id outside the vocabulary is ignored by llama.cpp."""
    if default is not None and default >= size:
        default = None
    stated = header.integer(key)
    return stated if stated is not None and 0 <= stated < size else default
