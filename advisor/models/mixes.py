"""Which ggml type each tensor gets in a file of a given type.

Plain types and K- and I-quant mixes follow ``llama_tensor_get_type_impl`` of ``src/llama-quant.cpp``
(llama.cpp b11434). The "UD" files of Unsloth have no published rule: their bits per weight by tensor group were
measured on real files (``data/quant_bpw.csv``), and tensors are dealt out between the two neighbouring types so
that each group reaches its measured average.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from advisor.models.quants import BY_NAME
from advisor.resources import resource

DEFAULT_TYPES = {
    "F32": "F32", "F16": "F16", "BF16": "BF16", "Q4_0": "Q4_0", "Q4_1": "Q4_1", "Q5_0": "Q5_0", "Q5_1": "Q5_1",
    "Q8_0": "Q8_0", "Q2_K": "Q2_K", "Q2_K_S": "Q2_K", "Q3_K_S": "Q3_K", "Q3_K_M": "Q3_K", "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K", "Q4_K_M": "Q4_K", "Q5_K_S": "Q5_K", "Q5_K_M": "Q5_K", "Q6_K": "Q6_K", "IQ1_S": "IQ1_S",
    "IQ1_M": "IQ1_M", "IQ2_XXS": "IQ2_XXS", "IQ2_XS": "IQ2_XS", "IQ2_S": "IQ2_XS", "IQ2_M": "IQ2_S",
    "IQ3_XXS": "IQ3_XXS", "IQ3_XS": "IQ3_S", "IQ3_S": "IQ3_S", "IQ3_M": "IQ3_S", "IQ4_XS": "IQ4_XS",
    "IQ4_NL": "IQ4_NL", "TQ1_0": "TQ1_0", "TQ2_0": "TQ2_0", "MXFP4": "MXFP4",
}  # fmt: skip
ALIASES = {
    "Q2_K_L": "Q2_K", "Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4_MOE": "MXFP4", "FP16": "F16",
    "FP32": "F32", "Q8": "Q8_0", "Q6_K_L": "Q6_K", "Q4_K_L": "Q4_K_M", "Q5_K_L": "Q5_K_M", "Q6": "Q6_K",
    "Q4": "Q4_K_M", "Q5": "Q5_K_M", "F8_0": "Q8_0",
}  # fmt: skip
_TINY_IQ = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})
_FALLBACK = {
    **dict.fromkeys(("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"),
    **dict.fromkeys(("Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
}  # fmt: skip
_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "altup", "laurel", "per_layer_model_proj", "ssm_conv1d", "shortconv.conv",
)  # fmt: skip


class Facts(NamedTuple):
    """What the rules ask of a model. ``group`` is heads per key/value head of the first block (0 = none)."""

    architecture: str
    blocks: int
    experts: int
    group: int
    heads_equal: bool


def canonical(label: str) -> str | None:
    """The name of a file type as llama.cpp or Unsloth spell it; None if there is no such type."""
    name = label.strip().upper().replace(" ", "_")
    if name.endswith("_K_XL") and not name.startswith("UD-"):
        name = f"UD-{name}"
    name = ALIASES.get(name, name)
    if name in DEFAULT_TYPES:
        return name
    return name if name.startswith("UD-") and ud_base(name) else None


def ud_base(label: str) -> str | None:
    """The ordinary file type a UD label is built on: ``UD-Q4_K_XL`` -> ``Q4_K_M``; None if there is none."""
    name = re.sub(r"_XL$", "", label.removeprefix("UD-"))
    name = "Q8_0" if name == "Q8_K" else ALIASES.get(name, name)
    return name if name in DEFAULT_TYPES else None


def _category(name: str) -> str:
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "embedding"
    for part, category in (
        ("attn_qkv.weight", "v"), ("attn_kv_b.weight", "v"), ("attn_v.weight", "v"), ("attn_k.weight", "k"),
        ("attn_q.weight", "q"), ("attn_output.weight", "o"), ("ffn_up", "up"), ("ffn_gate", "gate"),
        ("ffn_down", "down"),
    ):  # fmt: skip
        if part in name:
            return category
    return "other"


def quantised(name: str, shape: Sequence[int]) -> bool:
    """Whether llama.cpp's quantiser touches a tensor at all."""
    return len(shape) >= 2 and name.endswith("weight") and not any(part in name for part in _KEPT)


