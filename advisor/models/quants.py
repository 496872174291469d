"""Block formats of ggml and the file types built from them: sizes and names, no logic.

Sources: ``enum ggml_type`` and the block structs of ggml (llama.cpp b11434), ``enum llama_ftype``; types above
100 exist only in ik_llama.cpp and are named, not sized.
"""

from __future__ import annotations

from typing import NamedTuple


class BlockFormat(NamedTuple):
    """``weights`` per block and ``bytes`` per block."""

    name: str
    weights: int
    bytes: int


FORMATS: dict[int, BlockFormat] = {
    number: BlockFormat(name, weights, size)
    for number, name, weights, size in (
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20), (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 36), (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144), (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98), (19, "IQ1_S", 256, 50),
        (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110), (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136),
        (24, "I8", 1, 1), (25, "I16", 1, 2), (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8),
        (29, "IQ1_M", 256, 56), (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66),
        (39, "MXFP4", 32, 17), (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18),
    )
}  # fmt: skip
BY_NAME: dict[str, BlockFormat] = {f.name: f for f in FORMATS.values()}
NUMBERS: dict[str, int] = {f.name: n for n, f in FORMATS.items()}

REMOVED = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4"}
"""Types that llama.cpp once wrote and no longer loads."""
FOREIGN = {
    42: "Q2_0", 133: "Q6_0", 134: "IQ1_BN", 135: "IQ2_BN", 137: "IQ2_K", 138: "IQ3_K", 139: "IQ4_K", 140: "IQ5_K",
    141: "IQ6_K", 144: "IQ4_KS", 145: "IQ2_KS", 146: "IQ4_KSS", 151: "Q8_KV", 152: "IQ5_KS", 153: "IQ2_KT",
    154: "IQ3_KT", 155: "IQ4_KT", 156: "IQ3_KS", 157: "IQ2_KL", 158: "IQ1_KT",
}  # fmt: skip
"""Types whose block size is not known here (most are ik_llama.cpp's): sized by the distance to the next tensor."""

FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4", 39: "NVFP4", 40: "Q1_0",
    41: "Q2_0",
}  # fmt: skip
"""``general.file_type``: a label only, the tensors decide."""


def type_name(number: int) -> str:
    """Name of a ggml type; unknown ones are called by their number."""
    known = FORMATS.get(number)
    if known:
        return known.name
    return REMOVED.get(number) or FOREIGN.get(number) or f"type {number}"


def size_of(quant: str, weights: int) -> float:
    """Bytes of so many weights in a block format (not rounded up to rows).

    Raises:
        KeyError: not a ggml block format.
    """
    block = BY_NAME[quant]
    return weights * block.bytes / block.weights
