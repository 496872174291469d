"""From a line of a table to something the physics can predict, or to the reason why it cannot.

The measured speeds of a line never enter its prediction: only what was run, where, and (if acceptance is given)
what was accepted.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from advisor.errors import AdvisorError
from advisor.hardware.machine import Backend, Hardware, Placement, Setup
from advisor.models.description import Layer, ModelDescription, WeightGroup
from advisor.speculation.prediction import Method
from advisor.speculation.rounds import NGRAM_METHODS, Gate, Rounds, gate, positions_behind_gate, rounds_of
from advisor.validation.tables import Row

BACKENDS: frozenset[str] = frozenset(get_args(Backend))
METHODS: frozenset[str] = frozenset(get_args(Method)) - {"none"}

LONGEST_DRAFT = 256
"""Draft lengths beyond this are taken for a mistake in the table."""
MOST_DEVICES = 64
RARE_HITS = 0.1
"""Share of rounds in which an n-gram method that was never right is taken to have drafted (assumed)."""


class Skipped(NamedTuple):
    """Why a line is not used."""

    id: str
    reason: str


class DecodeCase(NamedTuple):
    """Ordinary decoding: tokens per second."""

    id: str
    cluster: str
    source: str
    model: ModelDescription
    setup: Setup
    depth: int
    measured: float


class BatchCase(NamedTuple):
    """One pass of ``n`` tokens over one of a single token; ``logits`` rows of output, ``sequences`` caches."""

    id: str
    cluster: str
    source: str
    model: ModelDescription
    setup: Setup
    n: int
    logits: int
    sequences: int
    depth: int
    kernel: Literal["auto", "mat-vec", "mat-mat"]
    measured: float


class SpeculationCase(NamedTuple):
    """Speculative over ordinary speed. ``acceptance`` and ``mean_length`` as published; ``task`` as named there."""

    id: str
    cluster: str
    source: str
    target: ModelDescription
    draft: ModelDescription | None
    method: Method
    setup: Setup
    k: int
    p_min: float
    acceptance: float | None
    mean_length: float | None
    depth: int
    parallel: int
    task: str
    temperature: float | None
    measured: float


Case = DecodeCase | BatchCase | SpeculationCase


# --- which lines ------------------------------------------------------------------------------------------------


def wanted_decode(row: Row) -> str | None:
    """Reason to leave a decode line out unless everything is asked for; None = use it."""
    if row.positive("tg128_tps") is None:
        return "no decode speed"
    return "trust is low" if row.text("trust") == "low" else None


def wanted_batch(row: Row) -> str | None:
    """The same for a batch line."""
    n = row.positive("n_tokens")
    if n is None or not 2 <= n <= 16:
        return "not between 2 and 16 tokens"
    if row.positive("relative_time") is None:
        return "no relative time"
    return "trust is low" if row.text("trust") == "low" else None


def wanted_speculation(row: Row) -> str | None:
    """The same for a speculation line."""
    use = row.text("usable_for")
    if use == "fit":
        return None
    if use:
        return f"usable for {use} only" if use != "test" else "test line"
    return "trust is low" if row.text("trust") == "low" else None


# --- machines ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _hardware(name: str, count: int) -> Hardware:
    from advisor.hardware.profiles import find

    hardware = find(name)
    if count > 1 and len(hardware.devices) == 1:
        hardware = hardware.model_copy(update={"devices": hardware.devices * count})
    return hardware


@lru_cache(maxsize=2048)
def _setup(name: str, count: int, backend: str, placement: Placement, build: int | None, cache: str) -> Setup:
    hardware = _hardware(name, count)
    chosen: Backend = backend if backend in BACKENDS else hardware.backend  # type: ignore[assignment]
    return Setup(
        hardware=hardware,
        backend=chosen,
        placement=placement,
        build=build,
        cache_type_k=cache,
        cache_type_v=cache,
    )


def build_number(text: str) -> int | None:
    """llama.cpp build number in a free text such as ``b10451``; None if there is none."""
    match = re.search(r"\bb(\d{4,5})\b", text)
    return int(match[1]) if match else None


def _told(row: Row) -> str:
    return f"{row.text('notes')} {row.text('task_detail')}".lower()


def _cache_type(row: Row) -> str:
    match = re.search(r"\b(f16|bf16|q8_0|q5_1|q5_0|q4_1|q4_0) kv\b", _told(row))
    return match[1] if match else "f16"


def _placement(row: Row, layers: int) -> Placement:
    told, place = _told(row), row.text("placement")
    values: dict[str, object] = {}
    if place == "partial-offload":
        on_device = re.search(r"(\d+)\s*(?:of|/)\s*(\d+)\s*layers on (?:the )?gpu", told)
        on_host = re.search(r"(\d+) layers on (?:the )?cpu", told)
        flag = re.search(r"-ngl\s+(\d+)", told)
        if on_device:
            values["gpu_layers"] = int(on_device[1])
        elif flag:
            values["gpu_layers"] = int(flag[1])
        elif on_host:
            values["gpu_layers"] = max(layers + 1 - int(on_host[1]), 0)
    elif place == "experts-on-cpu":
        some = re.search(r"n-?cpu-?moe\s+(\d+)", told)
        values["cpu_moe_layers" if some else "cpu_moe"] = int(some[1]) if some else True
    elif place == "draft-on-other-device":
        values["draft_device"] = "second" if "+" in row.text("hardware") else "host"
    elif place == "cpu":
        values["gpu_layers"] = 0
    if re.search(r"tensor split|row split|-sm (?:row|tensor|graph)|tensor parallel", told):
        values["split"] = "tensor"
    return Placement.model_validate(values)


def setup_of(row: Row, layers: int) -> Setup:
    """Machine and backend of a line.

    Raises:
        AdvisorError: unknown hardware, or none named.
    """
    name = row.text("hardware")
    if not name:
        raise AdvisorError("no hardware named")
    count = int(row.positive("device_count") or 1)
    if count > MOST_DEVICES:
        raise AdvisorError(f"{count} devices")
    backend = row.text("backend").lower()
    if row.text("placement") == "cpu":
        backend = "cpu"
    if backend and backend not in BACKENDS:
        raise AdvisorError(f"unknown backend {backend}")
    return _setup(name, count, backend, _placement(row, layers), build_number(row.text("build")), _cache_type(row))


# --- models -----------------------------------------------------------------------------------------------------

_FOREIGN_QUANT = re.compile(r"mlx|gptq|awq|exl|_R4$|_R8$", re.IGNORECASE)


@lru_cache(maxsize=2048)
def _model(slug: str, labels: tuple[str, ...], size: int) -> ModelDescription:
    from advisor.models.catalogue import describe_catalogue

    failure: AdvisorError | None = None
    for label in labels:
        try:
            return resize(describe_catalogue(f"{slug}:{label}"), size)
        except AdvisorError as error:
            failure = failure or error
    assert failure is not None
    raise failure


def model_of(slug: str, labels: tuple[str, ...], size: float | None) -> ModelDescription:
    """Catalogue entry in the first of ``labels`` that is a known quantisation, brought to a stated file size.

    Raises:
        AdvisorError: no model or quantisation named, unknown slug, or a format that llama.cpp does not run.
    """
    if not slug:
        raise AdvisorError("no model named")
    names = tuple(dict.fromkeys(x for x in labels if x))
    if not names:
        raise AdvisorError("no quantisation named")
    if any(_FOREIGN_QUANT.search(x) for x in names):
        raise AdvisorError(f"{names[0]} is not a llama.cpp quantisation")
    label = names[-1].upper()
    guess = re.search(r"(?:^|[-_ ])I?Q([2-8])", label) or re.search(r"FP([48])", label)
    if guess:
        # An author's own mix of a width: the usual file of that width stands for it.
        stands_for = {"2": "Q2_K", "3": "Q3_K_M", "5": "Q5_K_M", "6": "Q6_K", "8": "Q8_0"}
        names = (*names, "Q4_0" if "FP4" in label else stands_for.get(guess[1], "Q4_K_M"))
    failure: AdvisorError | None = None
    for candidate in _same_shape(slug):
        try:
            return _model(candidate, names, int(min(size or 0, 1e15)))
        except AdvisorError as error:
            failure = failure or error
    assert failure is not None
    raise failure


_OTHER_SHAPE = frozenset({"assistant", "distill", "draft", "drafter", "eagle", "merge", "mtp", "pruned", "reap", "vl"})


def _same_shape(slug: str) -> list[str]:
    """The slug, and what is left without the words that a fine-tune puts behind the size (``-heretic``)."""
    names, parts = [slug], slug.split("-")
    while len(parts) > 2 and parts[-1].isalpha() and parts[-1] not in _OTHER_SHAPE:
        parts = parts[:-1]
        if re.fullmatch(r"[ae]?\d+(\.\d+)?b", parts[-1]):
            names.append("-".join(parts))
            break
    return names


def resize(model: ModelDescription, size: int) -> ModelDescription:
    """The description with its quantised weights scaled so that the file has ``size`` bytes.

    Dense files of one type differ by a few per cent between authors. In mixture-of-experts files the difference sits
    in the experts, which are nearly all of the file. Sizes more than 40 % away are taken for another file and ignored.
    """
    total = sum(g.bytes for g in model.weights)
    if size <= 0 or total <= 0 or not 0.6 < size / total < 1.6:
        return model
    roles = ("experts",) if model.is_moe else None

    def moves(g: WeightGroup) -> bool:
        return g.quant != "F32" and (roles is None or g.role in roles)

    movable = sum(g.bytes for g in model.weights if moves(g))
    if movable <= 0:
        return model
    factor = (size - (total - movable)) / movable
    if not 0.6 < factor < 1.6:
        return model

    def scaled(layer: Layer) -> Layer:
        if not model.is_moe or not layer.expert_bytes:
            return layer
        change = round(layer.expert_bytes * (factor - 1))
        return layer.model_copy(update={"bytes": layer.bytes + change, "expert_bytes": layer.expert_bytes + change})

    weights = tuple(g.model_copy(update={"bytes": round(g.bytes * factor)}) if moves(g) else g for g in model.weights)
    # Built anew, because a copy would keep the sums that were cached on the original.
    values = {name: getattr(model, name) for name in type(model).model_fields}
    values.update(weights=weights, layers=tuple(scaled(x) for x in model.layers), size_bytes=size)
    return type(model)(**values)


# --- cases ------------------------------------------------------------------------------------------------------


def _source(row: Row) -> str:
    return row.text("source_group") or row.text("source").split(" ")[0] or row.text("hardware")


def _depth(row: Row, column: str) -> int:
    return int(min(max(row.number(column) or 0.0, 0.0), 1e8))


def decode_case(row: Row) -> DecodeCase | Skipped:
    """A decode line as a case."""
    measured = row.positive("tg128_tps")
    if measured is None:
        return Skipped(row.id, "no decode speed")
    try:
        model = model_of(row.text("model"), (row.text("quant_file"), row.text("quant")), row.positive("size_bytes"))
        setup = setup_of(row, len(model.layers))
    except AdvisorError as error:
        return Skipped(row.id, _reason(error))
    if setup.hardware.device.bandwidth is None:
        return Skipped(row.id, f"the bandwidth of {row.text('hardware')} is not known")
    depth = _depth(row, "depth")
    return DecodeCase(row.id, row.text("hardware"), _source(row), model, setup, depth, measured)


def batch_case(row: Row) -> BatchCase | Skipped:
    """A batch line as a case."""
    measured, tokens = row.positive("relative_time"), row.positive("n_tokens")
    if measured is None:
        return Skipped(row.id, "no relative time")
    if tokens is None or not 2 <= tokens <= 4096 or tokens != int(tokens):
        return Skipped(row.id, "not between 2 and 4096 tokens")
    method, note = row.text("method"), row.text("backend_note").lower()
    if method == "decode-cycle":
        return Skipped(row.id, "a whole cycle of drafting and verifying, not one pass")
    if method == "op":
        return Skipped(row.id, "one matrix product, not a pass")
    if "ik_llama" in note or "fork" in note:
        return Skipped(row.id, "another engine than llama.cpp")
    if re.search(r"\b2023\b", row.text("build")) or "later replaced" in row.text("notes"):
        # Kernels for several columns came in February 2024; before, every column read the weights again.
        return Skipped(row.id, "kernels that llama.cpp has since replaced")
    try:
        labels = (row.text("quant_file"), row.text("quant"))
        model = model_of(row.text("model"), labels, row.positive("model_bytes"))
        setup = setup_of(row, len(model.layers))
    except AdvisorError as error:
        return Skipped(row.id, _reason(error))
    if setup.hardware.device.bandwidth is None:
        return Skipped(row.id, f"the bandwidth of {row.text('hardware')} is not known")
    n = int(tokens)
    bench = method == "batched-bench"
    kernel: Literal["auto", "mat-vec", "mat-mat"] = "auto"
    if "mmvq" in note:
        kernel = "mat-vec"
    elif "mmq" in note:
        kernel = "mat-mat"
    return BatchCase(
        id=row.id,
        cluster=row.text("curve_id") or f"{row.text('hardware')} {row.text('model')} {row.text('quant')}",
        source=_source(row),
        model=model,
        setup=setup,
        n=n,
        logits=n if bench else (0 if method == "ub" else 1),
        sequences=n if bench else 1,
        depth=_depth(row, "depth"),
        kernel=kernel,
        measured=measured,
    )


def speculation_case(row: Row, *, blind: bool = False) -> SpeculationCase | Skipped:
    """A speculation line as a case; without ``blind`` it needs its acceptance or mean length."""
    baseline, fast = row.positive("baseline_tps"), row.positive("spec_tps")
    measured = row.positive("speedup") or (fast / baseline if fast and baseline else None)
    if measured is None:
        return Skipped(row.id, "no speedup")
    engine = row.text("engine").lower()
    if engine and not re.search(r"llama\.?cpp|lm[ -]?studio|ollama|kobold", engine):
        return Skipped(row.id, "another engine than llama.cpp")
    method = row.text("method")
    if method not in METHODS:
        return Skipped(row.id, f"unknown method {method}" if method else "no method named")
    k = int(row.positive("draft_max") or 0)
    if k < 1:
        return Skipped(row.id, "no draft length")
    if k > LONGEST_DRAFT:
        return Skipped(row.id, f"a draft length above {LONGEST_DRAFT}")
    rate, length = row.number("acceptance"), row.positive("mean_accepted_length")
    if rate is not None and not 0 <= rate <= 1:
        rate = None
    if rate is None and length is None and not blind:
        return Skipped(row.id, "neither acceptance nor mean length")
    try:
        labels = (row.text("target_quant"), row.text("target_quant_base"))
        target = model_of(row.text("target"), labels, row.positive("target_bytes"))
        draft = _draft_of(row, target)
        setup = setup_of(row, len(target.layers))
    except AdvisorError as error:
        return Skipped(row.id, _reason(error))
    if any(d.bandwidth is None for d in setup.hardware.devices):
        return Skipped(row.id, f"the bandwidth of {row.text('hardware')} is not known")
    if method == "draft-simple" and draft is None:
        return Skipped(row.id, "no draft model named")
    if method == "draft-mtp" and draft is None and target.mtp is None:
        return Skipped(row.id, f"{target.name} has no MTP layers")
    slots = row.positive("parallel")
    return SpeculationCase(
        id=row.id,
        cluster=row.text("setup") or f"{row.text('hardware')} {row.text('target')} {method} {row.text('draft')}",
        source=_source(row),
        target=target,
        draft=draft,
        method=method,  # type: ignore[arg-type]
        setup=setup,
        k=k,
        p_min=min(max(row.number("p_min") or 0.0, 0.0), 1.0),
        acceptance=rate,
        mean_length=length if length is not None and 1 <= length <= k + 2 else None,
        depth=_depth(row, "context_used"),
        parallel=min(int(slots), 256) if slots and slots >= 1 else 1,
        task=row.text("task"),
        temperature=row.number("temperature"),
        measured=measured,
    )


def _draft_of(row: Row, target: ModelDescription) -> ModelDescription | None:
    name = row.text("draft")
    if not name or row.text("method") in NGRAM_METHODS:
        return None
    labels = (row.text("draft_quant"), "Q8_0")
    return model_of(name, tuple(x for x in labels if x), row.positive("draft_bytes"))


def _reason(error: AdvisorError) -> str:
    return error.message.rstrip(".")


# --- rounds of a line -------------------------------------------------------------------------------------------


class Yield(NamedTuple):
    """What a published run says of its rounds: per position the gate, and the share of rounds that drafted."""

    gates: list[Gate]
    hit_rate: float


def rounds_for(case: SpeculationCase, costs: object = None) -> Rounds:
    """The rounds of a line, with the usual or given costs."""
    return rounds_of(
        case.target,
        case.draft,
        case.method,
        case.setup,
        depth=case.depth,
        parallel=case.parallel,
        costs=costs,  # type: ignore[arg-type]
    )


def published_yield(case: SpeculationCase, rollback: str) -> Yield:
    """Acceptance and mean length of a line turned into gates.

    With both figures the drafted length per round is known: (mean length - 1) / acceptance. Where it is below ``k``
    without a gate, some rounds drafted nothing (the end of a request, a missing n-gram). After a restored checkpoint
    the published mean length counts the replay as a round of its own, so acceptance is preferred there.
    """
    k, rate, length, p_min = case.k, case.acceptance, case.mean_length, case.p_min
    if rollback == "checkpoint" and rate is not None:
        length = None
    if rate is None:
        assert length is not None
        return Yield([Gate(1.0, _solve(lambda a: _sum(a, k), length - 1.0))] * k, 1.0)
    if case.method in NGRAM_METHODS and rate <= 0.0:
        # A table that misses costs nothing, and this one never hit: how often it tried is not published.
        return Yield([Gate(1.0, 0.0)] * k, RARE_HITS)
    if length is None or rate <= 0.0:
        positions = positions_behind_gate(rate, k, p_min)
        return Yield([gate(a, p_min) for a in positions], 1.0)
    drafted = (length - 1.0) / rate
    if p_min > 0.0 and drafted < k:
        passed = _solve(lambda s: _sum(s, k), drafted)
        accepted = min(_solve(lambda a: _sum(a, k), length - 1.0), passed)
        return Yield([Gate(passed, accepted)] * k, 1.0)
    constant = positions_behind_gate(rate, k, 0.0)[0]
    return Yield([Gate(1.0, constant)] * k, min(drafted / k, 1.0))


def _sum(x: float, k: int) -> float:
    return float(k) if x >= 1.0 else x * (1.0 - x**k) / (1.0 - x)


def _solve(rising: object, value: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        if rising(middle) < value:  # type: ignore[operator]
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)
