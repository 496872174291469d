"""The user's own text: what is read, how it is cut, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import InputError
from advisor.speculation.ngram import METHODS
from advisor.speculation.overview import replay_outlook, replay_sample, replayed_estimate
from advisor.speculation.sample import Conversation, Turn, read_sample, requests
from advisor.speculation.vocabulary import Vocabulary

LETTERS = Vocabulary("BPE", [chr(i) for i in range(256, 512)] + [chr(i) for i in range(256)], [1] * 512, pre="gpt-2")


def write(path: Path, value: object) -> Path:
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


def test_chats_in_the_common_forms(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]
    forms = {
        "messages.json": {"messages": said, "task": "code-edit"},
        "bare.json": said,
        "many.json": [{"messages": said}, {"prompt": "hello", "response": "hi"}],
        "parts.json": {"messages": [said[0], {"role": "assistant", "content": [{"type": "text", "text": "hi"}]}]},
        "lines.jsonl": json.dumps({"messages": said}) + "\n\n" + json.dumps({"prompt": "hello", "output": "hi"}) + "\n",
    }
    for name, value in forms.items():
        found = read_sample(write(tmp_path / name, value))
        assert all(c.turns == (Turn("hello", False), Turn("hi", True)) for c in found), name
        assert len(found) == (2 if name in ("many.json", "lines.jsonl") else 1)
        assert found[0].task == ("code-edit" if name == "messages.json" else "chat")
    assert read_sample(tmp_path / "bare.json", "math")[0].task == "math"


def test_an_lm_studio_conversation(tmp_path: Path) -> None:
    """Messages hold versions; an answer consists of steps."""
    step = {"type": "contentBlock", "content": [{"type": "text", "text": "hi"}]}
    value = {
        "name": "chat",
        "messages": [
            {"versions": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}], "currentlySelected": 0},
            {"versions": [{"role": "assistant", "steps": []}, {"role": "assistant", "steps": [step]}],
             "currentlySelected": 1},
        ],
    }  # fmt: skip
    (one,) = read_sample(write(tmp_path / "a.conversation.json", value))
    assert one.turns == (Turn("hello", False), Turn("hi", True))


def test_plain_text_is_cut_at_the_line_nearest_to_its_middle(tmp_path: Path) -> None:
    (one,) = read_sample(write(tmp_path / "story.txt", "one\ntwo\nthree\nfour\n"))
    assert one.turns == (Turn("one\ntwo\nthree\n", False), Turn("four\n", True))
    assert one.task == "prose"
    (code,) = read_sample(write(tmp_path / "a.py", "x = 1\ny = 2\n"))
    assert code.task == "code"


def test_folders_are_read_with_all_below_them_except_what_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".git").mkdir(parents=True)
    write(tmp_path / "sub" / "a.md", "text\nmore\n")
    write(tmp_path / "sub" / ".git" / "b.md", "text\nmore\n")
    write(tmp_path / "photo.jpg", "text\nmore\n")
    assert [Path(c.source).name for c in read_sample(tmp_path)] == ["a.md"]


def test_every_answer_has_all_that_came_before_as_its_prompt() -> None:
    turns = (Turn("ab", False), Turn("cd", True), Turn("ef", False), Turn("gh", True))
    found = list(requests(Conversation(turns, "chat", ""), encode))
    assert found == [(encode("ab"), encode("cd")), (encode("abcdef"), encode("gh"))]


@given(st.text(min_size=2, max_size=300))
@settings(max_examples=40, deadline=None)
def test_no_text_is_lost(text: str) -> None:
    from advisor.speculation.sample import _boundary

    middle = _boundary(text)
    assert 0 < middle < len(text) or len(text) < 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{broken", "not valid JSON"),
        ("a.jsonl", '{"prompt": "a", "response": "b"}\n{broken', "line 2 of a.jsonl"),
        ("a.json", "[" * 100_000, "not valid JSON"),
        ("a.json", "{}", "no text that could be replayed"),
        (
            "a.json",
            '{"messages": [1, null, {"role": 3, "content": {"content": {}}}]}',
            "no text that could be replayed",
        ),
        ("a.txt", "\0\0\0", "not a text file"),
        ("a.txt", "", "no text that could be replayed"),
    ],
)
def test_unusable_samples(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_sample(write(tmp_path / name, content))


def test_samples_that_are_absent_or_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_sample(tmp_path / "nothing")
    monkeypatch.setattr("advisor.speculation.sample.LARGEST", 10)
    with pytest.raises(InputError, match="MiB"):
        read_sample(write(tmp_path / "long.txt", "a" * 11))
    monkeypatch.setattr("advisor.speculation.sample.MOST_FILES", 1)
    write(tmp_path / "b.txt", "b")
    with pytest.raises(InputError, match="more than 1 text files"):
        read_sample(tmp_path)


def test_an_edit_is_drafted_where_a_story_is_not(tmp_path: Path) -> None:
    old = "\n".join(f"def function_{i}(value):\n    return value + {i * 37 % 101}" for i in range(40))
    samples = [
        {"prompt": old, "response": old.replace("value", "number", 2), "task": "code-edit"},
        {"prompt": "Tell me.", "response": "".join(random.Random(1).choices("abcdefghijk", k=200)), "task": "prose"},
    ]
    sums = replay_sample(write(tmp_path / "s.json", samples), LETTERS)
    assert set(sums) == {(t, m) for t in ("code-edit", "prose") for m in METHODS}
    for method in METHODS:
        if method != "ngram-cache":  # it learns next to nothing from what is written after the prompt
            assert sums["code-edit", method].mean_length > 2
    edit = sums["code-edit", "ngram-simple"]
    one = replayed_estimate(edit)
    assert one.kind == "measured"
    assert one.rate.median == pytest.approx(edit.accepted / edit.drafted)
    assert one.draft_share == edit.draft_share
    assert replay_outlook(edit, "code-edit").speedup is None
    with pytest.raises(InputError, match="drafted nothing"):
        replayed_estimate(sums["prose", "ngram-mod"])
