"""Pairs: llama.cpp's rules, the true reason, and the builds in which the answer is another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf_files import Tensor, block, llama, vocabulary, write_gguf
from test_models_describe import qwen35

from advisor.errors import InputError
from advisor.models.catalogue import describe_catalogue
from advisor.models.description import ModelDescription
from advisor.models.files import describe_file
from advisor.models.pairs import check_pair
from advisor.models.tokenizer import compare, examine


class Files:
    """Makes small models with a given vocabulary."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count = folder, 0

    def __call__(self, size: int = 64, **options: Any) -> ModelDescription:
        return self.write(llama(vocab=size), vocabulary(size, **options))

    def write(self, model: tuple[dict[str, Any], list[Tensor]], words: dict[str, Any]) -> ModelDescription:
        self.count += 1
        keys, tensors = model
        return describe_file(write_gguf(self.folder / f"m{self.count}.gguf", {**keys, **words}, tensors))


@pytest.fixture
def model(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_equal_vocabularies(model: Files) -> None:
    verdict = compare(model(), model())
    assert verdict.compatible is True
    assert "same 64 tokens" in verdict.reason
    assert "from id 5 on" in compare(model(changed={0: "a"}), model()).reason


def test_type_decides_first(model: Files) -> None:
    verdict = compare(model(kind="llama"), model(64))
    assert verdict.compatible is False
    assert "SPM (target) and BPE (draft)" in verdict.reason


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"kind": "llama"}, ("SPM", True, False, 1, 2)),
        ({"kind": "gpt2"}, ("BPE", False, False, 11, 11)),
        ({"kind": "gpt2", "pre": "llama-bpe"}, ("BPE", True, False, 11, 11)),
        ({"kind": "gpt2", "pre": "tekken"}, ("BPE", True, False, 11, 11)),
        ({"kind": "gpt2", "pre": "llama-bpe", "add_bos_token": False}, ("BPE", False, False, 11, 11)),
        ({"kind": "gpt2", "pre": "glm4"}, ("BPE", False, False, None, 11)),
        ({"kind": "gpt2", "pre": "glm4", "bos_token_id": 3}, ("BPE", False, False, 3, 11)),
        ({"kind": "gpt2", "size": 8}, ("BPE", False, False, None, None)),
        ({"kind": "bert", "size": 200}, ("WPM", True, False, 101, None)),
        ({"kind": "t5"}, ("UGM", False, True, None, 1)),
        ({"kind": "rwkv"}, ("RWKV", False, False, None, None)),
        ({"kind": "gemma4", "add_bos_token": False}, ("BPE", True, False, None, None)),
        ({"kind": "gpt2", "bos_token_id": 9999}, ("BPE", False, False, 11, 11)),
        ({"kind": "llama", "bos_token_id": 5, "eos_token_id": 6, "add_eos_token": True}, ("SPM", True, True, 5, 6)),
        ({"kind": "something"}, ("unknown", False, False, None, None)),
    ],
)
def test_identity_as_llamacpp_loads_it(model: Files, options: dict[str, Any], expected: tuple[object, ...]) -> None:
    t = model(**options).tokenizer
    assert t is not None
    assert (t.type, t.add_bos, t.add_eos, t.bos_id, t.eos_id) == expected


def test_bos_settings(model: Files) -> None:
    verdict = compare(model(add_bos_token=True), model(add_bos_token=False))
    assert verdict.compatible is False
    assert "Only the target adds a BOS" in verdict.reason
    verdict = compare(model(add_bos_token=True, bos_token_id=1), model(add_bos_token=True, bos_token_id=2))
    assert verdict.compatible is False
    assert "BOS ids differ (1 and 2)" in verdict.reason
    verdict = compare(model(add_eos_token=True), model())
    assert verdict.compatible is False
    assert "EOS" in verdict.reason


def test_unused_bos_ids_matter_to_old_builds_only(model: Files) -> None:
    one, two = model(add_bos_token=False, bos_token_id=1), model(add_bos_token=False, bos_token_id=7)
    assert compare(one, two).compatible is True
    assert compare(one, two, build=11434).compatible is True
    assert compare(one, two, build=8800).compatible is False
    assert compare(one, two, build=8900).compatible is None
    report = check_pair(one, two, build=11434)
    assert report.changes == ("builds up to b8895 refuse this pair: they compare ids that are never added",)
    old = check_pair(one, two, build=8000)
    assert old.rule == "bos"
    assert "builds from b8953 on accept this pair" in old.changes


@pytest.mark.parametrize(("more", "now", "then"), [(100, True, True), (101, True, False), (128, True, False),
                                                   (129, False, False)])  # fmt: skip
def test_size_limits(model: Files, more: int, now: bool, then: bool) -> None:
    one, two = model(172 + more), model(172)
    assert compare(one, two).compatible is now
    assert compare(one, two, build=4000).compatible is then
    report = check_pair(two, one)
    assert report.size_difference == more
    assert report.size_limit == 128
    if now and not then:
        assert any("their limit is 100" in change for change in report.changes)


def test_padding_is_told_from_other_entries(model: Files) -> None:
    padded = model(80, changed={i: f"[PAD{i}]" for i in range(64, 80)})
    report = check_pair(padded, model(64))
    assert report.compatible is True
    assert report.padding_only
    assert "16 more padding" in report.reason
    assert not check_pair(model(80), model(64)).padding_only


