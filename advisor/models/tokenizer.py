"""Whether a draft speaks the target's language, by llama.cpp's own rules, and the true reason if it does not.

Rules: ``common_speculative_are_compatible`` in ``common/speculative.cpp`` and the defaults in
``src/llama-vocab.cpp`` of llama.cpp b11434. Only ``draft-simple`` applies them; MTP, EAGLE-3 and DFlash compare
no vocabularies.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from advisor.base import Frozen
from advisor.models.description import ModelDescription, Tokenizer
from advisor.models.gguf import Header, read_header, read_strings
from advisor.text import clean

if TYPE_CHECKING:
    from advisor.speculation.prediction import TokenizerVerdict

SIZE_LIMIT = 128
OLD_SIZE_LIMIT = 100
SIZE_LIMIT_SINCE = 4170
"""First build whose server could speculate (November 2024), with the wider limit."""
BOS_RULE_LAST_OLD = 8895
BOS_RULE_FIRST_NEW = 8953
"""PR #22358 (25 April 2026) stopped comparing BOS/EOS ids that are never added; it lies between these builds."""
FIRST_COMPARED_ID = 5

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


class TokenDifference(Frozen):
    """The first token that differs: its id and both texts (cleaned for display)."""

    id: int
    target: str
    draft: str


class Comparison(Frozen):
    """Everything llama.cpp's rules look at, whatever the build. ``None`` = not known from what was read."""

    target_type: str
    draft_type: str
    target_size: int
    draft_size: int
    flags_known: bool
    add_bos: tuple[bool | None, bool | None] = (None, None)
    bos: tuple[int | None, int | None] = (None, None)
    add_eos: tuple[bool | None, bool | None] = (None, None)
    eos: tuple[int | None, int | None] = (None, None)
    texts_equal: bool | None = None
    identical: bool = False
    """The lists are the same byte for byte; ``texts_equal`` may hold without that (ids 0 to 4, zero bytes)."""
    first_difference: TokenDifference | None = None
    differences: int = 0
    """How many compared ids differ."""
    padding_only: bool = False
    """The lists agree as far as both go, and what one has beyond the other is padding."""
    families: tuple[str | None, str | None] = (None, None)

    @property
    def size_difference(self) -> int:
        """Entries one list has beyond the other."""
        return abs(self.target_size - self.draft_size)


_PADDING = re.compile(
    rb"\[PAD\d*\]|<unused\d+>|<pad\d*>|<\|?(?:reserved|dummy|extra|unused|placeholder)[^>]*>|\[UNUSED\d+\]", re.I
)


def token_texts(model: ModelDescription) -> list[bytes] | None:
    """The token list as llama.cpp holds it, or None if no file with it is at hand.

    Raises:
        ModelFileError: the file cannot be read any more.
    """
    if model.header_file is None or model.tokenizer is None or model.tokenizer.digest is None:
        return None
    path = Path(model.header_file)
    header = read_header(path, complete=False)
    if header.tokens is None:
        return None
    texts = read_strings(path, header.tokens, header.big_endian)
    return [text or b"[EMPTY_%d]" % i for i, text in enumerate(texts)]


class _Owner:
    """A model with a vocabulary; equal to another if both hold the same token bytes, so that comparisons are kept."""

    def __init__(self, model: ModelDescription) -> None:
        self.model = model
        self.digest = model.tokenizer.digest if model.tokenizer else None
        self.key = (self.digest, model.header_file is not None) if self.digest else (None, id(model))

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Owner) and other.key == self.key


@lru_cache(maxsize=256)
def _texts(target: _Owner, draft: _Owner) -> tuple[bool | None, TokenDifference | None, int, bool]:
    """Whether the token texts agree, the first that does not, how many do not, and whether only padding is left over.

    Kept by digest: among two hundred files on a disk there are few vocabularies, and reading one takes a while.
    """
    if target.digest and target.digest == draft.digest:
        return True, None, 0, False
    one, two = token_texts(target.model), token_texts(draft.model)
    if one is None or two is None:
        return None, None, 0, False
    shorter = min(len(one), len(two))
    # llama.cpp compares C strings: what follows a zero byte does not count
    unequal = [
        i
        for i in range(FIRST_COMPARED_ID, shorter)
        if one[i] != two[i] and one[i].split(b"\0")[0] != two[i].split(b"\0")[0]
    ]
    tail = (one if len(one) > len(two) else two)[shorter:]
    padding = not unequal and bool(tail) and all(_PADDING.fullmatch(t) for t in tail)
    first = None
    if unequal:
        i = unequal[0]
        first = TokenDifference(id=i, target=_shown(one[i]), draft=_shown(two[i]))
    return not unequal, first, len(unequal), padding


def examine(target: ModelDescription, draft: ModelDescription) -> Comparison | None:
    """Compare two vocabularies fact by fact; None if one of them has none."""
    a, b = target.tokenizer, draft.tokenizer
    if a is None or b is None:
        return None
    texts_equal, first, differences, padding = _texts(_Owner(target), _Owner(draft))
    return Comparison(
        target_type=a.type,
        draft_type=b.type,
        target_size=a.size,
        draft_size=b.size,
        flags_known=None not in (a.add_bos, b.add_bos, a.add_eos, b.add_eos),
        add_bos=(a.add_bos, b.add_bos),
        bos=(a.bos_id, b.bos_id),
        add_eos=(a.add_eos, b.add_eos),
        eos=(a.eos_id, b.eos_id),
        texts_equal=texts_equal,
        identical=bool(a.digest) and a.digest == b.digest,
        first_difference=first,
        differences=differences,
        padding_only=padding,
        families=(_family(target), _family(draft)),
    )


