"""The header parser: right on good files, one sentence on bad ones, bounded on hostile ones."""

from __future__ import annotations

import hashlib
import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf_files import ARR, STR, U8, U32, Raw, header_bytes, llama, tensor_size, text, vocabulary, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.errors import EXIT_INPUT, ModelFileError
from advisor.models.gguf import MAX_HEADER, Header, NumberArray, StringArray, parse, read_header, read_strings


class Memory:
    """A source that counts what is read of it, and may claim to be larger than it is."""

    block = 4096

    def __init__(self, data: bytes, size: int | None = None) -> None:
        self.data, self.size, self.taken = data, len(data) if size is None else size, 0

    def read(self, start: int, count: int) -> bytes:
        part = self.data[start : start + count]
        if start + count > len(self.data) and self.size > len(self.data):
            part = part.ljust(min(count, self.size - start), b"\0")
        self.taken += len(part)
        return part


def read_bytes(data: bytes, name: str = "model.gguf") -> Header:
    return parse(Memory(data), name)


def small(**options: object) -> bytes:
    keys, tensors = llama()
    head, size = header_bytes({**keys, **vocabulary()}, tensors, **options)  # type: ignore[arg-type]
    return head + bytes(size)


# -- good files ---------------------------------------------------------------------------------------------------


def test_agrees_with_the_reference_reader(smollm2: Path) -> None:
    from gguf import GGUFReader

    header, oracle = read_header(smollm2), GGUFReader(smollm2)
    fields = {k: f for k, f in oracle.fields.items() if not k.startswith("GGUF.")}
    assert set(fields) == set(header.keys)
    for key, field in fields.items():
        ours = header.keys[key]
        if isinstance(ours, (StringArray, NumberArray)):
            assert ours.length == len(field.data)
        elif isinstance(ours, float):
            assert ours == pytest.approx(field.contents())
        else:
            assert ours == field.contents()
    theirs = {t.name: (tuple(int(n) for n in t.shape), t.tensor_type.name, int(t.n_bytes)) for t in oracle.tensors}
    assert {t.name: (t.shape, t.quant, t.nbytes) for t in header.tensors} == theirs
    assert header.data_offset == oracle.data_offset
    assert header.tokens is not None
    texts = read_strings(smollm2, header.tokens)
    assert [t.decode() for t in texts[:500]] == oracle.fields["tokenizer.ggml.tokens"].contents()[:500]


def test_token_digest_is_over_lengths_and_bytes() -> None:
    keys, tensors = llama()
    header = read_bytes(small())
    expected = hashlib.sha256(b"".join(text(f"tok{i}") for i in range(64))).hexdigest()
    assert header.token_digest == expected
    assert "llama.block_count" in keys
    assert len(header.tensors) == len(tensors)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("order", ["<", ">"])
def test_versions_and_byte_orders(version: int, order: str) -> None:
    plain, header = read_bytes(small()), read_bytes(small(version=version, order=order))
    assert header.version == version
    assert header.big_endian == (order == ">")
    assert header.token_digest == plain.token_digest
    assert header.tensors == plain.tensors
    assert {k: v for k, v in header.keys.items() if not isinstance(v, StringArray)} == {
        k: v for k, v in plain.keys.items() if not isinstance(v, StringArray)
    }
    assert any("big-endian" in note for note in header.notes) == header.big_endian


def test_token_texts_of_both_byte_orders(tmp_path: Path) -> None:
    keys, tensors = llama()
    for order in "<>":
        path = write_gguf(tmp_path / f"a{ord(order)}.gguf", {**keys, **vocabulary(40)}, tensors, order=order)
        header = read_header(path)
        assert header.tokens is not None
        assert read_strings(path, header.tokens, header.big_endian) == [f"tok{i}".encode() for i in range(40)]


