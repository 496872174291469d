"""Costs of this machine as a calibration measured them (``advisor calibrate``, :mod:`advisor.llamacpp.calibrate`).

Nothing here is a formula of the hardware: columns cost what they were seen to cost, stairs and kernel switches
included. Per pass of ``n`` tokens::

    matrix  = (bytes * stream[q](n) + rows * row(n)) * in_rounds         (in_rounds only for n > 1)
    experts = (bytes per expert * (read * distinct(n) + pair * used * n) + rows per expert * row(1) * used * n)
              * in_rounds
    fixed   = step + layers * layer[family](n)
    cache   = bytes * cache(n)                       state = bytes * (state(n) + copies * copy)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from math import log
from pathlib import Path
from typing import Literal

from pydantic import Field

from advisor.base import Figure, Frozen, Provenance
from advisor.errors import InputError
from advisor.hardware.machine import Backend, Device, Setup
from advisor.performance.costs import Experts, Matrices
from advisor.performance.fitted import bits_of, compute_group, stream_group
from advisor.performance.identity import IdentityCache
from advisor.resources import user_data_dir

SCHEMA_VERSION = 1
PROCEDURE = 2
"""How calibrations are taken now; raise it when a stored number means something else than before."""
FOLDER = "calibrations"
MOST_AVERAGED = 8
"""Newest calibrations of a machine that are averaged; more would only make it slow to notice a change."""
AVERAGED_DAYS = 30
"""How much older than the newest a calibration may be to count."""
BUSY = 0.15
"""Share of the processors used by others from which a calibration is called disturbed."""
_FAILED = 1.5
"""Factor between a check's prediction and its measurement from which a calibration is called disturbed too."""
Family = Literal["dense", "sandwich", "experts", "delta", "convolution", "latent"]
"""Kinds of blocks with different small operations: plain, Gemma's extra norms, routed, gated delta net, LFM2, MLA."""

_FAMILIES: tuple[tuple[str, Family], ...] = (
    ("gemma", "sandwich"), ("qwen35", "delta"), ("qwen3next", "delta"), ("qwen4exp", "delta"), ("kimi", "delta"),
    ("nemotron_h", "delta"), ("mamba", "delta"), ("jamba", "delta"), ("falcon-h1", "delta"), ("granitehybrid", "delta"),
    ("plamo2", "delta"), ("rwkv", "delta"), ("arwkv", "delta"), ("bailingmoe3", "delta"), ("glm5-next", "delta"),
    ("lfm2", "convolution"), ("deepseek2", "latent"), ("deepseek3", "latent"), ("deepseek4", "latent"),
    ("glm-dsa", "latent"), ("gpt-oss", "experts"), ("granite-moe", "experts"),
)  # fmt: skip


def family_of_architecture(architecture: str) -> Family:
    """Which measured kind of block stands for an architecture; MoE by its name, everything else is plain."""
    name = architecture.lower()
    for prefix, family in _FAMILIES:
        if name.startswith(prefix):
            return family
    return "experts" if "moe" in name or name in ("mixtral", "dbrx", "grok", "llama4") else "dense"


class Curve(Frozen):
    """Something measured at several numbers of columns: values with their relative spread (1 sd, robust)."""

    columns: tuple[int, ...]
    values: tuple[float, ...]
    spread: float = 0.0

    def at(self, n: int) -> float:
        """Value at ``n`` columns: measured, between two measurements linear, beyond the last by the last slope."""
        xs, ys = self.columns, self.values
        if n <= xs[0]:
            return ys[0]
        for i in range(1, len(xs)):
            if n <= xs[i]:
                return ys[i - 1] + (ys[i] - ys[i - 1]) * (n - xs[i - 1]) / (xs[i] - xs[i - 1])
        if len(xs) == 1:
            return ys[0]
        slope = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
        return max(ys[-1] + slope * (n - xs[-1]), ys[-1])


class MatrixCost(Frozen):
    """Seconds per byte of one pass over dense matrices of a type, by columns."""

    quant: str
    seconds_per_byte: Curve


