"""N-gram replays against counters of the real engine, and the rules one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import InputError
from advisor.speculation import ngram
from advisor.speculation.ngram import METHODS, Options, drafter, replay, replay_requests

RECORDED: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "ngram_runs.json").read_text())
SMALL = Options(size_n=2, size_m=8, match=2, least=0, most=8)
tokens = st.lists(st.integers(0, 5), max_size=120)


@pytest.mark.parametrize(
    "recorded", RECORDED["sets"], ids=lambda s: f"{s['method']}-{'small' if s['options'] else 'default'}"
)
def test_counters_agree_exactly_with_the_engine(recorded: dict[str, Any]) -> None:
    state = drafter(recorded["method"], Options(**recorded["options"]))
    drafted = 0
    for request in recorded["requests"]:
        stop = frozenset(request["output"][-1:]) if request["ended"] else frozenset()
        one = replay(
            recorded["method"],
            request["prompt"],
            request["output"],
            state=state,
            limit=request["limit"],
            context=recorded["context"],
            stop_tokens=stop,
        )
        assert (one.drafted, one.accepted) == (request["draft_n"], request["draft_n_accepted"])
        drafted += one.drafted
    assert drafted > 0


@pytest.mark.parametrize("method", METHODS)
@given(prompt=tokens, output=tokens, checkpoint=st.booleans(), limit=st.none() | st.integers(1, 130))
@settings(max_examples=40, deadline=None)
def test_counters_are_consistent(
    method: Any, prompt: list[int], output: list[int], checkpoint: bool, limit: int | None
) -> None:
    one = replay(method, prompt, output, options=SMALL, checkpoint=checkpoint, limit=limit)
    assert 0 <= one.accepted <= one.drafted
    assert one.rounds <= one.passes <= max(len(output) - 1, 0) + one.replayed
    assert one.drafted <= one.rounds * 8
    if not checkpoint:
        # every pass yields one token of the target's own
        assert one.passes + one.accepted >= len(output) - 1
        assert one.mean_length >= 1 or not one.passes
    assert one.mean_length <= 9
    assert 0 <= one.draft_share <= 1


@pytest.mark.parametrize("method", METHODS)
def test_a_faithful_copy_is_drafted(method: Any) -> None:
    text = [(7 * i * i + 3 * i) % 1009 for i in range(400)]
    one = replay(method, text, text[:300])
    assert one.acceptance is not None
    assert one.accepted > 100
    assert one.mean_length > 1.5


@pytest.mark.parametrize("method", METHODS)
def test_text_without_repetition_is_never_drafted(method: Any) -> None:
    one = replay(method, list(range(300)), list(range(1000, 1300)))
    assert (one.drafted, one.rounds, one.mean_length) == (0, 0, 1.0)
    assert one.acceptance is None


def test_simple_copies_from_the_newest_match_and_needs_a_long_history() -> None:
    options = Options(size_n=2, size_m=3)
    one = ngram.NgramSimple(options)
    one.begin([])
    history = [9, 1, 2, 3, 4, 5, 1, 2, 6, 7, 8, 1]
    assert one.draft(history, 2) == [6, 7, 8]
    # size_n + size_m + 1 tokens are too few
    assert ngram.NgramSimple(options).draft([9, 1, 2, 3, 4, 1], 2) == []
    # a match at position 0 does not count
    assert ngram.NgramSimple(options).draft([1, 2, 3, 4, 5, 6, 7, 1], 2) == []


def test_map_k_drafts_no_more_than_was_accepted_last_time() -> None:
    one = ngram.NgramMap(Options(size_n=1, size_m=4), key_only=True)
    history = [0, 1, 2, 3, 4, 5, 9, 9, 9]
    one.begin(history)
    assert one.draft(history, 1) == [2, 3, 4, 5]
    one.accept(2)
    history += [1, 2, 3, 8]
    assert one.draft(history, 1) == [2, 3]
    one.accept(0)
    history += [1, 8]
    assert one.draft(history, 1) == []


def test_map_k4v_refuses_when_continuations_disagree() -> None:
    def run(first: list[int], second: list[int]) -> list[int]:
        history = [0, 1, *first, 5, 1, *second, 6, 1, *second, 7, 8, 8, 8]
        one = ngram.NgramMap(Options(size_n=1, size_m=2), key_only=False)
        one.begin(history)
        one.draft(history, 1)
        return one.draft([*history, 1, 9], 1)

    assert run([2, 3], [2, 3]) == [2, 3]
    assert run([2, 3], [4, 4]) == [4, 4]  # two against one is twice as many
    history = [0, 1, 2, 3, 5, 1, 4, 4, 7, 8, 8, 8]
    one = ngram.NgramMap(Options(size_n=1, size_m=2), key_only=False)
    one.begin(history)
    assert one.draft(history, 1) == []  # one against one is not


def test_mod_forgets_after_five_poor_drafts() -> None:
    one = ngram.NgramMod(Options(match=2, least=1, most=4))
    history = [1, 2, 3, 4, 5, 6, 7, 8]
    one.begin(history)
    for _ in range(5):
        assert one.draft([*history, 1], 2) == [3, 4, 5, 6]
        one.accept(0)
    assert one.draft([*history, 1], 2) == []


def test_mod_drops_drafts_that_are_too_short() -> None:
    history = [1, 2, 3, 4, 5, 6]
    for least, expected in ((4, [3, 4, 5, 6]), (5, [])):
        one = ngram.NgramMod(Options(match=2, least=least, most=8))
        one.begin(history)
        assert one.draft([*history, 1], 2) == expected


def test_cache_goes_with_the_majority_and_stops_without_one() -> None:
    one = ngram.NgramCache(Options())
    one.begin([])
    history = [1, 2, 9, 1, 2, 9, 1, 3, 5, 5]
    one.draft(history, 7)
    assert one._next([8, 1]) == 2  # 1 -> 2 in two of three cases: 66 % are enough
    one._after[1,] = {2: 2, 3: 2}
    assert one._next([8, 1]) is None


def test_ties_follow_the_order_of_the_hash_table() -> None:
    # 13 buckets: 14 falls into the bucket of 1 and is put before it; new buckets come to the front
    assert ngram._hash_order([1, 2, 14]) == [2, 14, 1]
    assert sorted(ngram._hash_order(list(range(40)))) == list(range(40))


def test_drafts_are_cut_to_the_limit_and_to_the_context() -> None:
    text = [(7 * i * i + 3 * i) % 1009 for i in range(200)]
    free = replay("ngram-simple", text, text[:150])
    limited = replay("ngram-simple", text, text[:30], limit=30)
    tight = replay("ngram-simple", text, text[:30], context=240)
    assert free.drafted_per_round > 40
    assert limited.drafted <= 29
    assert 0 < tight.drafted < limited.drafted + 12


def test_an_end_token_is_accepted_only_as_the_last_of_a_draft() -> None:
    text = [(7 * i * i + 3 * i) % 1009 for i in range(200)]
    kept = replay("ngram-simple", text, text[:40])
    stopped = replay("ngram-simple", text, text[:40], stop_tokens=frozenset(text[39:40]))
    assert kept.accepted == stopped.accepted + 1


def test_a_checkpointed_target_decodes_again_after_a_partial_accept() -> None:
    text = [(7 * i * i + 3 * i) % 1009 for i in range(200)]
    output = [*text[:30], 5000, *text[60:90]]
    plain, again = (replay("ngram-simple", text, output, checkpoint=c) for c in (False, True))
    assert again.replayed > 0
    assert plain.replayed == 0
    assert again.tokens_per_round > again.mean_length


def test_later_requests_profit_from_earlier_ones() -> None:
    text = [(7 * i * i + 3 * i) % 1009 for i in range(200)]
    alone = replay("ngram-mod", [1] * 5, text)
    after = replay_requests("ngram-mod", [([1] * 5, text), ([2] * 5, text)])
    assert alone.accepted == 0
    assert after.accepted > 50
    assert after.requests == 2
    assert after.tokens == 400


def test_shrunk_histories_are_forgotten_by_the_map() -> None:
    text = [(7 * i * i + 3 * i) % 1009 for i in range(300)]
    one = ngram.NgramMap(Options(), key_only=True)
    one.begin(text)
    assert one.draft([*text, *text[100:111]], text[111])
    one.begin(text[:80])
    assert one.draft([*text[:80], *range(2000, 2020), *text[100:111]], text[111]) == []


def test_other_methods_are_refused() -> None:
    with pytest.raises(InputError, match="not an n-gram method"):
        drafter("draft-simple")
    with pytest.raises(InputError, match="do not add up"):
        replay("ngram-mod", [], []) + replay("ngram-simple", [], [])
