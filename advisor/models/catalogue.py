"""Models by name: ``qwen3.5-27b:Q8_0`` is described as if its file were at hand.

``data/models.json`` holds shapes, ``data/drafters.json`` EAGLE-3 and DFlash drafters, ``data/quant_bpw.csv`` how real
files spend their bits. A name is ``slug[:file type][+mtp | +nomtp]``.

MTP layers: where current conversions keep them, the description has them (so that ``draft-mtp`` can be weighed),
and an assumption says so; ``size_bytes`` counts them only where the usual file holds them, or with ``+mtp``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from advisor.errors import UnknownModelError
from advisor.models import mixes
from advisor.models.describe import describe_header
from advisor.models.description import Drafter, ModelDescription, Tokenizer
from advisor.models.gguf import Header, Tensor
from advisor.models.quants import BY_NAME, NUMBERS
from advisor.models.shapes import Row, keys, shapes
from advisor.resources import resource
from advisor.text import clean

DEFAULT_QUANT = "Q4_K_M"
DEFAULT_DRAFTER_QUANT = "Q8_0"
HEADER_BYTES = {
    "gemma-3": 25, "gemma-2": 25, "gemma-3n": 25, "gemma-4": 60.4, "o200k-harmony": 64.7, "granite-4": 35.6,
    "llama-3": 61.1, "llama-4": 64.8, "mistral-tekken": 60.2, "mistral-tekken-v13": 64.2, "mistral-tekken-nemo": 60.2,
    "minimax-m2": 41.4, "mistral-v3": 23.1, "nemotron-h": 60.3, "phi-4": 35.4, "qwen3": 39.3, "qwen2.5": 39.3,
    "qwen3.5": 44.2, "glm-5": 61.6, "smollm2": 36.0,
}  # fmt: skip
"""Header bytes per vocabulary entry, from real files (file size less tensor size); 45 where nobody looked."""
_WITHOUT_MTP = ("qwen3.5-", "qwen3.6-", "glm-4.7-flash", "nemotron-3-super")
"""Models whose usual file lacks the MTP layers although newer conversions keep them (real files: quant_bpw.csv)."""
_SAME_SHAPE = {
    "qwen2.5-math-72b": "qwen2.5-72b", "qwen2.5-math-7b": "qwen2.5-7b", "qwen2.5-math-1.5b": "qwen2.5-1.5b",
    "pard-llama-3.2-1b": "llama-3.2-1b", "pard-qwen2.5-1.5b": "qwen2.5-1.5b", "pard-qwen2.5-0.5b": "qwen2.5-0.5b",
    "deepseek-r1-draft-0.5b": "deepseek-r1-draft-qwen2.5-0.5b", "gpt-oss-safeguard-20b": "gpt-oss-20b",
    "magistral-small": "devstral-small-24b", "kimi-k2.6": "kimi-k2.5", "minimax-m2.1": "minimax-m2",
    "functiongemma-270m": "gemma-3-270m", "nemotron-cascade-2-30b-a3b": "nemotron-3-nano-30b-a3b",
    "vicuna-7b": "llama-2-7b", "codellama-7b-python": "llama-2-7b",
}  # fmt: skip
_SPM_FAMILIES = frozenset(
    {"llama-2", "mistral-v1", "mistral-v3", "gemma-2", "gemma-3", "gemma-3n", "phi-3", "yi", "codellama-32016"}
)
_NOISE = re.compile(
    r"[-_.](?:instruct|it|chat|base|thinking|think|gguf|hf|bf16|text|preview|sft|nvfp4|fp8|qat|mtp|"
    r"v?20\d\d[-_]?\d\d(?:[-_]?\d\d)?|2[3-6]\d\d)(?=$|[-_.])"
)


class Parsed(NamedTuple):
    """A catalogue name taken apart."""

    slug: str
    quant: str | None
    mtp: bool | None


def normalise(text: str) -> str:
    """A repository or file name reduced to catalogue spelling: ``Qwen/Qwen3-4B-Instruct-2507`` -> ``qwen3-4b``."""
    name = re.sub(r"\.gguf$", "", text.strip().rsplit("/", 1)[-1].lower())
    name = name.replace(" ", "-").replace("_", "-")
    name = re.sub(r"^(?:meta-|openai-|google-|unsloth-|mistralai-)(?=.)", "", name)
    while True:
        shorter = _NOISE.sub("", name)
        if shorter == name:
            return name
        name = shorter


@lru_cache(maxsize=1)
def _models() -> dict[str, Row]:
    with open(resource("data", "models.json"), encoding="utf-8") as file:
        return {row["slug"]: row for row in json.load(file)}


@lru_cache(maxsize=1)
def _drafters() -> dict[str, Row]:
    """Drafters by short name; EAGLE-1 is left out, since llama.cpp has no method for it."""
    found: dict[str, Row] = {}
    with open(resource("data", "drafters.json"), encoding="utf-8") as file:
        for row in json.load(file):
            if row["kind"] == "eagle":
                continue
            owner, name = row["name"].lower().split("/", 1)
            short = normalise(re.sub(r"-speculator\.|speculator[.-]", "-", name)).replace("nvidia-", "")
            short = re.sub(r"llama(\d)", r"llama-\1", re.sub(r"-b16$|-ultrachat$", "", short)).replace(
                "gemma4", "gemma-4"
            )
            short = re.sub(r"-{2,}", "-", short)
            found[short if short not in found else f"{short}-{owner}"] = row
    return found


@lru_cache(maxsize=1)
def _aliases() -> dict[str, str]:
    """Other spellings to slugs."""
    found = dict(_SAME_SHAPE)
    for slug, row in _models().items():
        for text in (row["hf_repo"], *(row["aliases"] or ())):
            if text:
                found.setdefault(normalise(re.split(r"[ ;(]", text)[0]), slug)
    for short, row in _drafters().items():
        found.setdefault(row["name"].lower().split("/", 1)[1], short)
    return {name: slug for name, slug in found.items() if name not in _models()}


def names() -> list[str]:
    """All catalogue names, models first, drafters after them."""
    return [*_models(), *_drafters()]


def shape_row(slug: str) -> Row | None:
    """The catalogue's row of a model."""
    return _models().get(slug)


