"""Tokenising with a model's own vocabulary: the same ids as the real engine gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf_files import write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import InputError, ModelFileError
from advisor.models.gguf import read_header
from advisor.speculation.vocabulary import Vocabulary, read_vocabulary, split_words, vocabulary_of

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "tokens.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def bpe(smollm2: Path) -> Vocabulary:
    return read_vocabulary(smollm2)


def test_bpe_agrees_with_the_engine(bpe: Vocabulary) -> None:
    assert bpe.exact
    for text, expected in zip(RECORDED["texts"], RECORDED["smollm2"], strict=True):
        assert bpe.encode(text, bos=True) == expected


def test_spm_agrees_with_the_engine(gemma3: Path) -> None:
    vocabulary = read_vocabulary(gemma3)
    assert (vocabulary.kind, vocabulary.size, vocabulary.exact) == ("SPM", 262144, True)
    for text, expected in zip(RECORDED["texts"], RECORDED["gemma3"], strict=True):
        assert vocabulary.encode(text, bos=True) == expected


def test_pre_tokenizers_agree_with_the_engine(smollm2: Path) -> None:
    header = read_header(smollm2)
    for pre, recorded in RECORDED["pre"].items():
        vocabulary = vocabulary_of(header, pre)
        assert vocabulary.exact
        for text, expected in zip(RECORDED["texts"], recorded, strict=True):
            assert vocabulary.encode(text) == expected, pre


def test_an_unknown_pre_tokenizer_is_a_guess(smollm2: Path) -> None:
    vocabulary = vocabulary_of(read_header(smollm2), "invented")
    assert not vocabulary.exact
    assert vocabulary.encode("Hello world")


@given(st.text(max_size=200), st.sampled_from(["gpt2", "digits", "llama3", "qwen2", "qwen35", "tekken", "gpt4o",
                                               "deepseek3", "falcon", "lines", "default"]))  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_words_are_a_partition_of_the_text(text: str, group: str) -> None:
    words = split_words(text, group)
    assert "".join(words) == text
    assert all(words)


def test_words_of_the_families() -> None:
    text = "I'll pay 12345 DOLLARS\n\n  now"
    assert split_words(text, "llama3") == ["I", "'ll", " pay", " ", "123", "45", " DOLLARS", "\n\n", " ", " now"]
    assert split_words(text, "qwen2") == ["I", "'ll", " pay", " ", *"12345", " DOLLARS", "\n\n", " ", " now"]
    assert split_words(text, "gpt2") == ["I", "'ll", " pay", " 12345", " DOLLARS", "\n\n ", " now"]
    assert split_words(text, "digits")[4:9] == list("12345")
    assert split_words("camelCase", "gpt4o") == ["camel", "Case"]
    assert split_words("e\u0301t", "qwen2") == ["e", "\u0301t"]
    assert split_words("e\u0301t", "qwen35") == ["e\u0301t"]


@given(st.text(st.characters(min_codepoint=32, exclude_categories=("Cc", "Cs")), max_size=60))
@settings(max_examples=60, deadline=None)
def test_every_text_survives_bpe(smollm2: Path, text: str) -> None:
    vocabulary = _cached(smollm2)
    ids = vocabulary.encode(text)
    assert all(0 <= i < vocabulary.size for i in ids)
    assert bool(ids) == bool(text)


_CACHE: dict[Path, Vocabulary] = {}


def _cached(path: Path) -> Vocabulary:
    if path not in _CACHE:
        _CACHE[path] = read_vocabulary(path)
    return _CACHE[path]


def test_longer_special_tokens_win_and_fragments_keep_their_order() -> None:
    words = ["<s>", "<s>x", "a", "b", "x"]
    vocabulary = Vocabulary("BPE", words, [3, 4, 1, 1, 1], pre="gpt-2")
    assert vocabulary.encode("a<s>xb<s>a") == [2, 1, 3, 0, 2]


def test_raw_bpe_merges_across_spaces() -> None:
    words = ["a", "\u2581", "a\u2581", "a\u2581a", "\n\n", "<0xC3>", "<0xA9>"]
    vocabulary = Vocabulary("BPE", words, [1] * 7, merges=["a \u2581", "a\u2581 a"], pre="gemma4")
    assert vocabulary.encode("a a\n\na") == [3, 4, 0]
    assert vocabulary.encode("é") == [5, 6]


def test_files_without_a_usable_vocabulary(tmp_path: Path) -> None:
    bare = write_gguf(tmp_path / "bare.gguf", {"general.architecture": "llama"})
    with pytest.raises(ModelFileError, match="no vocabulary"):
        read_vocabulary(bare)
    keys = {"general.architecture": "bert", "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": ["a", "b"]}
    other = write_gguf(tmp_path / "bert.gguf", keys)
    with pytest.raises(InputError, match="WPM"):
        read_vocabulary(other)
    with pytest.raises(ModelFileError):
        read_vocabulary(tmp_path / "absent.gguf")