def test_large_vocabulary_costs_little_memory(gemma3: Path) -> None:
    tracemalloc.start()
    header = read_header(gemma3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert header.tokens is not None
    assert header.tokens.length == 262_144
    assert peak < 30e6
    assert header.data_offset < 7e6


def test_reads_no_further_than_the_header_and_one_block() -> None:
    data = small()
    source = Memory(data, size=1 << 40)
    # a tensor may lie far behind: here the file is simply larger than its tensors
    header = parse(source, "big.gguf")
    assert header.data_offset <= source.taken <= header.data_offset + source.block


def test_names_with_spaces_and_other_alphabets(tmp_path: Path) -> None:
    keys, tensors = llama()
    folder = tmp_path / "mein Ordner" / "模型"
    folder.mkdir(parents=True)
    path = write_gguf(folder / "Größe 模型 v1.gguf", {**keys, **vocabulary()}, tensors)
    assert read_header(path).files == (path,)


def test_unknown_types_are_sized_by_offsets() -> None:
    keys, tensors = llama()
    foreign = {"blk.0.ffn_up.weight": 153, "blk.1.ffn_down.weight": 222}
    head, size = header_bytes(keys, tensors, types=foreign)
    header = read_bytes(head + bytes(size))
    by_name = {t.name: t for t in header.tensors}
    assert by_name["blk.0.ffn_up.weight"].nbytes == tensor_size((64, 128), "F16")
    assert by_name["blk.0.ffn_up.weight"].quant == "IQ2_KT"
    assert by_name["blk.1.ffn_down.weight"].nbytes == tensor_size((128, 64), "F16")
    assert sum("unknown to llama.cpp" in note for note in header.notes) == 2


def test_tensors_that_do_not_touch_are_noted() -> None:
    keys, tensors = llama(layers=1)
    head, size = header_bytes(keys, tensors)
    moved = head.replace(struct.pack("<IQ", 0, tensor_size((64, 64), "F16")), struct.pack("<IQ", 0, 8192 + 64), 1)
    header = read_bytes(head + bytes(size))
    assert not header.notes
    assert moved == head or any("back to back" in n for n in read_bytes(moved + bytes(size + 128)).notes)


# -- never fooled -------------------------------------------------------------------------------------------------

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 4920739232\n"
KEYS, TENSORS = llama()
GOOD, DATA = header_bytes({**KEYS, **vocabulary()}, TENSORS)


def bad_key(kind: int, body: bytes) -> bytes:
    return header_bytes({"general.architecture": "llama", "x": Raw(kind, body)}, ())[0]


def count_header(tensors: int, keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + bytes(64)


def one_tensor(dimensions: int, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + text("t")
    return head + struct.pack(f"<I{len(shape)}QIQ", dimensions, *shape, kind, offset) + bytes(4096)


BAD = {
    "empty": (b"", "is empty"),
    "lfs pointer": (LFS, r"Git LFS pointer for a file of 4,920,739,232 bytes.*git lfs pull"),
    "html": (b"<!DOCTYPE html><html><title>Hugging Face \x1b[31m</title>", r"web page titled .Hugging Face.*/resolve/"),
    "html after spaces": (b"\xef\xbb\xbf \n<html>", "web page"),
    "json": (b'{"error":"Access to model x is restricted"}', r"JSON text saying \"Access to model x is restricted\""),
    "json list": (b"[1, 2, 3]", "JSON text"),
    "plain text": (b"Entry not found\n", r'text file \("Entry not found"\)'),
    "ggjt": (struct.pack("<I", 0x67676A74) + bytes(64), "old GGJT format of 2023"),
    "ggml": (struct.pack("<I", 0x67676D6C) + bytes(64), "old GGML format"),
    "ggla": (struct.pack("<I", 0x67676C61) + bytes(64), "LoRA adapter in the old GGLA format"),
    "zip": (b"PK\x03\x04" + bytes(60), "PyTorch checkpoint"),
    "pickle": (b"\x80\x02}q" + bytes(60), "PyTorch checkpoint"),
    "safetensors": (struct.pack("<Q", 500) + b'{"__metadata__"', "safetensors"),
    "zeros": (bytes(4096), "begins with zeros"),
    "noise": (os.urandom(4).replace(b"G", b"H") + b"\xff\xfe\x01\x02" * 9, "not a GGUF file"),
    "magic only": (b"GGUF", "ends inside its header"),
    "version 0": (b"GGUF" + bytes(40), "version 0 is unknown"),
    "version 1": (b"GGUF" + struct.pack("<III", 1, 0, 0), "GGUF version 1.*no longer loaded"),
    "version 99": (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99 is unknown"),
    "2^60 tensors": (count_header(1 << 60, 0), "claims .* tensors, more than"),
    "2^60 keys": (count_header(0, 1 << 60), "claims .* keys, more than"),
    "string of 2^40": (bad_key(STR, struct.pack("<Q", 1 << 40)), "reaches past the end"),
    "string of 2^64-1": (bad_key(STR, struct.pack("<Q", (1 << 64) - 1)), "reaches past the end"),
    "key of 2^63": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 63) + bytes(32), "length of a key .* reaches past"),
    "2^40 strings": (bad_key(ARR, struct.pack("<IQ", STR, 1 << 40)), "claims .* strings in x, more than"),
    "2^30 bytes": (bad_key(ARR, struct.pack("<IQ", U8, 1 << 30)), "claims .* elements in x, more than"),
    "string array with a wild length": (
        bad_key(ARR, struct.pack("<IQQ", STR, 2, 1 << 62) + bytes(64)), "past the end of the file",
    ),
    "nested array": (bad_key(ARR, struct.pack("<IQ", ARR, 1) + bytes(32)), "unknown element type 9"),
    "value type 77": (bad_key(77, bytes(16)), "unknown type 77"),
    "alignment 0": (header_bytes({"general.alignment": 0}, ())[0], "alignment is not a number"),
    "alignment 2^30": (header_bytes({"general.alignment": 1 << 30}, ())[0], "alignment is not a number"),
    "alignment 48": (header_bytes({"general.alignment": 48}, ())[0], "not a power of two"),
    "alignment text": (header_bytes({"general.alignment": "32"}, ())[0], "alignment is not a number"),
    "a million dimensions": (one_tensor(1_000_000, ()), "1000000 dimensions"),
    "five dimensions": (one_tensor(5, (1,) * 5), "5 dimensions"),
    "2^63 x 2 weights": (one_tensor(2, (1 << 63, 2)), "claims .* weights"),
    "product that wraps": (one_tensor(2, ((1 << 42) + 1, 1 << 22)), "claims .* weights"),
    "odd row": (one_tensor(2, (100, 2), kind=12), "rows of t have 100 weights, which Q4_K .* cannot store"),
    "offset past the end": (one_tensor(1, (8,), offset=1 << 40), "lies .* bytes past the end"),
    "truncated weights": (GOOD + bytes(DATA - 1000), r"incomplete: 1,000 of [\d,]+ bytes are missing"),
    "half a header": (GOOD[: len(GOOD) // 2], "ends inside its header"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_files_get_one_sentence(case: str, tmp_path: Path) -> None:
    data, expected = BAD[case]
    path = tmp_path / "bad\x1b[2Jname.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=expected) as caught:
        read_header(path)
    said = str(caught.value)
    assert caught.value.exit_code == EXIT_INPUT
    assert "\x1b" not in said
    assert "\n" not in said
    assert len(said) < 400


def test_overlapping_tensors() -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 50, 0)
    for i in range(50):
        head += text(f"t{i}") + struct.pack("<IQIQ", 1, 1000, 0, 0)
    with pytest.raises(ModelFileError, match="overlap"):
        read_bytes(head + bytes(8192))


def test_doubled_keys_and_tensors() -> None:
    body = text("a") + struct.pack("<II", U32, 1)
    with pytest.raises(ModelFileError, match="key a appears twice"):
        read_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + body + body)
    row = text("t") + struct.pack("<IQIQ", 1, 8, 0, 0)
    with pytest.raises(ModelFileError, match="tensor t appears twice"):
        read_bytes(b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + row + row + bytes(256))


@pytest.mark.parametrize("what", ["folder", "dangling link", "loop", "missing", "fifo", "forbidden", "zero byte"])
def test_paths_that_are_no_files(what: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    if what == "folder":
        path.mkdir()
    elif what == "dangling link":
        path.symlink_to(tmp_path / "gone")
    elif what == "loop":
        path.symlink_to(path)
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "forbidden":
        path.write_bytes(GOOD + bytes(DATA))
        path.chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("this user may read everything")
    elif what == "zero byte":
        path = Path("a\0b.gguf")
    with pytest.raises(ModelFileError):
        read_header(path)


def test_hostile_headers_are_not_read_to_the_end() -> None:
    """A sparse file of a terabyte may claim a terabyte of strings: at most MAX_HEADER bytes are looked at."""
    body = text("tokenizer.ggml.tokens") + struct.pack("<IIQ", ARR, STR, 1_000_000)
    source = Memory(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body + struct.pack("<Q", 1 << 39), size=1 << 40)
    with pytest.raises(ModelFileError, match="longer than 64 MiB"):
        parse(source, "hostile.gguf")
    assert source.taken <= MAX_HEADER
    body = text("x") + struct.pack("<IIQ", ARR, STR, 1 << 30)
    source = Memory(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + body, size=1 << 40)
    with pytest.raises(ModelFileError, match="claims"):
        parse(source, "hostile.gguf")
    assert source.taken <= source.block


# -- fuzzing ------------------------------------------------------------------------------------------------------


def only_a_sentence(data: bytes) -> None:
    said, size = "", 0
    try:
        size = sum(t.nbytes for t in read_bytes(data).tensors)
    except ModelFileError as error:
        said = str(error)
    assert "\n" not in said
    assert size <= len(data)


@settings(max_examples=150, deadline=2000)
@given(st.integers(0, len(GOOD) + DATA - 1))
def test_every_truncation_is_noticed(cut: int) -> None:
    with pytest.raises(ModelFileError):
        read_bytes((GOOD + bytes(DATA))[:cut])


@settings(max_examples=300, deadline=2000, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=12))
def test_flipped_bytes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD + bytes(DATA))
    for place, byte in changes:
        data[place] = byte
    only_a_sentence(bytes(data))


@settings(max_examples=300, deadline=2000)
@given(
    place=st.integers(8, len(GOOD) - 8),
    value=st.sampled_from([0, 1, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, 1 << 63, (1 << 64) - 1]),
)
def test_wild_numbers_anywhere(place: int, value: int) -> None:
    only_a_sentence(GOOD[:place] + struct.pack("<Q", value) + GOOD[place + 8 :] + bytes(DATA))


@settings(max_examples=300, deadline=2000)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_behind_a_good_start(data: bytes) -> None:
    only_a_sentence(b"GGUF" + struct.pack("<I", 3) + data)
    only_a_sentence(data)
