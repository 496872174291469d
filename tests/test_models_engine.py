"""The verdict on a pair against a real llama.cpp: what it says is what the engine does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf_files import llama, vocabulary, write_gguf

from advisor.llamacpp.find import Engine, find_engine
from advisor.llamacpp.server import Server, ServerOptions
from advisor.models.files import describe_file
from advisor.models.tokenizer import compare

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    pytest.importorskip("xllamacpp")
    return find_engine("embedded")


def tiny(path: Path, size: int = 400, **options: Any) -> Path:
    """A model of one block with zero weights, which llama.cpp loads and runs."""
    keys, tensors = llama(layers=1, vocab=size, quant="F32")
    words = vocabulary(size, **options)
    if options.get("kind") == "llama":
        words["tokenizer.ggml.scores"] = [0.0] * size
    return write_gguf(path, {**keys, **words}, tensors)


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "same": ({}, {}, True),
    "128 more": ({"size": 528}, {}, True),
    "129 more": ({"size": 529}, {}, False),
    "another token 39": ({"changed": {39: "other"}}, {}, False),
    "another token 3": ({"changed": {3: "other"}}, {}, True),
    "one adds BOS": ({"add_bos_token": True, "bos_token_id": 1}, {"add_bos_token": False, "bos_token_id": 1}, False),
    "unused BOS ids": ({"add_bos_token": False, "bos_token_id": 1}, {"add_bos_token": False, "bos_token_id": 7}, True),
    "used BOS ids": ({"add_bos_token": True, "bos_token_id": 1}, {"add_bos_token": True, "bos_token_id": 7}, False),
    "one adds EOS": ({"add_eos_token": True}, {}, False),
    "types": ({"kind": "llama"}, {}, False),
    "BOS by pre-tokenizer": ({"pre": "tekken"}, {}, False),
    "texts behind a zero byte": ({"changed": {50: "a\0b"}}, {"changed": {50: "a\0c"}}, True),
    "an empty text": ({"changed": {50: ""}}, {"changed": {50: "[EMPTY_50]"}}, True),
}


@pytest.mark.parametrize("case", PAIRS)
def test_the_engine_agrees(engine: Engine, tmp_path: Path, case: str) -> None:
    one, two, expected = PAIRS[case]
    target, draft = tiny(tmp_path / "target.gguf", **one), tiny(tmp_path / "draft.gguf", **two)
    assert compare(describe_file(target), describe_file(draft)).compatible is expected
    options = ServerOptions(model=str(target), draft=str(draft), method="draft-simple", draft_max=3, context=256)
    with Server(engine, options) as server:
        answer = server.client.complete([10, 11, 12, 13], 12, ignore_eos=True)
    assert bool(answer.drafted) is expected
