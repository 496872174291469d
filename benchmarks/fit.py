"""Fit the constants of the physics to the tables in ``data/`` and write ``data/constants.json`` (``make fit``).

Every measurement becomes a ratio of two sums of charges: the product's own code lays the models out and asks a
*recording* cost model, so the fit cannot drift away from what is shipped. The charges are then evaluated for all
measurements at once, and the logarithms of all constants are fitted together by penalised, robust least squares
(Student-t errors, normal priors: deviations of an architecture family shrink towards their backend).

The lines of the article (A0001 to A0003) carry ``usable_for`` = test and never enter.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from advisor.hardware.machine import Backend, Device
from advisor.performance import fitted
from advisor.performance.constants import Constant, Constants, family_of, load_constants
from advisor.performance.costs import Experts, Matrices
from advisor.performance.passes import plan_of
from advisor.speculation import rounds as rounds_module
from advisor.validation import cases as case_module
from advisor.validation.cases import BatchCase, Case, DecodeCase, Skipped, SpeculationCase
from advisor.validation.report import weighted_quantile
from advisor.validation.tables import Row, read_table

DATA = Path(__file__).resolve().parent.parent / "data"
TABLES = ("decode", "batch", "speculation")
SCALE = {"decode": 0.10, "batch": 0.10, "speculation": 0.08}
"""Scale of the Student-t errors, in logarithms, by table."""
Array = NDArray[np.float64]
Key = tuple[Any, ...]
Terms = dict[Key, float]


# --- recording ----------------------------------------------------------------------------------------------------


class Linear:
    """A sum of charges: coefficient by kind of charge."""

    __slots__ = ("terms",)

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    def __add__(self, other: Linear | float) -> Linear:
        terms = dict(self.terms)
        for key, value in other.terms.items() if isinstance(other, Linear) else [(("const",), other)]:
            if value:
                terms[key] = terms.get(key, 0.0) + value
        return Linear(terms)

    __radd__ = __add__

    def __mul__(self, factor: float) -> Linear:
        return Linear({key: value * factor for key, value in self.terms.items()})

    __rmul__ = __mul__


class Recorder:
    """A cost model that writes down what it is asked instead of answering."""

    kind = "fitted"

    def __init__(self, index: int) -> None:
        self.index = index

    def fixed(self, architecture: str, layers: float, n: int) -> Linear:
        return Linear({("layer", self.index): layers})

    def matrix(self, weights: Matrices, n: int, architecture: str) -> Linear:
        return Linear({("matrix", self.index, weights.quant, n): weights.nbytes})

    def experts(self, weights: Experts, n: int, architecture: str) -> Linear:
        key = ("experts", self.index, weights.quant, n, weights.total, weights.used)
        return Linear({key: weights.nbytes})

    def cache(self, nbytes: float, n: int) -> Linear:
        return Linear({("memory", self.index): nbytes})

    def state(self, nbytes: float, n: int, snapshots: int) -> Linear:
        return Linear({("memory", self.index): nbytes * (2.0 + min(max(n - 1, 0), snapshots))})

    def checkpoint(self, nbytes: float) -> Linear:
        return Linear({("checkpoint",): nbytes})

    def drafted_token(self, method: str, vocabulary: int, layers: float = 1.0) -> Linear:
        if method == "draft-simple":
            return Linear({("draft_layer", self.index): layers, ("sampling",): float(vocabulary)})
        return Linear({("draft_token", self.index): 1.0})

    def verified_token(self, vocabulary: int) -> Linear:
        return Linear({("sampling",): float(vocabulary)})

    def round_overhead(self, method: str) -> float:
        return 0.0


@dataclass
class Machine:
    """One (device, backend, old or new build, kernel) as the formulas need it."""

    device: Device
    backend: Backend
    old: bool
    kernel: str

    def __post_init__(self) -> None:
        self.family = family_of(self.device)
        assert self.device.bandwidth is not None
        self.bandwidth = self.device.bandwidth.value * 1e9
        self.rho = fitted.compute_ratio(self.device)[0]
        self.matrix = fitted.matrix_ratio(self.device)


class Recording:
    """Hands out recorders and remembers which machine each belongs to."""

    def __init__(self) -> None:
        self.machines: list[Machine] = []
        self._known: dict[Key, Recorder] = {}
        self._sources: dict[Key, Callable[[Device, Backend], Recorder]] = {}

    def source(self, build: int | None, kernel: str = "auto") -> Any:
        """What a plan asks for the cost model of a tier."""
        old = build is not None and build < fitted.OLD_EXPERT_BUILDS

        def give(device: Device, backend: Backend) -> Recorder:
            key = (device.slug, device.bandwidth and device.bandwidth.value, backend, old, kernel)
            if key not in self._known:
                self._known[key] = Recorder(len(self.machines))
                self.machines.append(Machine(device, backend, old, kernel))
            return self._known[key]

        return self._sources.setdefault((old, kernel), give)


@dataclass
class Observation:
    """ln(measured) of a ratio of charges, and the groups it belongs to. ``parts`` are those of a round."""

    table: str
    case: Case
    numerator: Terms
    denominator: Terms
    log_measured: float
    devices: frozenset[str]
    fitted: bool = True
    tokens: float = 1.0
    parts: dict[str, Terms] | None = None


def load(kind: str) -> tuple[list[Case], list[Skipped]]:
    """Usable lines of one table, and the others with their reasons."""
    want: Any = getattr(case_module, f"wanted_{kind}")
    make: Any = getattr(case_module, f"{kind}_case")
    rows: Iterable[Row] = read_table(DATA / f"{kind}.csv").rows
    used: list[Case] = []
    skipped: list[Skipped] = []
    for row in rows:
        reason = want(row)
        case = Skipped(row.id, reason) if reason else make(row)
        (skipped if isinstance(case, Skipped) else used).append(case)
    return used, skipped


def _terms(value: Any) -> Terms:
    return value.terms if isinstance(value, Linear) else ({("const",): value} if value else {})


def observe(recording: Recording, case: Case) -> Observation:
    """A case as a ratio of recorded charges."""
    setup = case.setup
    devices = frozenset(d.slug for d in setup.hardware.devices)
    if isinstance(case, DecodeCase):
        step: Any = plan_of(case.model, setup, recording.source(setup.build)).seconds(1, None, case.depth)
        return Observation("decode", case, {("const",): 1.0}, step.terms, math.log(case.measured), devices)
    if isinstance(case, BatchCase):
        plan = plan_of(case.model, setup, recording.source(setup.build, case.kernel))
        many: Any = plan.seconds(case.n, case.logits, case.depth, 0, case.sequences)
        one: Any = plan.seconds(1, min(case.logits, 1), case.depth)
        jump = {
            ("jump", *key[1:]): value for key, value in one.terms.items() if key[0] == "experts" and case.sequences == 1
        }
        # Batched decoding of a recurrent model reads and writes one state per sequence, a verification only one.
        alike = not (case.model.is_recurrent and case.sequences > 1)
        return Observation("batch", case, {**many.terms, **jump}, one.terms, math.log(case.measured), devices, alike)
    rounds = case_module.rounds_for(case, recording.source(setup.build))
    told = case_module.published_yield(case, rounds.rollback)
    e: Any = rounds.expected(case.k, told.gates, told.hit_rate)
    base: Any = rounds.base
    total: Any = e.draft + e.verify + e.overhead + e.rollback
    return Observation(
        "speculation",
        case,
        {key: value * e.tokens for key, value in base.terms.items()},  # speedup = tokens * base / total
        total.terms,
        math.log(case.measured),
        devices,
        tokens=e.tokens,
        parts={name: _terms(getattr(e, name)) for name in ("draft", "verify", "overhead", "rollback")},
    )


def observe_all() -> tuple[Recording, list[Observation]]:
    """All usable lines of the three tables."""
    recording = Recording()
    return recording, [observe(recording, case) for kind in TABLES for case in load(kind)[0]]


def weights_of(observations: Sequence[Observation]) -> Array:
    """Weight of each line: clusters count by the root of their size, pass times half, unlike ones not at all."""
    sizes = Counter((o.table, o.case.cluster) for o in observations)
    return np.array(
        [
            (0.5 if o.table == "batch" else 1.0) / math.sqrt(sizes[o.table, o.case.cluster]) if o.fitted else 0.0
            for o in observations
        ]
    )


# --- parameters ---------------------------------------------------------------------------------------------------


@dataclass
class Parameter:
    """A constant: its unit, and the prior of its logarithm."""

    unit: str
    mean: float
    sd: float


PRIORS: dict[str, tuple[str, float, float]] = {
    # name: unit, centre, standard deviation of the logarithm. "name.*" is one constant per backend.
    "stream.*": ("share of peak bandwidth", 0.7, 0.3),
    "layer.*": ("us per layer", 100.0, 0.7),
    "compute.*": ("decode steps per column at 6 bits", 0.25, 0.4),
    "tile.*": ("decode steps per tile at 6 bits", 1.5, 0.6),
    "expert.*": ("share of uniform routing", 0.75, 0.3),
    "draft_layer.*": ("us per layer of a draft model", 120.0, 0.6),
    "draft_token.*": ("us per token of a drafter", 700.0, 0.6),
    "smooth": ("exponent above 1", 0.4, 0.5),
    "tile_rate": ("exponent", 0.7, 0.4),
    "tile_quant": ("exponent", 0.5, 0.5),
    "skew": ("share of the experts", 0.6, 0.5),
    "checkpoint": ("GB/s", 8.0, 0.5),
    "sampling": ("ns per vocabulary entry", 5.0, 0.4),
}
"""Centres are orders of magnitude from hardware and engine, not from these tables."""
ONCE = tuple(name for name in PRIORS if "*" not in name)
"""Constants of which there is only one."""
BACKEND_PRIORS: dict[str, tuple[float, float]] = {
    # Metal multiplies quantised weights with few threads per column; CPUs compute with tens of GFLOPS per GB/s.
    # CUDA's mat-mat kernels start with tiles of 8 columns, those of Metal and Vulkan with 32.
    "compute.metal": (0.6, 0.4), "compute.cpu": (0.35, 0.4), "compute.opencl": (0.5, 0.5), "compute.sycl": (0.3, 0.5),
    "tile.vulkan": (3.0, 0.6), "tile.metal": (3.0, 0.6), "tile.cpu": (3.0, 0.6),
    "draft_layer.cpu": (50.0, 0.6), "layer.cuda": (55.0, 0.7), "layer.vulkan": (65.0, 0.7),
}  # fmt: skip
FAMILY_SD = {"stream": 0.15, "layer": 0.4, "compute": 0.10}
"""How far an architecture family may stray from its backend (log); CPUs differ more in compute."""
CPU_FAMILY_SD = 0.4


@dataclass
class Options:
    """Variants for the ablation: constants pinned to a value, and terms left out of the formulas."""

    pinned: dict[str, float]
    rate_exponent: float = 0.5
    bits_exponent: float = 1.0
    family_compute: bool = True
    expert_tiles: bool = True
    omit: tuple[str, ...] = ()


class Problem:
    """Observations, parameters, and the formulas of :class:`advisor.performance.fitted.FittedCosts` over arrays."""

    def __init__(
        self, observations: Sequence[Observation], machines: Sequence[Machine], options: Options | None = None
    ) -> None:
        self.observations = list(observations)
        self.machines = list(machines)
        self.options = options or Options({})
        self.keys: dict[Key, int] = {}
        sides = [self._sides(o) for o in self.observations]
        for numerator, denominator in sides:
            for key in (*numerator, *denominator):
                self.keys.setdefault(key, len(self.keys))
        self.parameters: dict[str, Parameter] = {}
        self._declare()
        self.names = list(self.parameters)
        self.position = {name: i for i, name in enumerate(self.names)}
        self.mean = np.array([self.parameters[n].mean for n in self.names])
        self.sd = np.array([self.parameters[n].sd for n in self.names])
        self._compile()
        self.log_measured = np.array([o.log_measured for o in self.observations])
        self.numerator = self._matrix([n for n, _ in sides])
        self.denominator = self._matrix([d for _, d in sides])

    def _sides(self, o: Observation) -> tuple[Terms, Terms]:
        omit = set(self.options.omit)
        if o.parts is None or not omit:
            return o.numerator, o.denominator
        denominator: Terms = {}
        for name, terms in o.parts.items():
            part = terms
            if name in omit:
                part = {k: v / o.tokens for k, v in o.numerator.items()} if name == "verify" else {}
            for key, value in part.items():
                denominator[key] = denominator.get(key, 0.0) + value
        return o.numerator, denominator

    def _matrix(self, sides: Sequence[Terms]) -> Any:
        rows, columns, values = [], [], []
        for i, side in enumerate(sides):
            for key, value in side.items():
                rows.append(i)
                columns.append(self.keys[key])
                values.append(value)
        return sparse.csr_matrix((values, (rows, columns)), shape=(len(sides), len(self.keys)))

    # -- which constants exist, with their priors --------------------------------------------------------------------

    def _add(self, name: str, unit: str, centre: float, sd: float) -> None:
        if name in self.options.pinned:
            centre, sd = self.options.pinned[name], 1e-4
        self.parameters.setdefault(name, Parameter(unit, math.log(centre), sd))

    def _declare(self) -> None:
        backends = sorted({m.backend for m in self.machines})
        for pattern, (unit, centre, sd) in PRIORS.items():
            for name in [pattern.replace("*", b) for b in backends] if "*" in pattern else [pattern]:
                self._add(name, unit, *BACKEND_PRIORS.get(name, (centre, sd)))
        for m in self.machines:
            for part, sd in FAMILY_SD.items():
                if part == "compute" and not self.options.family_compute and m.backend != "cpu":
                    continue
                wide = CPU_FAMILY_SD if part == "compute" and m.backend == "cpu" else sd
                self._add(f"{part}.{m.backend}.{m.family}", "factor", 1.0, wide)
            if m.old and m.backend in ("vulkan", "rocm"):
                self._add(f"legacy.{m.backend}", "factor", 1.5, 0.7)
        self._add("bench_jump.cuda", "decode steps of the experts", 0.4, 0.7)
        for key in self.keys:
            if key[0] in ("matrix", "experts"):
                self._add(f"quant.{fitted.stream_group(key[2])}", "factor", 1.0, 0.15)
                group = fitted.compute_group(key[2])
                if group != "K4":  # the type that the rate itself is told for
                    self._add(f"compute_quant.{group}", "factor", 1.0, 0.4)

    # -- index arrays ------------------------------------------------------------------------------------------------

    def _at(self, names: Iterable[str]) -> NDArray[np.int64]:
        """Positions of parameters; one past the end, where a zero stands, for those that do not exist."""
        return np.array([self.position.get(n, len(self.names)) for n in names], dtype=np.int64)

    def _compile(self) -> None:
        kinds: dict[str, list[tuple[Key, int]]] = {}
        for key, i in self.keys.items():
            kinds.setdefault(key[0], []).append((key, i))
        self.tables: dict[str, dict[str, Any]] = {}
        for kind, entries in kinds.items():
            if kind in ("const", "checkpoint", "sampling"):
                continue
            ms = [self.machines[k[1]] for k, _ in entries]
            backend = [m.backend for m in ms]
            place = [f"{m.backend}.{m.family}" for m in ms]
            t: dict[str, Any] = {
                "at": np.array([i for _, i in entries], dtype=np.int64),
                "stream": self._at(f"stream.{b}" for b in backend),
                "stream_family": self._at(f"stream.{p}" for p in place),
                "layer_family": self._at(f"layer.{p}" for p in place),
                "log_bandwidth": np.log([m.bandwidth for m in ms]),
            }
            self.tables[kind] = t
            if kind in ("layer", "draft_layer", "draft_token"):
                t["own"] = self._at(f"{kind}.{b}" for b in backend)
                continue
            if kind == "memory":
                continue
            quants = [k[2] for k, _ in entries]
            n = np.array([k[3] for k, _ in entries], dtype=float)
            limits = [
                {"auto": fitted.switch_of(m.backend, m.family, q), "mat-vec": fitted.NO_SWITCH, "mat-mat": 1}[m.kernel]
                for m, q in zip(ms, quants, strict=True)
            ]
            t |= {
                "n": n,
                "vec": n <= np.array(limits),
                "quant": self._at(f"quant.{fitted.stream_group(q)}" for q in quants),
                "compute": self._at(f"compute.{b}" for b in backend),
                "compute_family": self._at(f"compute.{p}" for p in place),
                "compute_quant": self._at(f"compute_quant.{fitted.compute_group(q)}" for q in quants),
                "log_thin": np.log([6.0 / fitted.bits_of(q) for q in quants]),
                "log_rho": np.array([math.log(m.rho) if m.backend != "cpu" else 0.0 for m in ms]),
                "tile": self._at(f"tile.{b}" for b in backend),
                "log_matrix": np.log([m.matrix for m in ms]),
            }
            if kind != "matrix":
                t["total"] = np.array([k[4] for k, _ in entries], dtype=float)
                t["used"] = np.array([k[5] for k, _ in entries], dtype=float)
                t["pairs"] = np.array([b == "metal" for b in backend])
                t["expert"] = self._at(f"expert.{b}" for b in backend)
                t["old"] = np.array([m.old for m in ms])
                t["legacy"] = self._at(f"legacy.{m.backend}" if m.old else "" for m in ms)
                t["jump"] = self._at(f"bench_jump.{b}" for b in backend)

    # -- formulas ----------------------------------------------------------------------------------------------------

    def charges(self, x: Array) -> Array:
        """Seconds of every distinct charge."""
        z = np.append(x, 0.0)
        value = np.exp(z)
        one = {name: value[self.position[name]] for name in ONCE}
        out = np.zeros(len(self.keys))
        if ("const",) in self.keys:
            out[self.keys[("const",)]] = 1.0
        if ("checkpoint",) in self.keys:
            out[self.keys[("checkpoint",)]] = 1e-9 / one["checkpoint"]
        if ("sampling",) in self.keys:
            out[self.keys[("sampling",)]] = 1e-9 * one["sampling"]
        p = 1.0 + one["smooth"]
        for kind, t in self.tables.items():
            memory = np.exp(-(z[t["stream"]] + z[t["stream_family"]] + t["log_bandwidth"]))
            if kind == "memory":
                out[t["at"]] = memory
            elif kind in ("layer", "draft_layer", "draft_token"):
                out[t["at"]] = np.exp(z[t["own"]] + z[t["layer_family"]]) * 1e-6
            else:
                out[t["at"]] = memory / value[t["quant"]] * self._ratio(kind, t, z, value, one, p)
        return out

    def _ratio(self, kind: str, t: dict[str, Any], z: Array, value: Array, one: dict[str, float], p: float) -> Array:
        """What one pass over a matrix costs, in units of streaming it once."""
        share = t["used"] / t["total"] if kind != "matrix" else 1.0
        if kind == "jump":
            return share * np.where(t["jump"] < len(self.names), value[t["jump"]], 0.0)
        o, n = self.options, t["n"]
        c = np.exp(
            z[t["compute"]] + z[t["compute_family"]] + z[t["compute_quant"]]
            + o.bits_exponent * t["log_thin"] - o.rate_exponent * t["log_rho"]
        )  # fmt: skip
        vec = ((1 + (n * c) ** p) / (1 + c**p)) ** (1 / p)
        tile = np.exp(
            z[t["tile"]] + t["log_thin"] + one["tile_rate"] * t["log_matrix"]
            + one["tile_quant"] * z[t["compute_quant"]]
        )  # fmt: skip
        flat = (1 + tile**p) ** (1 / p)
        mat = flat * np.maximum(1.0, n / fitted.TILE) ** 0.5
        ratio = np.where(n <= 1, 1.0, np.where(t["vec"], vec, mat))
        if kind == "experts":
            used = t["used"]
            pool = np.maximum(used + one["skew"] * (t["total"] - used), used * 1.0001)
            distinct = np.minimum(pool * (1 - (1 - used / pool) ** n) / used, np.minimum(n, t["total"] / used))
            streams = np.where(t["pairs"], n, distinct)
            share_of = value[t["expert"]]
            single = ratio + share_of * (streams - 1)
            tiles = flat * (1 + share_of * (distinct - 1)) * value[t["legacy"]]
            if not o.expert_tiles:  # mat-mat experts as if they were one matrix
                tiles = single * value[t["legacy"]]
            ratio = np.where(n <= 1, 1.0, np.where(t["vec"] & ~t["old"], single, tiles))
        return share * ratio

    def predict(self, x: Array) -> Array:
        """ln of the predicted ratios."""
        q = self.charges(x)
        return np.log(self.numerator @ q) - np.log(self.denominator @ q)

    def jacobian(self, x: Array, base: Array, step: float = 1e-4) -> Array:
        """d predict / d x by forward differences."""
        out = np.empty((len(base), len(x)))
        for i in range(len(x)):
            moved = x.copy()
            moved[i] += step
            out[:, i] = (self.predict(moved) - base) / step
        return out


def solve(
    problem: Problem,
    weight: Array,
    start: Array | None = None,
    *,
    nu: float = 4.0,
    rounds: int = 30,
    tolerance: float = 1e-3,
) -> tuple[Array, Array]:
    """Constants (logs) with the highest posterior, and their covariance: Gauss-Newton on reweighted residuals."""
    scale = np.array([SCALE[o.table] for o in problem.observations])
    x = problem.mean.copy() if start is None else start.copy()
    prior = 1.0 / problem.sd**2

    def loss(y: Array) -> float:
        r = (problem.predict(y) - problem.log_measured) / scale
        likelihood = np.sum(weight * 0.5 * (nu + 1) * np.log1p(r * r / nu))
        return float(likelihood + 0.5 * np.sum(prior * (y - problem.mean) ** 2))

    current = loss(x)
    damping = 1e-3
    hessian = np.diag(prior)
    for _ in range(rounds):
        base = problem.predict(x)
        j = problem.jacobian(x, base)
        error = base - problem.log_measured
        w = weight * (nu + 1) / (nu + (error / scale) ** 2) / scale**2
        gradient = j.T @ (w * error) + prior * (x - problem.mean)
        hessian = (j * w[:, None]).T @ j + np.diag(prior)
        gain = 0.0
        for _ in range(8):
            step = np.clip(np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient), -0.7, 0.7)
            trial = loss(x - step)
            if trial < current:
                gain, x, current = current - trial, x - step, trial
                damping = max(damping / 5, 1e-6)
                break
            damping = damping * 5 + 1e-4
        if gain < tolerance:
            break
    return x, np.linalg.inv(hessian)


# --- the gate -----------------------------------------------------------------------------------------------------


GATE_PRIOR, GATE_SD = (2.0, 0.7), 0.4
"""``gate.stop`` and ``gate.loss`` before any line was seen, and the standard deviation of their logarithms."""


def assume_gate(stop: float, loss: float) -> None:
    """Let published lines with p-min above 0 be read with these factors, whatever an earlier fit has left behind."""
    values = load_constants().values
    for name, value in (("gate.stop", stop), ("gate.loss", loss)):
        values[name] = values[name].model_copy(update={"value": value})
    rounds_module.positions_behind_gate.cache_clear()


def fit_gate(problem: Problem, recording: Recording, x: Array, weight: Array) -> tuple[float, float, int]:
    """The two factors of the confidence gate, from lines with p-min above 0; everything else is held fixed.

    Lines weigh what they weigh in the fit: one author's sweep must not decide alone.

    Returns:
        ``gate.stop``, ``gate.loss`` and the number of lines.
    """
    found = [
        (o, o.case, float(w))
        for o, w in zip(problem.observations, weight, strict=True)
        if isinstance(o.case, SpeculationCase) and o.case.p_min > 0 and o.case.acceptance is not None
    ]
    costs = problem.charges(x)

    def seconds(terms: Any) -> float:
        return sum(v * costs[problem.keys[k]] for k, v in _terms(terms).items())

    rounds_by_case = [case_module.rounds_for(c, recording.source(c.setup.build)) for _, c, _ in found]
    works: list[dict[int, float]] = []
    for (_, c, _), r in zip(found, rounds_by_case, strict=True):
        made: dict[int, float] = {}
        for m in range(c.k + 1):
            w = r.work(m, c.k)
            # Other lines may not have needed this pass; its charges are then missing and the line is left out.
            terms = {**_terms(w.draft)}
            for part in (w.verify, w.overhead):
                for key, value in _terms(part).items():
                    terms[key] = terms.get(key, 0.0) + value
            if all(key in problem.keys for key in terms):
                made[m] = sum(v * costs[problem.keys[k]] for k, v in terms.items())
        works.append(made)
    usable = [i for i, (_, c, _) in enumerate(found) if len(works[i]) == c.k + 1]

    def error(stop: float, loss: float) -> float:
        total = 0.0
        for i in usable:
            o, c, w = found[i]
            assert c.acceptance is not None
            low, high = 0.0, 1.0
            for _ in range(30):
                a = 0.5 * (low + high)
                g = rounds_module.gate(a, c.p_min, stop, loss)
                drafted = sum(g.passed**j for j in range(1, c.k + 1))
                rate = sum(g.accepted**j for j in range(1, c.k + 1)) / max(drafted, 1e-9)
                low, high = (a, high) if rate < c.acceptance else (low, a)
            g = rounds_module.gate(a, c.p_min, stop, loss)
            tokens = 1 + sum(g.accepted**j for j in range(1, c.k + 1))
            cost = sum(g.passed**m * ((1 - g.passed) if m < c.k else 1.0) * works[i][m] for m in range(c.k + 1))
            r = (math.log(tokens * seconds(rounds_by_case[i].base) / cost) - o.log_measured) / SCALE["speculation"]
            total += w * 2.5 * math.log1p(r * r / 4.0)
        return total + 0.5 * sum(
            (math.log(v / c) / GATE_SD) ** 2 for v, c in zip((stop, loss), GATE_PRIOR, strict=True)
        )

    if not usable:
        return *GATE_PRIOR, 0
    grid = [(error(s, q), s, q) for s in np.arange(1.0, 3.6, 0.2) for q in np.arange(0.3, 1.01, 0.1)]
    _, stop, loss = min(grid)
    return float(stop), float(loss), len(usable)


# --- what each constant rests on ----------------------------------------------------------------------------------


def constants_of(
    problem: Problem, x: Array, covariance: Array, weight: Array, extra: dict[str, Constant], told: str
) -> Constants:
    """The fitted constants with unit, standard error, and the measurements that moved them."""
    base = problem.predict(x)
    j = np.abs(problem.jacobian(x, base)) > 0.01
    se = np.sqrt(np.diag(covariance))
    values: dict[str, Constant] = {}
    for i, name in enumerate(problem.names):
        seen = [o for o, hit, w in zip(problem.observations, j[:, i], weight, strict=True) if hit and w > 0]
        values[name] = Constant(
            value=round(float(math.exp(x[i])), 5),
            unit=problem.parameters[name].unit,
            log_se=round(float(se[i]), 4),
            rows=len(seen),
            devices=len({d for o in seen for d in o.devices}),
            sources=len({o.case.source for o in seen}),
            prior=not seen or bool(se[i] > 0.97 * problem.sd[i]),
        )
    return Constants(fitted=told, values={**values, **extra})


UNKNOWN_SCATTER: dict[str, float] = {
    # Widening for what the tables cannot say (log s.d., assumed): they add in quadrature.
    "scatter.unknown_rate": 0.06,
    "scatter.unseen_family": 0.08,
    "scatter.unseen_backend": 0.25,
    "scatter.unseen_draft": 0.15,
    "scatter.rare_method": 0.10,
    "scatter.checkpoint": 0.08,
    "scatter.experts": 0.06,
    "scatter.gate": 0.06,
    "scatter.slots": 0.25,
    "scatter.tiers": 0.12,
    "scatter.mat_mat": 0.25,
    "scatter.verify_experts": 0.12,
    "scatter.old_build": 0.35,
    "scatter.batched_state": 0.40,
    "scatter.step_family": 0.15,
    "scatter.few_cores": 0.25,
}


def scatter_constants(sizes: dict[str, float]) -> dict[str, Constant]:
    """Spread of the errors of left-out devices, and the assumed widenings."""
    unit = "s.d. of ln(true / predicted)"
    found = {name: Constant(value=value, unit=unit, log_se=0.3, prior=True) for name, value in UNKNOWN_SCATTER.items()}
    for name, value in sizes.items():
        found[name] = Constant(value=round(value, 4), unit=unit, log_se=0.15)
    return found


def leave_out(
    problem: Problem,
    weight: Array,
    start: Array,
    held: Sequence[NDArray[np.bool_]],
    rounds: int = 4,
    report: Sequence[NDArray[np.bool_]] | None = None,
) -> Array:
    """Predictions of each held-out set from a fit to everything else (NaN where nothing was held out).

    ``report`` restricts what is predicted in each fold to a part of what is held out.
    """
    predicted = np.full(len(problem.observations), np.nan)
    for i, mask in enumerate(held):
        x, _ = solve(problem, np.where(mask, 0.0, weight), start, rounds=rounds)
        shown = mask if report is None else report[i]
        predicted[shown] = problem.predict(x)[shown]
    return predicted


def device_folds(observations: Sequence[Observation], cold_folds: int = 8) -> list[NDArray[np.bool_]]:
    """Every device with pass times or rounds on its own; the others, which only decode, in a few folds."""
    hot = sorted({d for o in observations if o.table != "decode" for d in o.devices})
    cold = sorted({d for o in observations for d in o.devices} - set(hot))
    groups = [{d} for d in hot] + [set(cold[i::cold_folds]) for i in range(cold_folds)]
    return [np.array([bool(o.devices & g) for o in observations]) for g in groups if g]


def source_folds(observations: Sequence[Observation]) -> list[NDArray[np.bool_]]:
    """Every author or thread of the speculation table."""
    names = sorted({o.case.source for o in observations if o.table == "speculation"})
    return [np.array([o.table == "speculation" and o.case.source == name for o in observations]) for name in names]


def stranger_folds(observations: Sequence[Observation]) -> list[NDArray[np.bool_]]:
    """Every author of the speculation table together with all that is known, from anybody, of the devices used there.

    The hardest and most honest question: somebody nobody heard of, on a machine nobody measured.
    """
    folds = []
    for mask in source_folds(observations):
        devices = {d for o, hit in zip(observations, mask, strict=True) if hit for d in o.devices}
        folds.append(
            np.array([bool(hit) or bool(o.devices & devices) for o, hit in zip(observations, mask, strict=True)])
        )
    return folds


def cluster_weights(observations: Sequence[Observation], chosen: Sequence[int]) -> list[float]:
    """Each cluster weighs the same."""
    sizes = Counter(observations[i].case.cluster for i in chosen)
    return [1.0 / sizes[observations[i].case.cluster] for i in chosen]


def spread_of(observations: Sequence[Observation], errors: Array, chosen: Sequence[int]) -> float:
    """Standard deviation of a normal whose central 80 % hold as much as those of the errors."""
    kept = [i for i in chosen if np.isfinite(errors[i])]
    wide = weighted_quantile([abs(float(errors[i])) for i in kept], cluster_weights(observations, kept), 0.8)
    return wide / 1.2815515655446004


def odd_step(o: Observation) -> bool:
    """Whether a line is of a device whose decode speed bandwidth explains badly."""
    setup = o.case.setup
    return fitted.odd_step(setup.backend, setup.hardware.device)


def main() -> None:
    """Fit, look at left-out devices for the spread, write the constants."""
    began = time.perf_counter()
    stop, loss = GATE_PRIOR
    for _ in range(2):  # the gate decides how gated lines are read, and they decide on the gate
        assume_gate(stop, loss)
        recording, observations = observe_all()
        problem = Problem(observations, recording.machines)
        weight = weights_of(observations)
        x, covariance = solve(problem, weight)
        stop, loss, lines = fit_gate(problem, recording, x, weight)
    print(f"{len(observations)} measurements, {len(problem.names)} constants, {time.perf_counter() - began:.0f} s")
    errors = leave_out(problem, weight, x, device_folds(observations)) - problem.log_measured

    folds = stranger_folds(observations)
    strange = leave_out(problem, weight, x, folds, report=source_folds(observations)) - problem.log_measured

    def pick(want: Callable[[Observation], bool]) -> list[int]:
        return [i for i, o in enumerate(observations) if want(o)]

    sizes = {
        "scatter.round": spread_of(observations, strange, pick(lambda o: o.table == "speculation")),
        "scatter.verify": spread_of(
            observations,
            errors,
            pick(lambda o: isinstance(o.case, BatchCase) and o.case.n <= 8 and not o.case.model.is_moe and o.fitted),
        ),
        "scatter.step": spread_of(observations, errors, pick(lambda o: o.table == "decode" and not odd_step(o))),
    }
    odd = spread_of(observations, errors, pick(lambda o: o.table == "decode" and odd_step(o)))
    # What these backends and vendors add to the doubt about any other device of an unseen family.
    known = sizes["scatter.step"] ** 2 + UNKNOWN_SCATTER["scatter.step_family"] ** 2
    sizes["scatter.step_backend"] = math.sqrt(max(odd**2 - known, 0.01))
    extra = scatter_constants(sizes)
    extra["gate.stop"] = Constant(value=round(stop, 3), unit="factor", log_se=0.2, rows=lines)
    extra["gate.loss"] = Constant(value=round(loss, 3), unit="factor", log_se=0.3, rows=lines)
    made = constants_of(
        problem, x, covariance, weight, extra, "data/decode.csv, data/batch.csv and data/speculation.csv"
    )
    path = DATA / "constants.json"
    path.write_text(json.dumps(made.model_dump(), indent=1) + "\n", encoding="utf-8")
    inside = problem.predict(x) - problem.log_measured
    for table in TABLES:
        chosen = pick(lambda o, table=table: o.table == table)  # type: ignore[misc]
        for label, e in (
            ("in the fit", inside),
            ("device left out", errors),
            ("stranger", strange),
        ):
            kept = [i for i in chosen if np.isfinite(e[i])]
            if not kept:
                continue
            w = cluster_weights(observations, kept)
            size = [abs(float(e[i])) for i in kept]
            median, p90 = (100 * weighted_quantile(size, w, q) for q in (0.5, 0.9))
            print(f"{table:12} {label:16} {len(kept):5} rows  median {median:5.1f} %  90th percentile {p90:5.1f} %")
    print(f"{path.name} written after {time.perf_counter() - began:.0f} s: {sizes}, gate {stop:.2f} {loss:.2f}")


if __name__ == "__main__":
    main()
