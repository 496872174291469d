"""The header of a GGUF file, read with bounds: keys, tensor table, where the vocabulary lies. Never the weights.

Layout (ggml ``docs/gguf.md``): magic, version, tensor count, key count, keys, tensor table, padding, tensor data.
Both byte orders and versions 2 and 3 are read. Every count and length is checked against the bytes that are
left before anything is allocated, string arrays are skipped by arithmetic, and a header may not exceed
:data:`MAX_HEADER` bytes, so a hostile file costs bounded time and memory.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import stat
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from advisor.errors import ModelFileError
from advisor.models.quants import FORMATS, REMOVED, type_name
from advisor.text import clean

MAX_HEADER = 64 << 20
"""Largest header that is read [bytes]; real ones reach about 20 MB (two 260k-token vocabularies with merges)."""
MAX_KEYS = 20_000
MAX_TENSORS = 200_000
MAX_STRINGS = 3_000_000
"""Strings in all arrays together: bounds the time, since each costs one step of a Python loop."""
KEPT_ELEMENTS = 8192
"""Longer numeric arrays (scores, token types) are skipped."""

_SCALARS = {0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4), 6: ("f", 4), 7: ("?", 1),
            10: ("Q", 8), 11: ("q", 8), 12: ("d", 8)}  # fmt: skip
_STRING, _ARRAY = 8, 9
_LEAST_ROW = 32
"""Weights of the smallest block of a quantised type."""
_TOKENS = "tokenizer.ggml.tokens"


class StringArray(NamedTuple):
    """A string array that was skipped: its length and its byte span in the file (each string: u64 length, bytes)."""

    length: int
    start: int
    end: int


class NumberArray(NamedTuple):
    """A long numeric array that was skipped."""

    length: int
    start: int
    end: int


Value = int | float | bool | str | tuple[int | float | bool, ...] | StringArray | NumberArray


class Tensor(NamedTuple):
    """One row of the tensor table. ``shape`` has the row length first, ``offset`` counts from the data section.

    ``nbytes`` follows from the type; for unknown types from the distance to the next tensor.
    """

    name: str
    shape: tuple[int, ...]
    type: int
    quant: str
    offset: int
    nbytes: int

    @property
    def parameters(self) -> int:
        """Weights in the tensor."""
        product = 1
        for n in self.shape:
            product *= n
        return product

    @property
    def rows(self) -> int:
        """Outputs, if this is a matrix: rows shorter than a block of weights are filters, not multiplied as one."""
        if len(self.shape) < 2 or self.shape[0] < _LEAST_ROW:
            return 0
        return self.parameters // self.shape[0]


@dataclass(frozen=True)
class Header:
    """What stands before the weights. ``size`` is that of the file(s) [bytes], ``files`` where it was read."""

    name: str
    version: int
    big_endian: bool
    keys: dict[str, Value]
    tensors: tuple[Tensor, ...]
    data_offset: int
    size: int
    files: tuple[Path, ...] = ()
    tokens: StringArray | None = None
    token_digest: str | None = None
    notes: tuple[str, ...] = field(default=())

    def text(self, key: str) -> str | None:
        """A string key, or None if absent or of another type."""
        value = self.keys.get(key)
        return value if isinstance(value, str) else None

    def integer(self, key: str) -> int | None:
        """An integer key (of an array: its first element), or None."""
        value = self.keys.get(key)
        if isinstance(value, tuple) and not isinstance(value, (StringArray, NumberArray)) and value:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        return int(value) if value == value and abs(value) < 1e18 else None

    def flag(self, key: str) -> bool | None:
        """A boolean key, or None."""
        value = self.keys.get(key)
        return value if isinstance(value, bool) else None

    def integers(self, key: str, count: int) -> tuple[int, ...] | None:
        """A key that may be one number for all or one per layer, as ``count`` numbers; None if absent.

        An array that is too short is continued with its last element (files exist whose arrays skip layers).
        """
        value = self.keys.get(key)
        if isinstance(value, (int, float)):
            one = self.integer(key)
            return None if one is None else (one,) * count
        if isinstance(value, tuple) and not isinstance(value, (StringArray, NumberArray)) and value:
            numbers = tuple(int(v) if v == v and abs(v) < 1e18 else 0 for v in value[:count])
            return numbers + (numbers[-1],) * (count - len(numbers))
        return None


class Source(Protocol):
    """Bytes that can be fetched piece by piece: a file, or a resource on a server."""

    @property
    def size(self) -> int:
        """Total size [bytes]."""

    @property
    def block(self) -> int:
        """How much to fetch at once [bytes]."""

    def read(self, start: int, count: int) -> bytes:
        """Bytes from ``start``; fewer than ``count`` only at the end."""


class FileSource:
    """A regular file, read without mapping it: a map of a file that shrinks meanwhile kills the process."""

    block = 1 << 20

    def __init__(self, path: Path) -> None:
        self.path = path
        shown = clean(path.name)
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                raise ModelFileError(f"{shown} is not a regular file.", "Give the path of a .gguf file.")
            self.size = status.st_size
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed by close()
        except OSError as error:
            raise unreadable(path, error) from error
        except ValueError as error:  # a NUL in the name
            raise ModelFileError(f"{shown} is not a file name.") from error

    def read(self, start: int, count: int) -> bytes:
        """Bytes from ``start``.

        Raises:
            ModelFileError: the file cannot be read.
        """
        try:
            self._file.seek(start)
            data = self._file.read(count)
            while data and len(data) < count and (more := self._file.read(count - len(data))):
                data += more
        except OSError as error:
            raise unreadable(self.path, error) from error
        return data

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


def unreadable(path: Path, error: OSError) -> ModelFileError:
    """An operating system's complaint as one sentence."""
    shown = clean(str(path))
    if isinstance(error, FileNotFoundError):
        if path.is_symlink():
            return ModelFileError(f"{shown} is a link to a file that does not exist.", "Download the model again.")
        return ModelFileError(f"There is no file {shown}.")
    if isinstance(error, PermissionError):
        return ModelFileError(f"{shown} may not be read by this user.")
    return ModelFileError(f"{shown} cannot be read: {clean(error.strerror or str(error))}.")