def shape_rows() -> list[Row]:
    """All rows of models."""
    return list(_models().values())


def describe_row(row: Row, label: str, reference: str) -> ModelDescription:
    """Describe a row that is not in the catalogue, e.g. one built from a repository's config."""
    assumptions: list[str] = []
    in_file, held = _mtp_rule(row, None, assumptions)
    header = _header(row, label, held)
    found = describe_header(header, reference=reference, source="catalogue", name=row["slug"], quant=label)
    family = row["tokenizer_family"]
    size = found.size_bytes - (0 if in_file else _weigh(header)) + _header_bytes(family, row["vocab_size"])
    tokenizer = Tokenizer(
        type="unknown" if family == "unknown" else "SPM" if family in _SPM_FAMILIES else "BPE",
        pre=row["tokenizer_pre"], size=row["vocab_size"], family=None if family == "unknown" else family,
    )  # fmt: skip
    return found.model_copy(
        update={"size_bytes": size, "tokenizer": tokenizer, "assumptions": (*found.assumptions, *assumptions)}
    )


def tokenizer_family(slug: str) -> str | None:
    """The vocabulary family of a catalogue entry, e.g. ``qwen3.5``."""
    row = _models().get(slug) or _target_of(slug)
    return row["tokenizer_family"] if row else None


def suggestions(name: str, count: int = 3) -> list[str]:
    """The catalogue names closest to a misspelt one, best first."""
    wanted = normalise(name.split(":", 1)[0])
    known = names()
    inside = [n for n in known if wanted and (n.startswith(wanted) or wanted in n)]
    close = difflib.get_close_matches(wanted, [*known, *_aliases()], n=2 * count, cutoff=0.55)
    found: list[str] = []
    for one in [*close, *sorted(inside, key=len)]:
        slug = _aliases().get(one, one)
        if slug not in found:
            found.append(slug)
    return found[:count]


def parse_name(name: str) -> Parsed | None:
    """Slug, file type and MTP wish of a catalogue name; None if the slug is not in the catalogue."""
    text, mtp = name.strip(), None
    for suffix, wish in (("+nomtp", False), ("+mtp", True)):
        if text.lower().endswith(suffix):
            text, mtp = text[: -len(suffix)], wish
    slug, _, quant = text.partition(":")
    found = find(slug)
    return None if found is None else Parsed(found, quant or None, mtp)


