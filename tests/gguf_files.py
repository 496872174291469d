"""Small GGUF files for tests, right or wrong in any way, without weights and without the gguf package."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from advisor.models.quants import BY_NAME, NUMBERS

U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARR, U64, I64, F64 = range(13)
CODES = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}
Tensor = tuple[str, tuple[int, ...], str]


class Raw:
    """A value written as given: type number and bytes."""

    def __init__(self, kind: int, data: bytes) -> None:
        self.kind, self.data = kind, data


def text(value: str | bytes, order: str = "<") -> bytes:
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    return struct.pack(order + "Q", len(data)) + data


def value_bytes(value: Any, order: str = "<") -> bytes:
    """Type number and value; ints become u32 (i64 when negative or large), lists become arrays."""
    if isinstance(value, Raw):
        return struct.pack(order + "I", value.kind) + value.data
    if isinstance(value, (str, bytes)):
        return struct.pack(order + "I", STR) + text(value, order)
    if isinstance(value, (list, tuple)):
        first = value[0] if value else 0
        if isinstance(first, (str, bytes)):
            body = b"".join(text(v, order) for v in value)
            return struct.pack(order + "IIQ", ARR, STR, len(value)) + body
        kind = BOOL if isinstance(first, bool) else F32 if isinstance(first, float) else I32
        return struct.pack(f"{order}IIQ{len(value)}{CODES[kind]}", ARR, kind, len(value), *value)
    kind = BOOL if isinstance(value, bool) else F32 if isinstance(value, float) else U32
    if kind == U32 and not 0 <= value < 1 << 32:
        kind = I64
    return struct.pack(f"{order}I{CODES[kind]}", kind, value)


def tensor_size(shape: Sequence[int], quant: str) -> int:
    weights = 1
    for n in shape:
        weights *= n
    return weights // BY_NAME[quant].weights * BY_NAME[quant].bytes


def header_bytes(
    keys: dict[str, Any],
    tensors: Sequence[Tensor],
    *,
    version: int = 3,
    order: str = "<",
    alignment: int = 32,
    types: dict[str, int] | None = None,
) -> tuple[bytes, int]:
    """The header with its padding, and the size the tensor data must have. ``types`` overrides type numbers."""
    out = [b"GGUF", struct.pack(order + "IQQ", version, len(tensors), len(keys))]
    for key, value in keys.items():
        out += [text(key, order), value_bytes(value, order)]
    offset = 0
    for name, shape, quant in tensors:
        number = (types or {}).get(name, NUMBERS[quant])
        out.append(text(name, order))
        out.append(struct.pack(f"{order}I{len(shape)}QIQ", len(shape), *shape, number, offset))
        offset += -(-tensor_size(shape, quant) // alignment) * alignment
    head = b"".join(out)
    return head + b"\0" * (-len(head) % alignment), offset


def write_gguf(path: Path, keys: dict[str, Any], tensors: Sequence[Tensor] = (), **options: Any) -> Path:
    """Write a file whose weights are a hole."""
    head, size = header_bytes(keys, tensors, **options)
    with open(path, "wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return path


def vocabulary(
    size: int = 64, *, kind: str = "gpt2", changed: dict[int, str] | None = None, **extra: Any
) -> dict[str, Any]:
    """Tokenizer keys; ``changed`` replaces tokens by id, ``extra`` adds keys such as ``add_bos_token``."""
    tokens = [(changed or {}).get(i, f"tok{i}") for i in range(size)]
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * size,
    }
    if kind == "gpt2":
        keys["tokenizer.ggml.pre"] = "gpt-2"
        keys["tokenizer.ggml.merges"] = ["t o", "to k"]
    return {**keys, **{f"tokenizer.ggml.{k}": v for k, v in extra.items()}}


def llama(
    layers: int = 2,
    width: int = 64,
    vocab: int = 64,
    arch: str = "llama",
    quant: str = "F16",
    tied: bool = False,
    **keys: Any,
) -> tuple[dict[str, Any], list[Tensor]]:
    """Keys and tensors of a small dense model; more keys (without prefix) by keyword, dots as two underscores."""
    heads, kv, size, feed = 4, 2, width // 4, 2 * width
    found: dict[str, Any] = {
        "general.architecture": arch,
        f"{arch}.block_count": layers,
        f"{arch}.embedding_length": width,
        f"{arch}.context_length": 2048,
        f"{arch}.feed_forward_length": feed,
        f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        **{f"{arch}.{k.replace('__', '.')}": v for k, v in keys.items()},
    }
    tensors: list[Tensor] = [("token_embd.weight", (width, vocab), quant), ("output_norm.weight", (width,), "F32")]
    if not tied:
        tensors.append(("output.weight", (width, vocab), quant))
    for i in range(layers):
        tensors += block(i, width, heads * size, kv * size, feed, quant)
    return found, tensors


def block(i: int, width: int, q: int, kv: int, feed: int, quant: str = "F16") -> list[Tensor]:
    """One Llama block."""
    p = f"blk.{i}."
    return [
        (p + "attn_norm.weight", (width,), "F32"),
        (p + "attn_q.weight", (width, q), quant),
        (p + "attn_k.weight", (width, kv), quant),
        (p + "attn_v.weight", (width, kv), quant),
        (p + "attn_output.weight", (q, width), quant),
        (p + "ffn_norm.weight", (width,), "F32"),
        (p + "ffn_gate.weight", (width, feed), quant),
        (p + "ffn_up.weight", (width, feed), quant),
        (p + "ffn_down.weight", (feed, width), quant),
    ]
