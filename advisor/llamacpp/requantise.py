"""Writing the same model in another type: how a demo or a test gets a target from a small draft."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from advisor.errors import InputError

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0")


def write_copy(
    source: Path, destination: Path, ggml_type: str = "F32", progress: Callable[[float], None] | None = None
) -> Path:
    """Write ``source`` with every matrix dequantised and stored as ``ggml_type``.

    Vectors (norms, biases) become F32 as in any converted file. The text the model writes is the same up to
    rounding, so such a copy is a target that its quantised original drafts for with high acceptance.

    Args:
        source: a GGUF file.
        destination: written whole or not at all (a temporary neighbour is renamed at the end).
        ggml_type: one of ``TYPES``.
        progress: called with the finished share, 0..1.

    Raises:
        InputError: type not offered, or the source cannot be read.
    """
    if ggml_type not in TYPES:
        raise InputError(f"Cannot write {ggml_type} copies.", f"Use one of {', '.join(TYPES)}.")
    import gguf
    import numpy as np

    try:
        reader = gguf.GGUFReader(source)
    except (OSError, ValueError) as error:
        raise InputError(f"{source} cannot be copied: {error}.", "Give an undamaged GGUF file.") from error
    kind = gguf.GGMLQuantizationType[ggml_type]
    architecture = str(reader.fields["general.architecture"].contents())
    unfinished = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    try:
        writer = gguf.GGUFWriter(unfinished, architecture)
        _copy_metadata(reader, writer, ggml_type)
        for i, tensor in enumerate(reader.tensors):
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            block = gguf.GGML_QUANT_SIZES[kind][0]
            if values.ndim < 2 or values.shape[-1] % block or kind == gguf.GGMLQuantizationType.F32:
                writer.add_tensor(tensor.name, values)
            else:
                writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
            if progress:
                progress((i + 1) / len(reader.tensors) / 2)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        unfinished.replace(destination)
    finally:
        unfinished.unlink(missing_ok=True)
    if progress:
        progress(1.0)
    return destination


def _copy_metadata(reader: Any, writer: Any, ggml_type: str) -> None:
    import gguf

    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        value_type = field.types[0]
        element = field.types[-1] if value_type == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), value_type, sub_type=element)
    writer.add_file_type(int(gguf.LlamaFileType["ALL_F32" if ggml_type == "F32" else f"MOSTLY_{ggml_type}"]))
