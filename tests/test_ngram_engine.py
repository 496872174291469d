"""The replay against the real engine, on text it has just written."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.speculation.ngram import METHODS, Options, drafter, replay
from advisor.speculation.prediction import Method
from advisor.speculation.vocabulary import Vocabulary, read_vocabulary

pytestmark = pytest.mark.engine

K = 8
MATCH = 3
TOKENS = 32
PROMPTS = (
    "Once upon a time there was a small fox. The small fox went to the river. The small fox was happy.\n" * 2,
    "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return",
)


@pytest.fixture(scope="module")
def vocabulary(smollm2: Path) -> Vocabulary:
    pytest.importorskip("xllamacpp")
    return read_vocabulary(smollm2)


@pytest.mark.parametrize("method", METHODS)
def test_draft_n_and_draft_n_accepted_are_reproduced_exactly(
    method: Method, smollm2: Path, vocabulary: Vocabulary
) -> None:
    from advisor.llamacpp.embedded import embedded_engine
    from advisor.llamacpp.server import NgramShape, Server, ServerOptions, effective_ngram

    options = ServerOptions(
        model=str(smollm2), method=method, draft_max=K, context=768, threads=1, warmup=False,
        ngram=NgramShape(match=MATCH),
    )  # fmt: skip
    shape = effective_ngram(options)
    state = drafter(
        method, Options(size_n=MATCH, size_m=K, match=MATCH, least=shape.minimum if shape.minimum else 0, most=K)
    )
    drafted = 0
    with Server(embedded_engine(), options) as server:
        for text in PROMPTS:
            prompt = vocabulary.encode(text, bos=True)
            assert server.client.tokenize(text) == prompt
            answer = server.client.complete(prompt, TOKENS)
            assert answer.tokens is not None
            one = replay(
                method,
                prompt,
                answer.tokens,
                state=state,
                limit=TOKENS,
                context=768,
                stop_tokens=vocabulary.stop_tokens,
            )
            assert (one.drafted, one.accepted) == (answer.drafted or 0, answer.accepted or 0)
            drafted += one.drafted
    assert drafted > 0