def _shown(text: bytes) -> str:
    return clean(text.decode("utf-8", "replace"), 40)


def _family(model: ModelDescription) -> str | None:
    """Vocabulary family from the catalogue, if the model was recognised."""
    if model.tokenizer and model.tokenizer.family:
        return model.tokenizer.family
    if model.catalogue_slug is None:
        return None
    from advisor.models.catalogue import tokenizer_family

    return tokenizer_family(model.catalogue_slug)


def judge(facts: Comparison, build: int | None = None) -> tuple[bool | None, str, str]:
    """llama.cpp's verdict on the facts: compatible (None = cannot be known), the rule that decided, the reason.

    Args:
        facts: from :func:`examine`.
        build: llama.cpp build number; None = current.
    """
    if "unknown" not in (facts.target_type, facts.draft_type) and facts.target_type != facts.draft_type:
        return False, "type", (
            f"The vocabularies are of different types: {facts.target_type} (target) and {facts.draft_type} (draft)."
        )  # fmt: skip
    for name, adds, ids in (("BOS", facts.add_bos, facts.bos), ("EOS", facts.add_eos, facts.eos)):
        found = _special_rule(name, adds, ids, build)
        if found is not None:
            return found
    limit = OLD_SIZE_LIMIT if build is not None and build < SIZE_LIMIT_SINCE else SIZE_LIMIT
    if facts.size_difference > limit:
        return False, "size", (
            f"The vocabularies differ by {facts.size_difference:,} entries ({facts.target_size:,} and "
            f"{facts.draft_size:,}); at most {limit} are allowed."
        )  # fmt: skip
    if facts.first_difference is not None:
        d = facts.first_difference
        others = f", and {facts.differences - 1:,} more differ" if facts.differences > 1 else ""
        return False, "token", f'Token {d.id} is "{d.target}" in the target and "{d.draft}" in the draft{others}.'
    if facts.texts_equal is None:
        return _by_family(facts)
    if not facts.flags_known or "unknown" in (facts.target_type, facts.draft_type):
        return None, "unknown", "The token lists are equal, but the special tokens' settings are not known."
    if facts.size_difference == 0:
        if facts.identical:
            return True, "none", f"Both have the same {facts.target_size:,} tokens."
        return True, "none", f"The {facts.target_size:,} tokens agree wherever llama.cpp compares them (from id 5 on)."
    kind = "padding" if facts.padding_only else "entries"
    return True, "none", (
        f"The lists agree; one has {facts.size_difference} more {kind} at its end (at most {limit} are allowed)."
    )  # fmt: skip


def _special_rule(
    name: str, adds: tuple[bool | None, bool | None], ids: tuple[int | None, int | None], build: int | None
) -> tuple[bool | None, str, str] | None:
    """The BOS or EOS rule; None if it is met or cannot be judged."""
    if None in adds:
        return None
    rule = name.lower()
    if adds[0] != adds[1]:
        who = "target" if adds[0] else "draft"
        return False, rule, f"Only the {who} adds {_article(name)} token (add_{rule}_token differs)."
    if ids[0] == ids[1]:
        return None
    shown = f"{name} ids differ ({_id(ids[0])} and {_id(ids[1])})"
    if adds[0]:
        return False, rule, f"Both add {_article(name)} token, but the {shown}."
    if build is not None and build <= BOS_RULE_LAST_OLD:
        return False, rule, f"The {shown}; build {build} still compares them although neither is ever added."
    if build is not None and build < BOS_RULE_FIRST_NEW:
        return None, rule, (
            f"The {shown}; builds from {BOS_RULE_LAST_OLD + 1} to {BOS_RULE_FIRST_NEW - 1} may or may not compare "
            "them (PR #22358)."
        )  # fmt: skip
    return None


def _article(name: str) -> str:
    return f"an {name}" if name == "EOS" else f"a {name}"


def _id(value: int | None) -> str:
    return "none" if value is None else str(value)


def _by_family(facts: Comparison) -> tuple[bool | None, str, str]:
    """What can be said when the token lists were not both at hand."""
    missing = "token texts and BOS/EOS settings were not compared (that takes both GGUF files)"
    one, two = facts.families
    if one and one == two:
        return None, "unknown", f"Expected to match: both use the {one} vocabulary; {missing}."
    if one and two:
        return None, "unknown", f"Expected to be refused: {one} and {two} are different vocabularies; {missing}."
    return None, "unknown", f"Not known: {missing}."


def compare(target: ModelDescription, draft: ModelDescription, *, build: int | None = None) -> TokenizerVerdict:
    """Whether llama.cpp's ``draft-simple`` accepts the draft's vocabulary, and the true reason.

    Args:
        target: the model whose output is wanted.
        draft: the model that guesses.
        build: llama.cpp build number (``b9219`` -> 9219); None = a current one.

    Returns:
        ``compatible`` is None when the files' token lists are not at hand (catalogue, Hub config).

    Raises:
        ModelFileError: a file vanished or changed meanwhile.
    """
    from advisor.speculation.prediction import TokenizerVerdict

    facts = examine(target, draft)
    if facts is None:
        return TokenizerVerdict(compatible=None, reason="Not known: no vocabulary was read.")
    compatible, _, reason = judge(facts, build)
    return TokenizerVerdict(compatible=compatible, reason=reason)