def find(slug: str) -> str | None:
    """The catalogue's spelling of a model's name, or None."""
    for candidate in (slug.strip().lower(), normalise(slug)):
        if candidate in _models() or candidate in _drafters():
            return candidate
        if candidate in _aliases():
            return _aliases()[candidate]
    return None


def unknown(name: str) -> UnknownModelError:
    """The error for a name that is not in the catalogue, with the closest names."""
    close = suggestions(name)
    hint = f"Did you mean {' or '.join(close)}?" if close else "`advisor models` lists all names."
    return UnknownModelError(f"There is no model called {clean(name, 80)} in the catalogue.", hint)


def describe_catalogue(name: str, quant: str | None = None, mtp: bool | None = None) -> ModelDescription:
    """Describe a model by name.

    Args:
        name: ``slug``, ``slug:Q4_K_M``, with ``+mtp`` or ``+nomtp`` behind it if it matters.
        quant: file type; overrides the one in ``name``.
        mtp: True: the file holds the MTP layers, False: it does not; None: see the module's rule.

    Raises:
        UnknownModelError: no such model (with suggestions), or no such file type.
    """
    parsed = parse_name(name)
    if parsed is None:
        raise unknown(name)
    wish = mtp if mtp is not None else parsed.mtp
    label = quant or parsed.quant
    assumptions: list[str] = []
    if parsed.slug in _drafters():
        return _describe_drafter(parsed.slug, label, name)
    row = _models()[parsed.slug]
    if label is None:
        label = "MXFP4" if row["gguf_arch"] == "gpt-oss" else DEFAULT_QUANT
        assumptions.append(f"{label} file (no file type in the name)")
    canonical = _file_type(label, name)
    if row["gguf_arch"] == "gpt-oss" and canonical != "MXFP4":
        assumptions.append("experts stay in MXFP4, as in every conversion of this model")
    if canonical == "MXFP4" and not row["expert_count"]:
        assumptions.append("no experts to store in MXFP4: such a file is Q8_0 throughout")
    if row["confidence"] == "recalled":
        assumptions.append("shape recalled, not looked up; the weight total agrees with the published one")
    in_file, held = _mtp_rule(row, wish, assumptions, canonical)
    return _described(row, canonical, name, in_file, held, tuple(assumptions))


def _file_type(label: str, name: str) -> str:
    canonical = mixes.canonical(label)
    if canonical is None:
        close = difflib.get_close_matches(label.upper(), [*mixes.DEFAULT_TYPES, "UD-Q4_K_XL"], n=3, cutoff=0.4)
        raise UnknownModelError(
            f"{clean(label, 40)} (in {clean(name, 80)}) is not a GGUF file type.",
            f"Did you mean {' or '.join(close)}?" if close else "Examples: Q4_K_M, Q8_0, BF16, UD-Q4_K_XL.",
        )
    return canonical


def _mtp_rule(row: Row, wish: bool | None, assumptions: list[str], label: str = "") -> tuple[bool, bool]:
    """Whether the usual file holds the MTP layers, and whether the description has them."""
    if not row["nextn_predict_layers"]:
        if wish:
            assumptions.append("+mtp ignored: this model has no MTP layers")
        return False, False
    if wish is not None:
        return wish, wish
    said = row["nextn_in_gguf"] or ""
    slug = row["slug"]
    if slug.startswith(("deepseek-v3", "deepseek-r1")) and slug != "deepseek-v3.2":
        assumptions.append("no MTP layers: the converter drops them for this architecture")
        return False, False
    if said.startswith("only newer"):
        assumptions.append("no MTP layers: only newer conversions hold them (add +mtp to count them)")
        return False, False
    if mixes.published().get((slug, label), (0, False))[1]:
        assumptions.append("MTP layers in the file, as it was published")
        return True, True
    if slug.startswith(_WITHOUT_MTP):
        assumptions.append(
            "MTP layers counted as available; the usual file lacks them: take a conversion that holds them"
        )
        return False, True
    assumptions.append("MTP layers in the file, as current conversions write them")
    return True, True