def test_first_difference_with_both_texts(model: Files) -> None:
    one, two = model(changed={39: "<im_start>", 50: "x"}), model(changed={39: "<unused\x1b>"})
    report = check_pair(one, two)
    assert report.compatible is False
    assert report.rule == "token"
    assert report.first_difference is not None
    assert (report.first_difference.id, report.first_difference.target) == (39, "<im_start>")
    assert "\x1b" not in report.first_difference.draft
    assert report.differences == 2
    assert "Token 39" in report.reason


def test_first_five_ids_are_not_compared(model: Files) -> None:
    assert compare(model(changed={0: "a", 4: "b"}), model()).compatible is True
    assert compare(model(changed={5: "a"}), model()).compatible is False


def test_texts_are_compared_as_c_strings(model: Files) -> None:
    assert compare(model(changed={20: "ab\0c"}), model(changed={20: "ab\0d"})).compatible is True
    assert compare(model(changed={20: ""}), model(changed={20: "[EMPTY_20]"})).compatible is True


def test_byte_order_does_not_matter(model: Files, tmp_path: Path) -> None:
    keys, tensors = llama()
    big = describe_file(write_gguf(tmp_path / "big.gguf", {**keys, **vocabulary()}, tensors, order=">"))
    assert compare(model(), big).compatible is True
    changed = vocabulary(changed={40: "other"})
    other = describe_file(write_gguf(tmp_path / "big2.gguf", {**keys, **changed}, tensors, order=">"))
    verdict = compare(model(), other)
    assert verdict.compatible is False
    assert 'Token 40 is "tok40"' in verdict.reason


def test_real_pair_of_strangers(smollm2: Path, gemma3: Path) -> None:
    report = check_pair(describe_file(gemma3), describe_file(smollm2))
    assert (report.compatible, report.rule) == (False, "type")
    facts = examine(describe_file(gemma3), describe_file(smollm2))
    assert facts is not None
    assert facts.differences > 49_000


def test_names_say_what_they_cannot_know() -> None:
    same = compare(describe_catalogue("qwen3.6-27b"), describe_catalogue("qwen3.5-0.8b"))
    assert same.compatible is None
    assert "Expected to match: both use the qwen3.5 vocabulary" in same.reason
    assert "not compared" in same.reason
    other = compare(describe_catalogue("qwen3-8b"), describe_catalogue("qwen2.5-0.5b"))
    assert other.compatible is None
    assert "Expected to be refused" in other.reason
    assert compare(describe_catalogue("qwen3-8b"), describe_catalogue("gemma-3-1b")).compatible is False
    assert compare(describe_catalogue("qwen3-8b"), describe_catalogue("qwen3.5-0.8b")).compatible is False


def test_no_vocabulary_at_all(model: Files) -> None:
    assert compare(model.write(llama(), {}), model()).compatible is None


def test_drafter_heads_are_judged_by_their_shape() -> None:
    target = describe_catalogue("qwen3-8b")
    fits = check_pair(target, describe_catalogue("qwen3-8b-eagle3"))
    assert (fits.compatible, fits.method) == (True, "draft-eagle3")
    assert any("trimmed vocabulary: 32,000" in note for note in fits.notes)
    wide = check_pair(target, describe_catalogue("qwen3-14b-eagle3"))
    assert (wide.compatible, wide.rule) == (False, "width")
    deaf = check_pair(describe_catalogue("gemma-3-27b"), describe_catalogue("gemma-4-31b-dflash"))
    assert (deaf.compatible, deaf.rule) == (False, "architecture")
    assistant = describe_catalogue("gemma-4-31b-assistant")
    assert check_pair(describe_catalogue("gemma-4-31b"), assistant).compatible is True
    assert check_pair(describe_catalogue("qwen3-8b"), assistant).rule == "architecture"


def test_a_drafter_that_reads_too_deep(model: Files) -> None:
    keys, _ = llama(layers=1, arch="eagle3", target_layers=[0, 1, 9], target_hidden_size=64)
    tensors: list[Tensor] = [("fc.weight", (192, 64), "F16"), *block(0, 64, 64, 32, 128)]
    report = check_pair(model(), model.write((keys, tensors), {}))
    assert (report.compatible, report.rule) == (False, "layers")


def test_recurrent_drafts_and_targets(model: Files) -> None:
    words = vocabulary()
    hybrid, plain = model.write(qwen35(), words), model.write(llama(), words)
    report = check_pair(plain, hybrid)
    assert (report.compatible, report.rule) == (False, "state")
    assert "aborts" in report.reason
    assert check_pair(hybrid, plain).compatible is True
    assert check_pair(hybrid, plain, build=8000).rule == "state"
    both = check_pair(hybrid, model.write(qwen35(), words))
    assert both.compatible is True
    assert any("draft-mtp" in note for note in both.notes)


def test_only_models_can_be_targets(model: Files) -> None:
    drafter = describe_catalogue("gemma-4-31b-assistant")
    with pytest.raises(InputError, match="drafter head"):
        check_pair(drafter, model())
    projector = model.write(({"general.architecture": "clip"}, [("v.x.weight", (8, 8), "F16")]), {})
    with pytest.raises(InputError, match="vision projector"):
        check_pair(model(), projector)