def sniff(start: bytes, name: str, size: int) -> None:
    """Say what a file really is when it is not GGUF.

    Args:
        start: the first bytes of the file, some hundred of them.
        name: how to call the file.
        size: its size [bytes].

    Raises:
        ModelFileError: always, unless ``start`` begins with the GGUF magic.
    """
    if start[:4] == b"GGUF":
        return
    shown = clean(name)
    if size == 0:
        raise ModelFileError(f"{shown} is empty (0 bytes).", "Download it again.")
    if start.startswith(b"version https://git-lfs"):
        stated = re.search(rb"\nsize (\d{1,18})", start)
        what = f" for a file of {int(stated.group(1)):,} bytes" if stated else ""
        raise ModelFileError(f"{shown} is a Git LFS pointer{what}, not the file itself.", "Run `git lfs pull`.")
    head = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if head[:1] == b"<":
        title = re.search(rb"<title[^>]*>([^<]*)<", start, re.IGNORECASE)
        quoted = f' titled "{clean(title.group(1).decode("utf-8", "replace").strip(), 60)}"' if title else ""
        raise ModelFileError(
            f"{shown} is a web page{quoted} saved under the name of a model.",
            "On Hugging Face download from the /resolve/ address, not /blob/.",
        )
    if head[:1] in (b"{", b"["):
        said = re.search(rb'"(?:error|message|detail)"\s*:\s*"([^"]{1,120})', start)
        quoted = f' saying "{clean(said.group(1).decode("utf-8", "replace"), 100)}"' if said else ""
        raise ModelFileError(f"{shown} is JSON text{quoted}, not a model.", "Download the model file itself.")
    magic = start[:4]
    old = {b"lmgg": "GGML", b"fmgg": "GGMF", b"tjgg": "GGJT", b"algg": "GGLA", b"nsgg": "GGSN"}
    if magic in old or magic[::-1] in old:
        called = old.get(magic) or old[magic[::-1]]
        what = "a LoRA adapter" if called == "GGLA" else "a session" if called == "GGSN" else "a model"
        raise ModelFileError(
            f"{shown} is {what} in the old {called} format of 2023, which llama.cpp no longer loads.",
            "Fetch a GGUF of the model.",
        )
    if magic == b"FUGG":
        raise ModelFileError(f"{shown} has its bytes swapped throughout.", "Download it again.")
    if magic[:2] == b"PK" or magic[:2] == b"\x80\x02":
        raise ModelFileError(f"{shown} is a PyTorch checkpoint or archive, not GGUF.", "Fetch a GGUF of the model.")
    if len(start) > 9 and start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 32:
        raise ModelFileError(f"{shown} is a safetensors file, not GGUF.", "Convert it, or fetch a GGUF of the model.")
    if not start.strip(b"\0"):
        raise ModelFileError(f"{shown} begins with zeros: an unfinished download.", "Download it again.")
    if all(32 <= b < 127 or b in b"\r\n\t" for b in start):
        line = clean(start.decode("ascii", "replace").strip().splitlines()[0] if start.strip() else "", 80)
        raise ModelFileError(f'{shown} is a text file ("{line}"), not a model.', "Download the model file itself.")
    raise ModelFileError(f"{shown} is not a GGUF file (it begins with {magic.hex(' ')}).")


