"""Text to tokens with a model's own vocabulary, read from the header of its GGUF file; no weights are loaded.

Two kinds cover nearly all models: BPE (merges by rank inside the words of a pre-tokenizer) and SPM (merges by score).
The rules are those of llama.cpp build 11434 (``src/llama-vocab.cpp``, ``src/unicode.cpp``): the pre-tokenizer's
expressions, the special tokens cut out first, longest first, and the byte fallback.
"""

from __future__ import annotations

import heapq
import os
import re
import struct
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from advisor.errors import InputError, ModelFileError
from advisor.models.gguf import FileSource, Header, NumberArray, StringArray, read_header, read_strings
from advisor.models.tokenizer import identity
from advisor.text import clean

_SPACE = "\u2581"
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPECIAL = frozenset({_UNKNOWN, _CONTROL, _USER_DEFINED})

# ---------------------------------------------------------------- pre-tokenizers

_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END
_QWEN2 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _END
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _END
_UPPER, _LOWER = r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _END
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _END
)
_CJK = "[一-龥\u3040-ゟ゠-ヿ]+"
_LINES = r"[^\n]+|[\n]+"

_EXPRESSIONS: dict[str, tuple[str, ...]] = {
    "gpt2": (_GPT2,),
    "digits": (r"\p{N}", _GPT2),
    "llama3": (_LLAMA3,),
    "qwen2": (_QWEN2,),
    "qwen35": (_QWEN35,),
    "tekken": (_TEKKEN,),
    "gpt4o": (_GPT4O,),
    "deepseek3": (r"\p{N}{1,3}", _CJK, _DEEPSEEK3),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    "lines": (_LINES,),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
_GROUPS = {
    "gpt2": "gpt-2 phi-2 gigachat a.x-4.0 mellum modern-bert exaone4 olmo mpt jais trillion granite-docling "
    "roberta-bpe jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code",
    "digits": "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    "llama3": "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe "
    "chatglm-bpe glm4 glm5",
    "qwen2": "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2",
    "qwen35": "qwen35",
    "tekken": "tekken",
    "gpt4o": "gpt-4o llama4 kanana2 talkie minimax-m2",
    "deepseek3": "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    "falcon": "falcon",
    "lines": "gemma4 sarvam-moe",
    "default": "default",
}
_BY_NAME = {name: group for group, names in _GROUPS.items() for name in names.split()}
_WHOLE_WORDS = frozenset(
    ["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "tekken"]
)
"""Pre-tokenizers whose words are looked up whole before they are merged from pieces."""

_CATEGORY = {"N": "\u00d1", "L": "\u00d2", "P": "\u00d3", "M": "\u00d4", "S": "\u00d5"}
_ASCII = {
    "N": "0-9",
    "L": "A-Za-z",
    "P": r"!-#%-*,-/:-;?-@\[-\]_\{\}",
    "M": "",
    "S": r"\$\+<->\^`\|~",
}


@lru_cache(maxsize=8192)
def _collapsed(character: str) -> str:
    """One stand-in per Unicode category, so that plain ``re`` can match ``\\p{L}`` and the like."""
    if character < "\x80":
        return character
    if character.isspace():
        return "\x0b"
    return _CATEGORY.get(unicodedata.category(character)[0], "\u00d0")


def _translate(expression: str) -> str:
    out, inside, i = [], False, 0
    while i < len(expression):
        c = expression[i]
        found = re.match(r"\\p\{([NLPMS])\}", expression[i : i + 6])
        if found:
            members = _ASCII[found[1]] + _CATEGORY[found[1]]
            out.append(members if inside else f"[{members}]")
            i += len(found[0])
            continue
        if c == "\\":
            out.append(expression[i : i + 2])
            i += 2
            continue
        if c == "[" and not inside:
            inside = True
        elif c == "]" and inside:
            inside = False
        out.append(c)
        i += 1
    return "".join(out)


@lru_cache(maxsize=16)
def _compiled(group: str) -> tuple[tuple[re.Pattern[str], bool], ...]:
    """(expression, whether it is matched against the collapsed text)."""
    return tuple((re.compile(_translate(e), re.ASCII), "\\p{" in e) for e in _EXPRESSIONS[group])


def split_words(text: str, group: str) -> list[str]:
    """Words of the pre-tokenizer group; matches and what lies between them, nothing lost."""
    spans = [(0, len(text))]
    collapsed = "".join(map(_collapsed, text))
    for pattern, on_collapsed in _compiled(group):
        subject = collapsed if on_collapsed else text
        cut = []
        for start, end in spans:
            at = start
            # The piece is matched by itself: lookahead must not see beyond it.
            for match in pattern.finditer(subject[start:end]):
                a, b = match.start() + start, match.end() + start
                if a == b:
                    continue
                if a > at:
                    cut.append((at, a))
                cut.append((a, b))
                at = b
            if at < end:
                cut.append((at, end))
        spans = cut
    return [text[a:b] for a, b in spans]


@lru_cache(maxsize=1)
def _byte_letters() -> tuple[str, ...]:
    """The printable letter that GPT-2's vocabulary uses for each byte."""
    direct = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {b: chr(b) for b in direct}
    for offset, b in enumerate(b for b in range(256) if b not in letters):
        letters[b] = chr(256 + offset)
    return tuple(letters[b] for b in range(256))


# ---------------------------------------------------------------- the vocabulary


class Vocabulary:
    """Tokens, merges and special tokens of one model. ``exact`` is False where a rule had to be guessed."""

    def __init__(
        self,
        kind: str,
        tokens: list[str],
        types: list[int],
        *,
        merges: list[str] | None = None,
        scores: list[float] | None = None,
        pre: str | None = None,
        add_bos: bool = False,
        bos_id: int | None = None,
        eos_ids: frozenset[int] = frozenset(),
        space_prefix: bool = True,
    ) -> None:
        self.kind = kind
        self.size = len(tokens)
        self.add_bos, self.bos_id, self.stop_tokens = add_bos, bos_id, eos_ids
        self._space_prefix = space_prefix
        self._ids = {text: i for i, text in enumerate(tokens)}
        self._scores = scores or []
        self._ranks = {}
        for rank, merge in enumerate(merges or []):
            at = merge.find(" ", 1)
            self._ranks[merge[:at], merge[at + 1 :]] = rank
        self._group = _BY_NAME.get(pre or "default", "default")
        self._whole_words = pre in _WHOLE_WORDS
        self._raw = self._group == "lines"
        self.exact = kind == "SPM" or (pre or "default") in _BY_NAME
        special = [(text, i) for i, (text, t) in enumerate(zip(tokens, types, strict=False)) if t in _SPECIAL and text]
        self._special = sorted(special, key=lambda s: -len(s[0].encode("utf-8", "surrogateescape")))
        # Merges never cross a line break that no token spans, so lines can be merged one by one: same ids, less work.
        self._by_line = all("\n" not in text or not text.strip("\n") for text in tokens)
        self._known: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, *, bos: bool = False) -> list[int]:
        """Token ids of ``text``; special tokens in it are recognised. ``bos``: add a BOS if the model wants one."""
        out = [self.bos_id] if bos and self.add_bos and self.bos_id is not None else []
        after_special = True
        for part in self._fragments(text):
            if isinstance(part, int):
                out.append(part)
                after_special = True
            elif self.kind == "SPM":
                prefix = " " if self._space_prefix and after_special else ""
                text = (prefix + part).replace(" ", _SPACE)
                for line in re.findall(_LINES, text) if self._by_line else (text,):
                    out.extend(self._merged(line, self._by_score))
                after_special = False
            else:
                out.extend(self._encode_bpe(part))
        return out

    def _fragments(self, text: str) -> Iterator[str | int]:
        parts: list[str | int] = [text] if text else []
        for special, token in self._special:
            if special not in text:
                continue
            cut: list[str | int] = []
            for part in parts:
                if isinstance(part, int) or special not in part:
                    cut.append(part)
                    continue
                first = True
                for piece in part.split(special):
                    if not first:
                        cut.append(token)
                    if piece:
                        cut.append(piece)
                    first = False
            parts = cut
        return iter(parts)

    def _encode_bpe(self, text: str) -> Iterator[int]:
        if self._raw:
            text = text.replace(" ", _SPACE)
        for word in split_words(text, self._group):
            known = self._known.get(word)
            if known is None:
                known = tuple(self._word(word))
                if len(word) < 32:
                    self._known[word] = known
            yield from known

    def _word(self, word: str) -> Iterator[int]:
        if self._raw:
            whole = word.strip("\n") == ""
        else:
            letters = _byte_letters()
            word = "".join(letters[b] for b in word.encode("utf-8", "surrogateescape"))
            whole = self._whole_words
        if whole and word in self._ids:
            return iter((self._ids[word],))
        return self._merged(word, self._by_rank)

    def _by_rank(self, left: str, right: str) -> float | None:
        return self._ranks.get((left, right))

    def _by_score(self, left: str, right: str) -> float | None:
        token = self._ids.get(left + right)
        return None if token is None else -(self._scores[token] if token < len(self._scores) else 0.0)

    def _merged(self, text: str, cost: Callable[[str, str], float | None]) -> Iterator[int]:
        """Merge neighbours, cheapest (then leftmost) first, until nothing can be merged; then look up what is left."""
        symbols = list(text)
        after = [*range(1, len(symbols)), -1]
        before = list(range(-1, len(symbols) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left < 0 or right < 0:
                return
            price = cost(symbols[left], symbols[right])
            if price is not None:
                heapq.heappush(queue, (price, left, right, symbols[left] + symbols[right]))

        for i in range(1, len(symbols)):
            offer(i - 1, i)
        while queue:
            _, left, right, merged = heapq.heappop(queue)
            if not symbols[left] or not symbols[right] or symbols[left] + symbols[right] != merged:
                continue
            symbols[left], symbols[right] = merged, ""
            after[left] = after[right]
            if after[right] >= 0:
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        for symbol in symbols:
            if not symbol:
                continue
            token = self._ids.get(symbol)
            if token is not None:
                yield token
            else:
                yield from self._bytes(symbol)

    def _bytes(self, symbol: str) -> Iterator[int]:
        if self.kind == "BPE" and not self._raw:
            names = [c for c in symbol if c < "\x80"]  # the original looks up single bytes, so only ASCII is found
        else:
            names = [f"<0x{b:02X}>" for b in symbol.encode("utf-8", "surrogateescape")]
        for name in names:
            token = self._ids.get(name)
            if token is not None:
                yield token


def read_vocabulary(path: str | os.PathLike[str]) -> Vocabulary:
    """The vocabulary of a GGUF file.

    Raises:
        ModelFileError: not a usable GGUF file, or one without a vocabulary.
        InputError: a vocabulary of a kind that is not implemented here (WPM, UGM, RWKV, PLaMo2).
    """
    return vocabulary_of(read_header(path))


def vocabulary_of(header: Header, pre: str | None = None) -> Vocabulary:
    """The same from a header that was read before; ``pre`` replaces the pre-tokenizer the file names.

    Raises:
        ModelFileError: no vocabulary, or the file changed since.
        InputError: a vocabulary of a kind that is not implemented here.
    """
    name = clean(header.name)
    found = identity(header, "")
    if found is None or header.tokens is None or not header.files:
        raise ModelFileError(f"{name} holds no vocabulary.", "Give the model file itself (of a split set: the first).")
    if found.type not in ("BPE", "SPM"):
        raise InputError(f"{name} has a {found.type} vocabulary, which cannot be tokenised here.")
    place = header.files[0]
    tokens = _strings(place, header, header.tokens)
    types = [int(t) for t in _numbers(place, header, "tokenizer.ggml.token_type")]
    merges_span = header.keys.get("tokenizer.ggml.merges")
    eos = {header.integer(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")} | {found.eos_id}
    prefix = header.flag("tokenizer.ggml.add_space_prefix")
    return Vocabulary(
        found.type,
        tokens,
        types,
        merges=_strings(place, header, merges_span) if isinstance(merges_span, StringArray) else [],
        scores=_numbers(place, header, "tokenizer.ggml.scores") if found.type == "SPM" else None,
        pre=pre or found.pre,
        add_bos=bool(found.add_bos),
        bos_id=found.bos_id,
        eos_ids=frozenset(e for e in eos if e is not None),
        space_prefix=True if prefix is None else prefix,
    )


def _strings(path: Path, header: Header, span: StringArray) -> list[str]:
    return [t.decode("utf-8", "surrogateescape") for t in read_strings(path, span, header.big_endian)]


_FORMATS = {4: "I", 5: "i", 6: "f"}


def _numbers(path: Path, header: Header, key: str) -> list[float]:
    """Elements of a numeric array, which the header reader may have skipped: 32-bit ones, as tokenizers store them."""
    value = header.keys.get(key)
    if isinstance(value, NumberArray):
        source = FileSource(path)
        try:
            data = source.read(value.start, value.end - value.start)
        finally:
            source.close()
        code = "f" if key.endswith("scores") else "i"
        order = ">" if header.big_endian else "<"
        count = value.length
        if len(data) != 4 * count:
            raise ModelFileError(f"{clean(path.name)}: {key} is not an array of 32-bit numbers.")
        return list(struct.unpack(f"{order}{count}{code}", data))
    if isinstance(value, tuple) and not isinstance(value, StringArray):
        return [float(v) for v in value]
    return []