def _header(row: Row, label: str, mtp: bool) -> Header:
    """The header such a file would have."""
    tensors = shapes(row, mtp)
    numbers = keys(row, mtp)
    architecture = row["gguf_arch"]
    first_kv = row["head_count_kv"][0] if isinstance(row["head_count_kv"], list) else row["head_count_kv"]
    heads = row["head_count"][0] if isinstance(row["head_count"], list) else row["head_count"]
    facts = mixes.Facts(
        architecture=architecture,
        blocks=int(numbers["block_count"]),  # type: ignore[arg-type]  # a scalar key
        experts=row["expert_count"] or 0,
        group=heads // first_kv if first_kv else 0,
        heads_equal=heads == first_kv,
    )
    choose = mixes.chooser(label, row["slug"], facts, tensors)
    return _synthetic(row["slug"], architecture, numbers, tensors, choose)


def _synthetic(
    name: str,
    architecture: str,
    numbers: dict[str, Any],
    tensors: Sequence[tuple[str, tuple[int, ...]]],
    choose: mixes.Chooser,
) -> Header:
    table, offset = [], 0
    for tensor, shape in tensors:
        quant = choose(tensor, shape)
        block = BY_NAME[quant]
        weights = 1
        for n in shape:
            weights *= n
        size = weights // block.weights * block.bytes
        table.append(Tensor(tensor, shape, NUMBERS[quant], quant, offset, size))
        offset += -(-size // 32) * 32
    return Header(
        name=name,
        version=3,
        big_endian=False,
        keys={"general.architecture": architecture, **{f"{architecture}.{k}": v for k, v in numbers.items()}},
        tensors=tuple(table),
        data_offset=0,
        size=offset,
    )


def _weigh(header: Header) -> int:
    """Bytes of the MTP blocks in a synthetic header."""
    last = header.integer(f"{header.text('general.architecture')}.block_count") or 0
    nextn = header.integer(f"{header.text('general.architecture')}.nextn_predict_layers") or 0
    starts = tuple(f"blk.{i}." for i in range(last - nextn, last))
    return sum(t.nbytes for t in header.tensors if starts and t.name.startswith(starts))


@lru_cache(maxsize=128)
def _core(slug: str, label: str, held: bool) -> tuple[ModelDescription, int]:
    """A description without the user's words, and the bytes of its MTP blocks."""
    row = _models()[slug]
    header = _header(row, label, held)
    description = describe_header(header, reference=slug, source="catalogue", name=slug, quant=label)
    family = row["tokenizer_family"]
    tokenizer = Tokenizer(
        type="SPM" if family in _SPM_FAMILIES else "BPE",
        pre=row["tokenizer_pre"],
        size=row["vocab_size"],
        family=family,
    )
    return description.model_copy(update={"tokenizer": tokenizer, "catalogue_slug": slug}), _weigh(header)


def _described(
    row: Row, label: str, reference: str, in_file: bool, held: bool, assumptions: tuple[str, ...]
) -> ModelDescription:
    core, mtp_bytes = _core(row["slug"], label, held)
    size = core.size_bytes - (0 if in_file else mtp_bytes) + _header_bytes(row["tokenizer_family"], row["vocab_size"])
    if label.startswith("UD-"):
        _, exact = mixes.ud_bits(row["slug"], label, row["gguf_arch"], core.is_moe, core.tied_head)
        if exact:
            origin = "measured on that very file"
        elif (row["slug"], label) in mixes.published():
            origin = "after the published size of that file, divided among its parts by rule"
        else:
            origin = "measured on files of other models"
        assumptions += (f"bits per weight of {label} {origin}",)
    return core.model_copy(
        update={"reference": reference, "size_bytes": size, "assumptions": core.assumptions + assumptions}
    )


def _header_bytes(family: str, vocabulary: int) -> int:
    return round(HEADER_BYTES.get(family, 45) * vocabulary)


# -- drafters -----------------------------------------------------------------------------------------------------


_DRAFTER_SHAPE = (
    "block_count", "embedding_length", "head_count", "head_count_kv", "key_length", "feed_forward_length", "vocab_size",
)  # fmt: skip


def _target_of(short: str) -> Row | None:
    """The catalogue row of the model a drafter was made for, by its name."""
    base = re.sub(r"^dspark-|-(?:eagle3.*|dflash.*|dspark.*|draft.*|thinking-eagle3)$", "", short)
    slug = find(base) or find(base.replace("-thinking", ""))
    return _models().get(slug) if slug else None


def _describe_drafter(short: str, quant: str | None, reference: str) -> ModelDescription:
    row = _drafters()[short]
    target = _target_of(short)
    assumptions = ["drafter's layers from its published config; which tensors a conversion keeps is assumed"]
    if quant is None:
        quant = DEFAULT_DRAFTER_QUANT
        assumptions.append(f"{quant} file (no file type in the name)")
    label = _file_type(quant, reference)
    shape: dict[str, Any] = {k: row.get(k) for k in _DRAFTER_SHAPE}
    if not shape["embedding_length"]:
        if target is None:
            raise UnknownModelError(
                f"The shape of the drafter {short} is not known.", "Name its GGUF file or repository instead."
            )
        assumptions.append(f"shape taken from its target {target['slug']} (only the weight total is published)")
        shape = _shape_from_target(row, target)
        while shape["block_count"] > 1 and _count(_dflash(0, shape, False)) > row["params"]:
            shape["block_count"] -= 1
    eagle = row["kind"] == "eagle3"
    tensors = _eagle3(row["params"], shape, target) if eagle else _dflash(row["params"], shape, row["kind"] == "dspark")
    architecture = "eagle3" if eagle else "dflash"
    numbers: dict[str, Any] = {
        "block_count": shape["block_count"], "embedding_length": shape["embedding_length"],
        "attention.head_count": shape["head_count"], "attention.head_count_kv": shape["head_count_kv"],
        "attention.key_length": shape["key_length"], "attention.value_length": shape["key_length"],
        "vocab_size": shape["vocab_size"], "context_length": row.get("context_length") or 32768,
    }  # fmt: skip
    if not eagle:
        numbers["block_size"] = 16
        assumptions.append("blocks of 16 tokens")
    facts = mixes.Facts(architecture, shape["block_count"], 0, shape["head_count"] // shape["head_count_kv"], False)
    choose = mixes.chooser(label, short, facts, tensors)
    header = _synthetic(short, architecture, numbers, tensors, choose)
    description = describe_header(header, reference=reference, source="catalogue", name=short, quant=label)
    drafter = description.drafter
    if drafter is None:  # the architectures above always yield one
        raise UnknownModelError(f"{short} could not be described as a drafter.")
    width = target["embedding_length"] if target else drafter.target_width
    method: Any = "draft-dspark" if row["kind"] == "dspark" else drafter.method
    family = target["tokenizer_family"] if target else None
    return description.model_copy(
        update={
            "drafter": Drafter(**{**drafter.model_dump(), "target_width": width, "method": method}),
            "size_bytes": description.size_bytes + _header_bytes(family or "", shape["vocab_size"]),
            "tokenizer": Tokenizer(
                type="SPM" if family in _SPM_FAMILIES else "BPE" if family else "unknown",
                size=shape["vocab_size"], family=family,
            ),
            "assumptions": description.assumptions + tuple(assumptions),
            "catalogue_slug": short,
        }
    )  # fmt: skip


def _shape_from_target(row: Row, target: Row) -> dict[str, Any]:
    heads_kv = target["head_count_kv"]
    many = max(heads_kv) if isinstance(heads_kv, list) else heads_kv
    heads = target["head_count"]
    heads = max(heads) if isinstance(heads, list) else heads
    width = target["embedding_length"]
    feed = target["feed_forward_length"]
    feed = max(feed) if isinstance(feed, list) else feed
    mla = bool(target["mla"])
    return {
        "block_count": 1 if row["kind"] == "eagle3" else 5,
        "embedding_length": width,
        "head_count": heads,
        "head_count_kv": 8 if mla else many,
        "key_length": 128 if mla else target["key_length"],
        "feed_forward_length": feed or 3 * width,
        "vocab_size": target["vocab_size"],
    }


Tensors = list[tuple[str, tuple[int, ...]]]


def _block(layer: int, shape: dict[str, Any], inputs: int) -> Tensors:
    """A Llama block whose attention reads ``inputs`` wide rows."""
    h, f = shape["embedding_length"], shape["feed_forward_length"]
    q, kv = shape["head_count"] * shape["key_length"], shape["head_count_kv"] * shape["key_length"]
    p = f"blk.{layer}."
    return [
        (p + "attn_norm.weight", (h,)), (p + "attn_q.weight", (inputs, q)), (p + "attn_k.weight", (inputs, kv)),
        (p + "attn_v.weight", (inputs, kv)), (p + "attn_output.weight", (q, h)), (p + "ffn_norm.weight", (h,)),
        (p + "ffn_gate.weight", (h, f)), (p + "ffn_up.weight", (h, f)), (p + "ffn_down.weight", (f, h)),
    ]  # fmt: skip


def _count(tensors: Tensors) -> int:
    total = 0
    for _, shape in tensors:
        product = 1
        for n in shape:
            product *= n
        total += product
    return total


def _eagle3(total: int, shape: dict[str, Any], target: Row | None) -> Tensors:
    """An EAGLE-3 head: one block with doubled inputs, a fusion matrix, and in what is left a head and maybe a table.

    The published total decides: a remainder beyond one full table means an own embedding besides the head.
    """
    h, vocabulary = shape["embedding_length"], shape["vocab_size"]
    from_target = target["embedding_length"] if target else h
    tensors: Tensors = [("fc.weight", (3 * from_target, h)), ("output_norm.weight", (h,))]
    for layer in range(shape["block_count"]):
        tensors += _block(layer, shape, 2 * h)
        tensors.append((f"blk.{layer}.attn_norm_2.weight", (h,)))
    rows = max(0, total - _count(tensors)) // h
    if rows > vocabulary + 16_000:  # no trimmed vocabulary is smaller
        tensors.append(("token_embd.weight", (h, vocabulary)))
        rows -= vocabulary
    if rows >= 16_000:
        # trimmed vocabularies are round numbers; the rest are norms and the index tables
        own = vocabulary if rows >= vocabulary else rows // 1000 * 1000
        tensors.append(("output.weight", (h, own)))
        rows -= own
    if rows * h > total // 100:
        tensors.append(("fc.extra.weight", (rows // 32 * 32, h)))
    return tensors


def _dflash(total: int, shape: dict[str, Any], markov: bool) -> Tensors:
    """A DFlash drafter: plain blocks, a fusion matrix, and table and head copies if the total has room for both."""
    h, vocabulary = shape["embedding_length"], shape["vocab_size"]
    tensors: Tensors = [("output_norm.weight", (h,)), ("enc.output_norm.weight", (h,))]
    for layer in range(shape["block_count"]):
        tensors += _block(layer, shape, h)
    if markov:
        tensors.append(("markov_w1.weight", (256, vocabulary)))
        tensors.append(("markov_w2.weight", (256, vocabulary)))
    rest = max(0, total - _count(tensors))
    if rest > 1.9 * vocabulary * h:
        tensors += [("token_embd.weight", (h, vocabulary)), ("output.weight", (h, vocabulary))]
        rest = max(0, rest - 2 * vocabulary * h)
    if rest >= h:
        tensors.append(("fc.weight", (rest // h // 32 * 32 or 32, h)))
    return tensors


# -- recognising files --------------------------------------------------------------------------------------------


def recognise(description: ModelDescription) -> str | None:
    """The catalogue entry with this shape, or None. Among entries of one shape the name decides.

    Shape means: architecture, trunk layers, width, experts, and the weight total without MTP within 0.5 %.
    """
    if description.source == "catalogue" or description.kind not in ("model", "drafter"):
        return description.catalogue_slug
    mtp = sum(g.parameters for g in description.weights if g.role in ("mtp", "mtp_experts", "mtp_head"))
    total = description.total_parameters - mtp
    experts = max((x.expert_count for x in description.layers), default=0)
    same = [
        slug
        for slug, row in _models().items()
        if row["gguf_arch"] == description.architecture
        and row["block_count"] == len(description.layers)
        and row["embedding_length"] == description.embedding_length
        and (row["expert_count"] or 0) == experts
        and abs(row["computed"]["total"] - total) <= 0.005 * total
    ]
    if len(same) < 2:
        return same[0] if same else None
    name = normalise(description.name)
    contained = sorted((slug for slug in same if slug in name), key=len)
    if contained:
        return contained[-1]
    words = set(name.split("-"))
    return max(same, key=lambda slug: len(words & set(slug.split("-"))))