class _Reader:
    """A growing copy of the start of a source, with a position."""

    def __init__(self, source: Source, name: str) -> None:
        self.source, self.name = source, clean(name)
        self.buffer = bytearray()
        self.position = 0
        self.order = "<"
        self.strings = 0

    def fail(self, what: str, hint: str = "The file is damaged: download it again.") -> NoReturn:
        raise ModelFileError(f"{self.name}: {what}.", hint)

    def need(self, end: int) -> None:
        """Have the bytes up to ``end``."""
        have = len(self.buffer)
        if end <= have:
            return
        size = self.source.size
        if end > size:
            self.short(end - size, f"a length in the header reaches {end - size:,} bytes past the end of the file")
        if end > MAX_HEADER:
            self.fail(f"its header is longer than {MAX_HEADER >> 20} MiB", "No real model needs that.")
        while have < end:
            data = self.source.read(have, min(max(end - have, self.source.block), size - have))
            if not data:
                self.fail(f"the file ends inside its header, after {have:,} bytes", "Download it again.")
            self.buffer += data
            have = len(self.buffer)

    def short(self, wanted: int, absurd: str) -> NoReturn:
        """The file is too small for what its header says: cut off, or, if no real header wants so much, hostile."""
        if wanted > MAX_HEADER:
            self.fail(absurd)
        self.fail(f"the file ends inside its header, after {self.source.size:,} bytes", "Download it again.")

    def number(self, code: str, width: int) -> int | float | bool:
        start = self.position
        self.need(start + width)
        self.position = start + width
        value: int | float | bool = struct.unpack_from(self.order + code, self.buffer, start)[0]
        return value

    def integer(self, code: str = "Q", width: int = 8) -> int:
        return int(self.number(code, width))

    def string(self, what: str) -> str:
        length = self.integer()
        start = self.position
        if length > self.source.size - start:
            self.short(length, f"the length of {what} ({length:,}) reaches past the end of the file")
        self.need(start + length)
        self.position = start + length
        return self.buffer[start : start + length].decode("utf-8", "replace")

    def count(self, what: str, smallest: int, most: int) -> int:
        """A count of things that take at least ``smallest`` bytes each."""
        n = self.integer()
        if n * smallest > self.source.size - self.position:
            self.short(n * smallest, f"it claims {n:,} {what}, more than its {self.source.size:,} bytes can hold")
        if n > most:
            self.fail(f"it claims {n:,} {what}", "No real model has so many.")
        return n

    def value(self, key: str) -> Value:
        kind = self.integer("I", 4)
        if kind == _STRING:
            return self.string(f"the value of {clean(key, 80)}")
        if kind == _ARRAY:
            return self.array(key)
        if kind not in _SCALARS:
            self.fail(f"the value of {clean(key, 80)} has the unknown type {kind}")
        return self.number(*_SCALARS[kind])

    def array(self, key: str) -> Value:
        kind = self.integer("I", 4)
        if kind == _STRING:
            n = self.count(f"strings in {clean(key, 80)}", 8, MAX_STRINGS - self.strings)
            self.strings += n
            start = self.position
            self.skip_strings(n)
            return StringArray(n, start, self.position)
        if kind not in _SCALARS:
            self.fail(f"the array {clean(key, 80)} has the unknown element type {kind}")
        code, width = _SCALARS[kind]
        n = self.count(f"elements in {clean(key, 80)}", width, MAX_HEADER)
        start = self.position
        self.position = end = start + n * width
        self.need(end)
        if n > KEPT_ELEMENTS:
            return NumberArray(n, start, end)
        return tuple(struct.unpack_from(f"{self.order}{n}{code}", self.buffer, start))

    def skip_strings(self, count: int) -> None:
        buffer, have, position = self.buffer, len(self.buffer), self.position
        unpack = struct.Struct(self.order + "Q").unpack_from
        for _ in range(count):
            after = position + 8
            if after > have:
                self.need(after)
                have = len(buffer)
            position = after + unpack(buffer, position)[0]
        self.need(position)
        self.position = position