def kept_type(name: str, shape: Sequence[int], label: str) -> str:
    """Type of a tensor that no rule quantises: matrices as converted (16 bit), vectors and gates in F32."""
    if len(shape) >= 2 and any(
        part in name for part in ("per_layer_model_proj", "altup_proj", "altup_unembd", "laurel_")
    ):
        return label if label in ("F32", "F16") else "BF16"
    return "F32"


def _pinned(name: str, facts: Facts, label: str) -> bool:
    """Gemma 4's gate and projection to the per-layer width, which published quantised files keep in F32."""
    return (
        facts.architecture == "gemma4" and label not in ("F16", "BF16") and (".inp_gate." in name or ".proj." in name)
    )


def _more_bits(i: int, n: int) -> bool:
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def fitting(quant: str, row: int) -> str:
    """The type llama.cpp falls back to when rows are not a multiple of the block."""
    if row % BY_NAME[quant].weights == 0:
        return quant
    other = _FALLBACK.get(quant, quant)
    return other if row % BY_NAME[other].weights == 0 else "F16"


class _Rules:
    """The state of llama.cpp's quantiser: how many value and down matrices it has met."""

    def __init__(self, label: str, facts: Facts, tied: bool, value_matrices: int) -> None:
        self.label, self.facts, self.tied = label, facts, tied
        self.values, self.downs = value_matrices, facts.blocks
        self.value_index = self.down_index = 0

    def type_of(self, name: str, shape: Sequence[int]) -> str:
        default = DEFAULT_TYPES[self.label]
        category = _category(name)
        if not quantised(name, shape):
            return kept_type(name, shape, self.label)
        if _pinned(name, self.facts, self.label):
            return "F32"
        if default in ("F32", "F16", "BF16"):
            return default
        return fitting(self._mixed(default, category, name, shape), shape[0])

    def _mixed(self, default: str, category: str, name: str, shape: Sequence[int]) -> str:
        label, facts = self.label, self.facts
        if category == "output" or (self.tied and category == "embedding"):
            if label == "MXFP4" or shape[0] % BY_NAME[default].weights:
                return "Q8_0"
            if label in _TINY_IQ or label == "IQ3_XXS":
                return "Q5_K"
            return default if default == "Q8_0" else "Q6_K"
        if label == "MXFP4":
            return "MXFP4" if "_exps." in name else "Q8_0"
        if category == "embedding":
            if label in ("IQ2_XXS", "IQ2_XS", "IQ1_S", "IQ1_M"):
                return "Q2_K"
            if label in ("IQ2_S", "IQ2_M", "IQ3_XXS"):
                return "IQ3_S"
            return "Q4_K" if label in ("TQ1_0", "TQ2_0") else default
        if label in _TINY_IQ:
            return self._tiny(default, category)
        if category == "v":
            return self._value(default)
        if category == "down":
            return self._down(default, name)
        if category in ("q", "k"):
            if category == "k" and facts.experts == 8:
                return "Q8_0"
            return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(label, default)
        if category == "o":
            return self._attention_output(default)
        if category in ("up", "gate") and label == "IQ3_XS":
            i, n = self._layer(name), facts.blocks
            return "IQ3_XXS" if n // 8 <= i < 7 * n // 8 else default
        return default

    def _layer(self, name: str) -> int:
        match = re.match(r"blk\.(\d+)\.", name)
        return int(match.group(1)) if match else 0

    def _tiny(self, default: str, category: str) -> str:
        facts, bigger = self.facts, self.label in ("IQ2_S", "IQ2_M")
        if category == "v":
            if facts.group >= 4 or facts.experts >= 4:
                return "Q4_K"
            return "IQ3_S" if bigger else "Q2_K"
        if category == "k" and facts.experts == 8:
            return "Q4_K"
        if category == "down":
            early = self.down_index < self.downs // 8
            self.down_index += 1
            return ("IQ3_S" if bigger else "Q2_K") if early else default
        if category == "o":
            if facts.experts == 8:
                return "Q5_K"
            if self.label in ("IQ1_S", "IQ1_M"):
                return "IQ2_XXS"
            return "IQ3_S" if bigger else default
        return default

    def _value(self, default: str) -> str:
        label, group = self.label, self.facts.group
        i = self.value_index
        self.value_index += 1
        new = default
        if label == "Q2_K":
            new = "Q4_K" if group >= 4 else "Q3_K"
        elif (
            (label == "Q2_K_S" and group >= 4)
            or label == "IQ3_M"
            or (label in ("IQ3_XXS", "IQ3_XS", "IQ3_S") and group >= 4)
        ):
            new = "Q4_K"
        elif label == "Q3_K_M":
            new = "Q5_K" if i < 2 else "Q4_K"
        elif label == "Q3_K_L" or (label in ("IQ4_NL", "IQ4_XS") and group >= 4):
            new = "Q5_K"
        elif label in ("Q4_K_M", "Q5_K_M") and _more_bits(i, self.values):
            new = "Q6_K"
        elif label == "Q4_K_S" and i < 4:
            new = "Q5_K"
        seventy = self.facts.blocks == 80 and (
            self.facts.architecture == "qwen2" or (self.facts.architecture == "llama" and not self.facts.heads_equal)
        )
        if seventy and new in ("Q3_K", "Q4_K"):
            new = "Q5_K"
        return "Q8_0" if self.facts.experts == 8 else new

    def _down(self, default: str, name: str) -> str:
        label, n = self.label, self.downs
        i = self._layer(name) if self.facts.experts > 1 else self.down_index
        self.down_index += 1
        if label == "Q2_K":
            return "Q3_K"
        if label == "Q2_K_S":
            return "Q4_K" if i < n // 8 else default
        if label == "Q3_K_M":
            return "Q5_K" if i < n // 16 else "Q4_K"
        if label == "IQ3_M" and (i < n // 8 or (self.facts.experts == 8 and _more_bits(i, n))):
            return "Q4_K"
        if label == "Q3_K_L":
            return "Q5_K"
        if label in ("Q4_K_M", "Q5_K_M") and _more_bits(i, n):
            return "Q6_K"
        if label == "Q4_K_S" and i < n // 8:
            return "Q5_K"
        return default

    def _attention_output(self, default: str) -> str:
        label = self.label
        if self.facts.experts == 8:
            kept = ("Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M",
                    "IQ4_XS")  # fmt: skip
            return "Q5_K" if label in kept else default
        return {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}.get(
            label, default
        )


# -- UD files -----------------------------------------------------------------------------------------------------

_K_LADDER = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_0", "BF16")
_I_LADDER = (
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS", "Q4_K", "Q5_K", "Q6_K", "Q8_0",
    "BF16",
)  # fmt: skip
_PLAIN_LADDER = ("Q4_0", "Q5_0", "Q8_0", "BF16")
_GROUPS = ("token_embd", "output", "dense_blocks", "experts", "shared_experts")


def bits(quant: str) -> float:
    """Bits per weight of a block format."""
    block = BY_NAME[quant]
    return 8 * block.bytes / block.weights


def _group(name: str, tied: bool) -> str:
    if name == "output.weight":
        return "output"
    if name == "token_embd.weight":
        return "token_embd"
    if name == "per_layer_token_embd.weight":
        return "table"
    if "_exps." in name:
        return "experts"
    if "shexp." in name and "ffn_gate_inp" not in name:
        return "shared_experts"
    return "dense_blocks"


class Measured(NamedTuple):
    """Bits per weight by group of one real file, without the tensors that no rule quantises (norms, routers).

    ``odd`` are the groups with rows that are no multiple of 256: what they show holds for odd rows only.
    """

    slug: str
    quant: str
    architecture: str
    mixture: bool
    tied: bool
    bits: dict[str, float]
    odd: frozenset[str]


@lru_cache(maxsize=1)
def measured() -> tuple[Measured, ...]:
    """The UD files among the table of real files (``data/quant_bpw.csv``)."""
    with open(resource("data", "quant_bpw.csv"), newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["quant"].startswith("UD-")]
    return tuple(found for row in rows if (found := _freed(row)) is not None)


def _freed(row: dict[str, str]) -> Measured | None:
    """A table row without the share of what stays in F32, which differs from model to model."""
    from advisor.models.catalogue import shape_row
    from advisor.models.shapes import shapes

    shape = shape_row(row["slug"])
    if shape is None:
        return None
    tensors = shapes(shape, row["mtp_in_file"] == "1")
    tied = all(name != "output.weight" for name, _ in tensors)
    facts = Facts(shape["gguf_arch"], shape["block_count"], shape["expert_count"] or 0, 0, False)
    shares = _Shares(tensors, tied, facts, row["quant"])
    bits_of = {g: shares.free_bits(g, float(row[f"bpw_{g}"])) for g in _GROUPS if row[f"bpw_{g}"]}
    return Measured(
        slug=row["slug"],
        quant=row["quant"],
        architecture=shape["gguf_arch"],
        mixture="experts" in bits_of,
        tied=tied,
        bits=bits_of,
        odd=frozenset(g for g in bits_of if shares.odd[g] > 0.2 * shares.total[g]),
    )


@lru_cache(maxsize=1)
def published() -> dict[tuple[str, str], tuple[float, bool]]:
    """Tensor bytes of UD files of which only the whole size is known, and whether it counts MTP layers."""
    with open(resource("data", "ud_sizes.csv"), newline="", encoding="utf-8") as file:
        return {
            (row["slug"], row["quant"]): (float(row["tensor_bytes"]), row["mtp_in_file"] == "1")
            for row in csv.DictReader(file)
        }


def _fit_to_total(
    targets: dict[str, float],
    slug: str,
    label: str,
    facts: Facts,
    tied: bool,
    tensors: Sequence[tuple[str, tuple[int, ...]]],
) -> dict[str, float]:
    """Move the largest group's bits so that the file comes out at its published size.

    Experts that would fall below their named type mean an early UD file, whose dense parts were not kept near Q8_0.
    """
    total, with_mtp = published()[slug, label]
    extra = {name.split(".nextn.")[0] + "." for name, _ in tensors if ".nextn." in name}
    counted = [t for t in tensors if with_mtp or not t[0].startswith(tuple(extra) or ("\0",))]
    shares = _Shares(counted, tied, facts, label)
    main = "experts" if facts.experts > 1 else "dense_blocks"
    base = bits(DEFAULT_TYPES[ud_base(label) or "Q8_0"])
    found = {"token_embd": 6.5625 if tied else base, "output": 6.5625, "dense_blocks": base, **targets}

    def solve() -> float:
        others = sum(
            shares.spent[g] + (shares.total[g] - shares.kept[g]) * found.get(g, 8.5) for g in shares.total if g != main
        )
        return (8 * total - others - shares.spent[main]) / (shares.total[main] - shares.kept[main])

    solved = solve()
    if main == "experts" and solved < 0.99 * base:
        found |= {
            "token_embd": min(base, 8.5),
            "output": 6.5625,
            "dense_blocks": base + 0.5,
            "shared_experts": base + 0.5,
        }
        solved = solve()
    return {**found, main: min(max(solved, 1.5), 16.0)}


class _Shares:
    """Weights by group: all, those no rule quantises with the bits they take, and those in odd rows."""

    def __init__(self, tensors: Sequence[tuple[str, tuple[int, ...]]], tied: bool, facts: Facts, label: str) -> None:
        self.total: dict[str, float] = defaultdict(float)
        self.kept: dict[str, float] = defaultdict(float)
        self.spent: dict[str, float] = defaultdict(float)
        self.odd: dict[str, float] = defaultdict(float)
        for name, shape in tensors:
            group, weights = _group(name, tied), 1.0
            for n in shape:
                weights *= n
            self.total[group] += weights
            pinned = quantised(name, shape) and _pinned(name, facts, label)
            if pinned or not quantised(name, shape):
                self.kept[group] += weights
                self.spent[group] += weights * (32 if pinned else bits(kept_type(name, shape, label)))
            elif shape[0] % 256:
                self.odd[group] += weights

    def free_bits(self, group: str, average: float) -> float:
        """What the quantised weights of a group take if the whole group takes ``average`` bits per weight."""
        free = self.total[group] - self.kept[group]
        return (average * self.total[group] - self.spent[group]) / free if free else average


def ud_bits(slug: str, quant: str, architecture: str, mixture: bool, tied: bool) -> tuple[dict[str, float], bool]:
    """Bits per quantised weight by group of a UD file, and whether that very file was measured.

    Without a measurement: the mean over measured files of the same label and kind, of the same architecture if
    there are any. A group nobody measured is left out; for mixtures, whose dense parts UD files keep near Q8_0
    whatever the label, a rule fills in.
    """
    rows = measured()
    for row in rows:
        if row.slug == slug and row.quant == quant:
            return row.bits, True
    like = [r for r in rows if r.quant == quant and r.mixture == mixture]
    family = architecture.removesuffix("moe")
    like = [r for r in like if r.architecture.removesuffix("moe") == family] or like
    found: dict[str, float] = {}
    if mixture:
        base = bits(DEFAULT_TYPES[ud_base(quant) or "Q8_0"])
        rich = base > 3.2
        found = {
            "token_embd": 8.5 if rich else 5.5, "output": 8.5 if base > 4 else 6.5625, "dense_blocks": 8.5,
            "shared_experts": 8.5, "experts": base * (1.06 if base < 8 else 1.01),
        }  # fmt: skip
        if not rich:
            found |= {"dense_blocks": 6.0, "shared_experts": 6.0}
        elif quant == "UD-Q8_K_XL":
            found["dense_blocks"] = 12.0  # partly BF16 (ud_sizes.csv: Qwen3.6-35B, Gemma 4 26B)
    elif quant == "UD-Q8_K_XL":
        found = {"dense_blocks": 9.8, "token_embd": 8.5, "output": 8.5}  # mean of three (ud_sizes.csv)
    for group in _GROUPS:
        tables = group in ("token_embd", "output")
        values = [
            r.bits[group] for r in like if group in r.bits and group not in r.odd and (r.tied == tied or not tables)
        ]
        if values:
            found[group] = sum(values) / len(values)
    return found, False


class _Dealer:
    """Gives the tensors of one group types from a ladder so that the running average meets a target."""

    def __init__(self, target: float, ladder: tuple[str, ...]) -> None:
        self.target, self.ladder = target, ladder
        self.weights = self.spent = 0.0

    def deal(self, weights: int, row: int) -> str:
        ladder = [q for q in (_PLAIN_LADDER if row % 256 else self.ladder) if row % BY_NAME[q].weights == 0] or ["F16"]
        below = max((i for i, q in enumerate(ladder) if bits(q) <= self.target), default=0)
        near = ladder[max(0, below - 1) : below + 2]
        self.weights += weights
        needed = (self.target * self.weights - self.spent) / weights
        chosen = min(near, key=lambda q: abs(bits(q) - needed))
        self.spent += bits(chosen) * weights
        return chosen


Chooser = Callable[[str, Sequence[int]], str]


def chooser(label: str, slug: str, facts: Facts, tensors: Sequence[tuple[str, tuple[int, ...]]]) -> Chooser:
    """A function from (name, shape) to ggml type, to be called once per tensor in order.

    Args:
        label: a canonical file type (see :func:`canonical`).
        slug: catalogue name, for measured UD files.
        facts: what the rules ask of the model.
        tensors: all tensors, in file order.
    """
    tied = all(name != "output.weight" for name, _ in tensors)
    native = facts.architecture == "gpt-oss"

    def keep_native(choose: Chooser) -> Chooser:
        # gpt-oss was released with MXFP4 experts and every conversion keeps them
        return lambda name, shape: "MXFP4" if native and "_exps.weight" in name else choose(name, shape)

    if not label.startswith("UD-"):
        values = sum(1 for name, shape in tensors if _category(name) == "v" and quantised(name, shape))
        rules = _Rules(label, facts, tied, values)
        return keep_native(rules.type_of)
    targets, exact = ud_bits(slug, label, facts.architecture, facts.experts > 1, tied)
    if not exact and (slug, label) in published():
        targets = _fit_to_total(targets, slug, label, facts, tied, tensors)
    ladder = _I_LADDER if label.startswith(("UD-IQ", "UD-Q2")) else _K_LADDER
    dealers = {group: _Dealer(target, ladder) for group, target in targets.items()}
    values = sum(1 for name, shape in tensors if _category(name) == "v" and quantised(name, shape))
    plain = _Rules(ud_base(label) or "Q8_0", facts, tied, values)

    def choose(name: str, shape: Sequence[int]) -> str:
        if not quantised(name, shape):
            return kept_type(name, shape, label)
        if _pinned(name, facts, label):
            return "F32"
        if name == "per_layer_token_embd.weight":
            return fitting("Q5_K" if targets.get("token_embd", 8.5) < 7 else "Q8_0", shape[0])
        dealer = dealers.get(_group(name, tied))
        if dealer is None:
            return plain.type_of(name, shape)
        weights = 1
        for n in shape:
            weights *= n
        return dealer.deal(weights, shape[0])

    return keep_native(choose)