class ExpertCost(Frozen):
    """Seconds per byte of a routed expert: once per distinct expert (``read``), once per token using it (``pair``)."""

    quant: str
    read: float
    pair: float
    spread: float = 0.0


class DraftCost(Frozen):
    """Overhead of one drafted token beyond its pass [s]: constant, per vocabulary entry, per draft layer."""

    constant: float
    per_entry: float = 0.0
    per_layer: float = 0.0
    spread: float = 0.0


class Correction(Frozen):
    """What a real model of the user cost, over what the parts add up to, by columns: for its architecture."""

    architecture: str
    model: str
    ratio: Curve


class Check(Frozen):
    """A round that was measured and then predicted from the calibration, as evidence of its error."""

    name: str
    method: str
    draft_max: int
    measured: float = Field(gt=0)
    predicted: float = Field(gt=0)


class Machine(Frozen):
    """Enough to tell whether a calibration was taken on this machine."""

    processor: str
    threads: int
    memory: int
    """[GiB], rounded."""
    devices: tuple[str, ...] = ()


class Calibration(Frozen):
    """One machine, backend and build, measured. All times in seconds; every number was measured here."""

    schema_version: int = SCHEMA_VERSION
    procedure: int = 1
    """Only calibrations taken in the same way are averaged."""
    averaged: int = 1
    """Calibrations this one is the mean of."""
    created: str
    machine: Machine
    backend: Backend
    engine: str
    build: str
    threads: int | None = None
    """Threads the engine was told to use; None = its own choice."""
    seconds: float
    """How long the calibration took."""
    contention: float | None = None
    matrices: tuple[MatrixCost, ...]
    rows: Curve | None = None
    """Seconds per row (output) of a matrix, on top of those per byte: every row starts and ends a sum."""
    experts: tuple[ExpertCost, ...] = ()
    layers: dict[Family, Curve]
    """Fixed seconds per layer by kind of block."""
    step: float
    """Seconds per pass that no layer explains: queue, batch, one sampled token of a small vocabulary."""
    cache: Curve
    """Seconds per byte of KV cache."""
    state: Curve | None = None
    """Seconds per byte of recurrent state."""
    state_copy: float = 0.0
    """Seconds per byte of one more snapshot."""
    checkpoint: float | None = None
    """Seconds per byte of state saved through the host; None = not measured."""
    checkpoint_constant: float = 0.0
    sampling: float = 0.0
    """Seconds per vocabulary entry of one sampled row."""
    drafting: dict[str, DraftCost] = Field(default={})
    rounds: dict[str, float] = Field(default={})
    """Seconds per round that depend on nothing else, by method."""
    in_rounds: float = 1.0
    """What the weights of a pass of several tokens cost inside a round, over what they were measured to cost alone."""
    corrections: tuple[Correction, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def contended(self) -> bool:
        """Whether other programs used so much of the machine that its times are too long."""
        return self.contention is not None and self.contention >= BUSY

    @property
    def failed(self) -> Check | None:
        """The check that shows that something went wrong, if any does."""
        return next((c for c in self.checks if abs(log(c.predicted / c.measured)) > log(_FAILED)), None)

    @property
    def disturbed(self) -> bool:
        """Whether it should not be averaged with others."""
        return self.contended or self.failed is not None

    @property
    def label(self) -> str:
        """When it was taken, and of how many it is the mean."""
        day = self.created[:10]
        return f"calibration of {day}" if self.averaged == 1 else f"{self.averaged} calibrations, the last of {day}"

    def figures(self) -> dict[str, Figure]:
        """The headline numbers, for a screen."""
        source = f"{self.label}, {self.engine} {self.build}"

        def figure(value: float, unit: str) -> Figure:
            return Figure(value=value, unit=unit, kind="measured", source=source)

        shown = {}
        for m in self.matrices:
            one, four = m.seconds_per_byte.at(1), m.seconds_per_byte.at(4)
            shown[f"{m.quant} stream"] = figure(1e-9 / one, "GB/s")
            shown[f"{m.quant} four columns"] = figure(four / one, "passes of one column")
        for family, curve in self.layers.items():
            shown[f"{family} layer"] = figure(curve.at(1) * 1e6, "us per layer")
        shown["step"] = figure(self.step * 1e6, "us per pass")
        for method, cost in self.drafting.items():
            shown[f"{method} token"] = figure((cost.constant + cost.per_entry * 32768) * 1e6, "us, 32768 entries")
        return shown


_DEFAULT_SD = 0.06
"""Scatter of R(k) if the calibration brought no checks of its own (assumed)."""
_LEAST_SD = 0.03
_STEP_SD = 0.06


class MeasuredCosts:
    """A calibration as a cost model. Implements :class:`advisor.performance.costs.CostModel`."""

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._matrices = {m.quant: m.seconds_per_byte for m in calibration.matrices}
        self._experts = {e.quant: e for e in calibration.experts}
        self._corrections = {c.architecture: c.ratio for c in calibration.corrections}
        self._nearest: dict[str, tuple[Curve, float]] = {}
        errors = sorted(abs(c.predicted / c.measured - 1) for c in calibration.checks if c.measured > 0)
        # 90 % of a normal lie within 1.64 sd; with a handful of checks the largest but one comes close to that.
        self._sd = max(_LEAST_SD, errors[int(0.9 * (len(errors) - 1))] / 1.64) if errors else _DEFAULT_SD

    @property
    def kind(self) -> Provenance:
        """Always ``measured``."""
        return "measured"

    def log_sd(self, architecture: str, method: str) -> float:
        """From the rounds the calibration predicted and measured itself."""
        known = architecture in self._corrections
        return self._sd if known or not self._corrections else self._sd * 1.2

    def step_log_sd(self, architecture: str) -> float:
        """Scatter of T(1): matrix shapes and caches differ between models."""
        return _LEAST_SD if architecture in self._corrections else _STEP_SD

    def _row(self, n: int) -> float:
        """Seconds per row."""
        rows = self.calibration.rows
        return rows.at(n) if rows is not None else 0.0

    def _curve(self, quant: str) -> tuple[Curve, float]:
        """Seconds per byte of a type, or of the nearest measured one with a factor on its bytes.

        A type in the same streaming group is taken as it is. Otherwise the nearest in bits of the same kernel group:
        compute-bound types cost per weight, not per byte, so bytes are scaled by the ratio of bits.
        """
        found = self._nearest.get(quant)
        if found is None:
            q = quant.upper()
            if q in self._matrices:
                found = self._matrices[q], 1.0
            else:
                same = [k for k in self._matrices if stream_group(k) == stream_group(q)]
                group = [k for k in self._matrices if compute_group(k) == compute_group(q)]
                pool = same or group or list(self._matrices)
                near = min(pool, key=lambda k: abs(bits_of(k) - bits_of(q)))
                found = self._matrices[near], bits_of(near) / bits_of(q) if not same else 1.0
            self._nearest[quant] = found
        return found

    def _factor(self, architecture: str, n: int) -> float:
        ratio = self._corrections.get(architecture)
        return ratio.at(n) if ratio is not None else 1.0

    def _work(self, architecture: str, n: int) -> float:
        """The same for weights, which inside a round cost something else than measured one pass at a time."""
        return self._factor(architecture, n) * (self.calibration.in_rounds if n > 1 else 1.0)

    def fixed(self, architecture: str, layers: float, n: int) -> float:
        """Small operations of the blocks and the step around them [s]."""
        known = self.calibration.layers
        curve = known.get(family_of_architecture(architecture)) or known["dense"]
        return (self.calibration.step + layers * curve.at(n)) * self._factor(architecture, n)

    def matrix(self, weights: Matrices, n: int, architecture: str) -> float:
        """One pass over dense matrices [s]."""
        curve, factor = self._curve(weights.quant)
        return (weights.nbytes * factor * curve.at(n) + weights.rows * self._row(n)) * self._work(architecture, n)

    def experts(self, weights: Experts, n: int, architecture: str) -> float:
        """Routed experts: every distinct one is read once, every (token, expert) pair is computed by itself [s]."""
        quant, nbytes, _, count, used, rows = weights
        distinct = count * (1.0 - (1.0 - used / count) ** n)
        cost = self._expert(quant)
        streamed = nbytes / count * (cost.read * distinct + cost.pair * used * n)
        return (streamed + rows / count * used * n * self._row(1)) * self._work(architecture, n)

    def _expert(self, quant: str) -> ExpertCost:
        found = self._experts.get(quant.upper())
        if found is not None:
            return found
        curve, factor = self._curve(quant)
        rate = curve.at(1) * factor
        if self._experts:
            # The split between reading and computing of the nearest type, at this type's own rate.
            near = min(self._experts.values(), key=lambda e: abs(bits_of(e.quant) - bits_of(quant)))
            near_curve, near_factor = self._curve(near.quant)
            excess = (near.read + near.pair) / (near_curve.at(1) * near_factor)
            share = near.pair / (near.read + near.pair)
        else:
            excess, share = 1.0, min(1.0, max(0.0, curve.at(2) / curve.at(1) - 1.0))
        return ExpertCost(quant=quant, read=rate * excess * (1 - share), pair=rate * excess * share)

    def cache(self, nbytes: float, n: int) -> float:
        """Attention over the cache [s]."""
        return nbytes * self.calibration.cache.at(n)

    def state(self, nbytes: float, n: int, snapshots: int) -> float:
        """Updating recurrent state over ``n`` tokens, with copies for a rollback [s]."""
        c = self.calibration
        one = c.state.at(n) if c.state is not None else c.cache.at(1) * (1 + n)
        return nbytes * (one + min(max(n - 1, 0), snapshots) * c.state_copy)

    def checkpoint(self, nbytes: float) -> float:
        """Saving or restoring state through the host [s]."""
        c = self.calibration
        per_byte = c.checkpoint if c.checkpoint is not None else 2 * c.state_copy
        return c.checkpoint_constant + nbytes * per_byte if nbytes else 0.0

    def drafted_token(self, method: str, vocabulary: int, layers: float = 1.0) -> float:
        """Overhead of one draft pass beyond a pass of the target's kind [s]."""
        cost = self.calibration.drafting.get(method)
        if cost is None:
            # Methods that were not run: EAGLE-3 and DFlash draft like MTP layers do.
            fallback = "draft-simple" if method == "draft-simple" else "draft-mtp"
            cost = self.calibration.drafting.get(fallback) or DraftCost(constant=0.0)
        return cost.constant + cost.per_entry * vocabulary + cost.per_layer * layers

    def verified_token(self, vocabulary: int) -> float:
        """Sampling one row of logits [s]."""
        return self.calibration.sampling * vocabulary

    def round_overhead(self, method: str) -> float:
        """Overhead of a round [s]."""
        known = self.calibration.rounds
        return known.get(method, known.get("ngram-simple" if method.startswith("ngram") else "draft-mtp", 0.0))

    def figures(self, architecture: str, quant: str) -> dict[str, Figure]:
        """What a prediction for such a model rests on."""
        c = self.calibration
        source = f"measured here: {c.label}, with {c.engine}"
        curve, factor = self._curve(quant)
        family = c.layers.get(family_of_architecture(architecture)) or c.layers["dense"]

        def figure(value: float, unit: str) -> Figure:
            return Figure(value=value, unit=unit, kind="measured", source=source)

        return {
            "stream_rate": figure(1e-9 / (curve.at(1) * factor), "GB/s"),
            "four_columns": figure(curve.at(4) / curve.at(1), "passes of one column"),
            "layer_overhead": figure(family.at(1) * 1e6, "us per layer"),
            "step_overhead": figure(c.step * 1e6, "us per pass"),
        }


# -------------------------------------------------------------------------------------------- kept calibrations


def calibration_folder() -> Path:
    """Where calibrations are stored."""
    return user_data_dir() / FOLDER


def save_calibration(calibration: Calibration, folder: Path | None = None) -> Path:
    """Store a calibration; the newest of a machine and backend decides for which engine predictions are made.

    Raises:
        InputError: the folder cannot be written.
    """
    folder = folder or calibration_folder()
    path = folder / _name(calibration)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(calibration.model_dump_json(indent=1), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"The calibration cannot be stored in {folder}: {error.strerror or error}.") from None
    return path


def _name(calibration: Calibration) -> str:
    return f"{calibration.created[:19].replace(':', '')}-{calibration.backend}-{calibration.build}.json"


def forget_calibrations(calibrations: Sequence[Calibration], folder: Path | None = None) -> None:
    """Delete stored calibrations; those that are not stored are ignored.

    Raises:
        InputError: a file cannot be deleted.
    """
    folder = folder or calibration_folder()
    for calibration in calibrations:
        path = folder / _name(calibration)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{path} cannot be deleted: {error.strerror or error}.") from None


def load_calibrations(folder: Path | None = None) -> tuple[Calibration, ...]:
    """All stored calibrations that this version understands, newest first; damaged files are left out."""
    folder = folder or calibration_folder()
    try:
        paths = tuple(sorted((p, p.stat().st_mtime_ns) for p in folder.glob("*.json")))
    except OSError:
        return ()
    return _load(paths)


@lru_cache(maxsize=8)
def _load(paths: tuple[tuple[Path, int], ...]) -> tuple[Calibration, ...]:
    from pydantic import ValidationError

    found = []
    for path, _ in paths:
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(value, dict) and value.get("schema_version") == SCHEMA_VERSION:
                found.append(Calibration.model_validate(value))
        except (OSError, ValueError, ValidationError):
            continue
    return tuple(sorted(found, key=lambda c: c.created, reverse=True))


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    """Fingerprint of the machine we run on."""
    import platform

    import psutil

    processor = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = [x.partition(":")[2].strip() for x in lines if x.startswith("model name")]
        processor = names[0] if names else processor
    except OSError:
        pass
    return Machine(
        processor=processor,
        threads=psutil.cpu_count() or 1,
        memory=round(psutil.virtual_memory().total / 2**30),
    )


def applicable(setup: Setup, device: Device | None = None, backend: Backend | None = None) -> Calibration | None:
    """What was measured on the machine of ``setup`` with this backend; None = nothing.

    The newest calibration decides for which engine; all of that engine taken in the same way are averaged, because
    what a machine gives changes from minute to minute (see :func:`comparable`).
    Only a detected machine is this machine: a profile by name or numbers describe another one.
    """
    if setup.hardware.source != "detected":
        return None
    backend = backend or setup.backend
    here = this_machine()
    found = [c for c in load_calibrations() if c.backend == backend and _same_machine(c.machine, here)]
    if not found:
        return None
    mine = comparable(found[0], found)
    return _MEANS.get(tuple(mine), None, lambda: mean_of(mine))


_MEANS: IdentityCache[Calibration] = IdentityCache(16)


def _same_machine(there: Machine, here: Machine) -> bool:
    return (there.processor, there.threads) == (here.processor, here.threads) and abs(there.memory - here.memory) <= 1


def comparable(newest: Calibration, calibrations: Sequence[Calibration]) -> list[Calibration]:
    """Calibrations that measured the same as ``newest``, which is one of them; newest first.

    Same machine, backend, engine, threads and procedure, at most ``AVERAGED_DAYS`` older, ``MOST_AVERAGED`` at most;
    disturbed ones only if ``newest`` is the only one left.
    """

    recent = [c for c in alike(newest, calibrations) if _when(newest) - _when(c) <= timedelta(days=AVERAGED_DAYS)]
    mine = sorted(recent, key=lambda c: c.created, reverse=True)
    return [c for c in mine if not c.disturbed][:MOST_AVERAGED] or [newest]


def alike(newest: Calibration, calibrations: Sequence[Calibration]) -> list[Calibration]:
    """All calibrations of the same machine, backend, engine, threads and procedure that are not newer."""

    def same(c: Calibration) -> bool:
        return (
            _same_machine(c.machine, newest.machine)
            and (c.machine.devices, c.backend, c.engine, c.build, c.threads, c.procedure)
            == (newest.machine.devices, newest.backend, newest.engine, newest.build, newest.threads, newest.procedure)
            and _when(c) <= _when(newest)
        )

    return [c for c in calibrations if same(c)]


def _when(calibration: Calibration) -> datetime:
    try:
        when = datetime.fromisoformat(calibration.created)
    except ValueError:
        return datetime.min.replace(tzinfo=timezone.utc)
    return when if when.tzinfo else when.replace(tzinfo=timezone.utc)


def mean_of(calibrations: Sequence[Calibration]) -> Calibration:
    """Comparable calibrations as one: every cost is the mean of theirs, at the points of the first.

    Means and not medians, because numbers of one calibration make up for each other (a constant and its slope).
    Checks are kept as they were, each predicted by its own calibration.
    """
    first = calibrations[0]
    if len(calibrations) == 1:
        return first

    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    def curve(curves: Sequence[Curve | None]) -> Curve | None:
        known = [c for c in curves if c is not None]
        if not known:
            return None
        return Curve(
            columns=known[0].columns,
            values=tuple(mean([c.at(n) for c in known]) for n in known[0].columns),
            spread=mean([c.spread for c in known]),
        )

    def present(curves: Sequence[Curve | None]) -> Curve:
        found = curve(curves)
        assert found is not None  # the first calibration has it
        return found

    matrices = []
    for m in first.matrices:
        same = [x for c in calibrations for x in c.matrices if x.quant == m.quant]
        matrices.append(MatrixCost(quant=m.quant, seconds_per_byte=present([x.seconds_per_byte for x in same])))
    experts = []
    for e in first.experts:
        alike = [x for c in calibrations for x in c.experts if x.quant == e.quant]
        sums = {name: mean([getattr(x, name) for x in alike]) for name in ("read", "pair", "spread")}
        experts.append(ExpertCost(quant=e.quant, **sums))
    drafting = {}
    for method in first.drafting:
        costs = [c.drafting[method] for c in calibrations if method in c.drafting]
        drafting[method] = DraftCost(
            **{name: mean([getattr(x, name) for x in costs]) for name in DraftCost.model_fields}
        )
    saved = [c.checkpoint for c in calibrations if c.checkpoint is not None]
    corrections: dict[str, Correction] = {}
    for c in calibrations:
        for known in c.corrections:
            corrections.setdefault(known.architecture, known)
    plain = ("step", "state_copy", "checkpoint_constant", "sampling", "in_rounds")
    return first.model_copy(
        update={name: mean([getattr(c, name) for c in calibrations]) for name in plain}
        | {
            "averaged": len(calibrations),
            "seconds": sum(c.seconds for c in calibrations),
            "contention": max((c.contention for c in calibrations if c.contention is not None), default=None),
            "matrices": tuple(matrices),
            "rows": curve([c.rows for c in calibrations]),
            "experts": tuple(experts),
            "layers": {f: present([c.layers.get(f) for c in calibrations]) for f in first.layers},
            "cache": present([c.cache for c in calibrations]),
            "state": curve([c.state for c in calibrations]),
            "checkpoint": mean(saved) if saved else None,
            "drafting": drafting,
            "rounds": {m: mean([c.rounds[m] for c in calibrations if m in c.rounds]) for m in first.rounds},
            "corrections": tuple(corrections.values()),
            "checks": tuple(check for c in calibrations for check in c.checks),
        }
    )


_COSTS: IdentityCache[MeasuredCosts] = IdentityCache(16)


def measured_costs(setup: Setup, device: Device, backend: Backend) -> MeasuredCosts | None:
    """The cost model of a tier from a stored calibration of this machine, if one applies."""
    calibration = applicable(setup, device, backend)
    if calibration is None:
        return None
    found = calibration
    return _COSTS.get((found,), None, lambda: MeasuredCosts(found))