def parse(source: Source, name: str, complete: bool = True) -> Header:
    """Read the header from any source.

    Args:
        source: where the bytes come from.
        name: how to call it in messages.
        complete: demand that all tensors lie inside the source; False for a copy of a header alone.

    Raises:
        ModelFileError: not GGUF, damaged, truncated, or beyond the limits of this module.
    """
    reader = _Reader(source, name)
    if source.size == 0:
        sniff(b"", name, 0)
    reader.need(min(source.size, 8))
    if reader.buffer[:4] != b"GGUF":
        reader.need(min(source.size, 1024))
        sniff(bytes(reader.buffer[:1024]), name, source.size)
    reader.position = 4
    version = reader.integer("I", 4)
    if version and version & 0xFFFF == 0:
        reader.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version == 1:
        reader.fail("GGUF version 1, of August 2023, is no longer loaded by llama.cpp", "Fetch a newer conversion.")
    if version not in (2, 3):
        reader.fail(f"GGUF version {version} is unknown (2 and 3 are)", "It is damaged or newer than this program.")
    n_tensors = reader.count("tensors", 24, MAX_TENSORS)
    n_keys = reader.count("keys", 13, MAX_KEYS)
    keys: dict[str, Value] = {}
    for _ in range(n_keys):
        key = reader.string("a key")
        if key in keys:
            reader.fail(f"the key {clean(key, 80)} appears twice")
        keys[key] = reader.value(key)
    rows = _table(reader, n_tensors)
    alignment = keys.get("general.alignment", 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 0 < alignment <= 1 << 16:
        reader.fail("general.alignment is not a number from 1 to 65536")
    if alignment & (alignment - 1):
        reader.fail(f"general.alignment is {alignment}, not a power of two")
    data_offset = -(-reader.position // alignment) * alignment
    tensors, notes = _sized(reader, rows, alignment, data_offset, complete)
    tokens = keys.get(_TOKENS)
    digest = _digest(reader, tokens) if isinstance(tokens, StringArray) else None
    if reader.order == ">":
        notes.append("big-endian file: llama.cpp on this kind of machine will not load it")
    return Header(
        name=name,
        version=version,
        big_endian=reader.order == ">",
        keys=keys,
        tensors=tensors,
        data_offset=data_offset,
        size=source.size,
        tokens=tokens if isinstance(tokens, StringArray) else None,
        token_digest=digest,
        notes=tuple(notes),
    )


def _table(reader: _Reader, count: int) -> list[tuple[str, tuple[int, ...], int, int]]:
    """Names, shapes, types, offsets."""
    rows = []
    seen = set()
    for _ in range(count):
        name = reader.string("a tensor name")
        if name in seen:
            reader.fail(f"the tensor {clean(name, 80)} appears twice")
        seen.add(name)
        dimensions = reader.integer("I", 4)
        if dimensions > 4:
            reader.fail(f"the tensor {clean(name, 80)} has {dimensions} dimensions; ggml allows 4")
        start = reader.position
        end = start + 8 * dimensions + 12
        reader.need(end)
        reader.position = end
        *shape, kind, offset = struct.unpack_from(f"{reader.order}{dimensions}QIQ", reader.buffer, start)
        product = 1
        for n in shape:
            product *= n
        if product >= 1 << 62:
            reader.fail(f"the tensor {clean(name, 80)} claims {product:.1e} weights")
        rows.append((name, tuple(shape), kind, offset))
    return rows


def _sized(
    reader: _Reader,
    rows: list[tuple[str, tuple[int, ...], int, int]],
    alignment: int,
    data_offset: int,
    complete: bool,
) -> tuple[tuple[Tensor, ...], list[str]]:
    """Bytes of every tensor, and whether all of them are in the file."""
    size = reader.source.size
    order = sorted(range(len(rows)), key=lambda i: rows[i][3])
    following = {i: rows[j][3] for i, j in itertools.pairwise(order)}
    tensors: list[Tensor | None] = [None] * len(rows)
    expected, needed, total, contiguous, unknown = 0, 0, 0, True, set()
    for i in order:
        name, shape, kind, offset = rows[i]
        block = FORMATS.get(kind)
        if block is None:
            unknown.add(kind)
            nbytes = max(0, following.get(i, max(size - data_offset, offset)) - offset)
            expected = offset
        else:
            row = shape[0] if shape else 1
            if row % block.weights:
                reader.fail(
                    f"rows of {clean(name, 80)} have {row:,} weights, which {block.name} (blocks of {block.weights}) "
                    "cannot store"
                )
            nbytes = block.bytes * (_product(shape) // block.weights)
        contiguous = contiguous and offset == expected
        expected = -(-(offset + nbytes) // alignment) * alignment
        needed = max(needed, data_offset + offset + nbytes)
        total += nbytes
        tensors[i] = Tensor(name, shape, kind, type_name(kind), offset, nbytes)
    if needed > size and complete:
        if contiguous:
            reader.fail(
                f"the download is incomplete: {needed - size:,} of {needed:,} bytes are missing", "Download it again."
            )
        reader.fail(f"a tensor lies {needed - size:,} bytes past the end of the file")
    if total > size and complete:
        reader.fail("its tensors overlap: together they are larger than the file")
    notes = []
    for kind in sorted(unknown):
        if kind in REMOVED:
            notes.append(f"quantisation {type_name(kind)} was removed from llama.cpp: fetch a newer file")
        else:
            origin = "ik_llama.cpp" if kind > 100 else "newer than this program"
            notes.append(f"quantisation {type_name(kind)} is unknown to llama.cpp b11434 ({origin}): sized by offsets")
    if not contiguous and not unknown:
        notes.append("its tensors do not lie back to back: llama.cpp will refuse it")
    return tuple(t for t in tensors if t is not None), notes


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for n in shape:
        product *= n
    return product


def _digest(reader: _Reader, tokens: StringArray) -> str:
    """SHA-256 over (u64 little-endian length, bytes) of every token."""
    span = reader.buffer[tokens.start : tokens.end]
    if reader.order == ">":
        position = 0
        while position < len(span):
            length = int.from_bytes(span[position : position + 8], "big")
            span[position : position + 8] = length.to_bytes(8, "little")
            position += 8 + length
    return hashlib.sha256(span).hexdigest()


def read_header(path: str | os.PathLike[str], complete: bool = True) -> Header:
    """The header of one GGUF file (one shard, if it is part of a set).

    ``complete`` False accepts a file that holds nothing but the header.

    Raises:
        ModelFileError: no such file, not GGUF, damaged, truncated or hostile: one sentence with the cause.
    """
    place = Path(path)
    source = FileSource(place)
    try:
        header = parse(source, place.name, complete)
    finally:
        source.close()
    return replace(header, files=(place,))


def read_strings(path: Path, array: StringArray, big_endian: bool = False) -> list[bytes]:
    """The texts of a string array found by :func:`parse`, e.g. all tokens.

    Raises:
        ModelFileError: the file changed meanwhile or cannot be read.
    """
    source = FileSource(path)
    try:
        data = source.read(array.start, array.end - array.start)
    finally:
        source.close()
    texts, position = [], 0
    unpack = struct.Struct(">Q" if big_endian else "<Q").unpack_from
    try:
        for _ in range(array.length):
            after = position + 8
            position = after + unpack(data, position)[0]
            texts.append(data[after:position])
    except struct.error as error:
        raise ModelFileError(f"{clean(path.name)} changed while it was read.", "Try again.") from error
    return texts
