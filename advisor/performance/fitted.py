"""Costs of a device from constants that were fitted to published measurements (``benchmarks/fit.py``).

The forms, in seconds, for a matrix of ``B`` bytes in a pass of ``n`` tokens (docs/physics.md explains them)::

    stream = B / (share * quant * bandwidth)                   one column: waiting for memory
    c      = C * G * (6 / bits) / sqrt(rho)                    computing one column, in units of ``stream``
    matrix = stream * ((1 + (n c)**p) / (1 + c**p))**(1/p)     mat-vec kernels, n <= switch
    tile   = M * G**z * (6 / bits) * (bandwidth / fp16 rate)**y   one tile of columns on the matrix units, ditto
    matrix = stream * (1 + tile**p)**(1/p)                     mat-mat kernels, n > switch

On a CPU whose cores are counted neither kernel is faster than ``weights * n / (cores * CORE_RATE)``.

``rho`` is the vector FP32 rate over bandwidth, relative to 20 TFLOPS at 500 GB/s: the time of a column is then
proportional to weights / sqrt(bandwidth * TFLOPS). Constants are kept by backend and, where the tables support it,
by architecture family and quantisation.
"""

from __future__ import annotations

import math
import re
from math import sqrt
from typing import Literal

from advisor.base import Figure, Provenance
from advisor.errors import InputError
from advisor.hardware.machine import Backend, Device
from advisor.performance.constants import Constants, family_of, load_constants
from advisor.performance.costs import Experts, Matrices

_BITS: dict[str, float] = {
    "F32": 32, "F16": 16, "BF16": 16, "Q8_0": 8.5, "Q8_K": 9.125, "Q6_K": 6.5625, "Q5_K": 5.5, "Q5_0": 5.5, "Q5_1": 6,
    "Q4_K": 4.5, "Q4_0": 4.5, "Q4_1": 5, "IQ4_NL": 4.5, "IQ4_XS": 4.25, "MXFP4": 4.25, "NVFP4": 4.5, "Q3_K": 3.4375,
    "IQ3_S": 3.4375, "IQ3_XXS": 3.0625, "Q2_K": 2.625, "IQ2_S": 2.5625, "IQ2_XS": 2.3125, "IQ2_XXS": 2.0625,
    "IQ1_M": 1.75, "IQ1_S": 1.5625, "TQ1_0": 1.6875, "TQ2_0": 2.0625, "Q1_0": 1.125,
}  # fmt: skip


def bits_of(quant: str) -> float:
    """Bits per weight of a ggml type (block size with scales); 4.5 if the type is not known."""
    return _BITS.get(quant.upper(), 4.5)


def stream_group(quant: str) -> str:
    """Group in which a type's streaming rate is kept."""
    q = quant.upper()
    if q in ("F16", "BF16", "F32"):
        return "F16"
    if q.startswith("IQ4"):
        return "IQ4"
    if re.match(r"IQ|TQ|Q1", q):
        return "IQ123"
    if q in ("MXFP4", "NVFP4"):
        return "FP4"
    if q in ("Q4_1", "Q4_0"):
        return "Q4_0"
    if q in ("Q5_0", "Q5_1", "Q5_K"):
        return "Q5_K"
    return q if q in ("Q8_0", "Q6_K", "Q4_K", "Q3_K", "Q2_K") else "Q4_K"


def compute_group(quant: str) -> str:
    """Group in which a type's rate of extra columns is kept."""
    q = quant.upper()
    if q in ("F16", "BF16", "F32"):
        return "F16"
    if q in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"):
        return "legacy"
    if q in ("Q5_K", "Q6_K"):
        return "K56"
    return "K4" if q == "Q4_K" else "low"


_SWITCH: dict[str, dict[str, int]] = {  # llama.cpp b11434: ggml-cuda/mmvq.cu, mmf.cu
    "Ada": {"Q2_K": 4, "Q3_K": 6},
    "Blackwell": {"Q2_K": 5, "Q3_K": 5, "Q4_K": 5, "Q5_K": 6, "Q6_K": 7},
    "GB10": {"Q2_K": 6},
    "Orin": {"Q2_K": 1, "Q3_K": 1, "Q4_K": 1, "Q5_K": 1, "Q6_K": 1},
    "Volta": {"Q2_K": 4, "Q3_K": 6, "Q4_K": 5, "Q5_K": 6, "Q6_K": 7},
    "CDNA1": {
        "Q4_0": 7, "Q4_1": 7, "Q5_1": 7, "Q8_0": 6, "Q2_K": 4, "Q3_K": 3, "Q4_K": 2, "Q5_K": 3, "Q6_K": 4,
    },
    "CDNA2+": {"Q2_K": 5, "Q3_K": 3, "Q4_K": 3, "Q5_K": 3, "Q6_K": 5},
}  # fmt: skip
NO_SWITCH = 1 << 30


def switch_of(backend: Backend, family: str, quant: str) -> int:
    """Last number of columns that still uses the mat-vec kernels (llama.cpp b11434)."""
    q = quant.upper()
    if backend == "cpu":
        return NO_SWITCH
    if backend in ("cuda", "rocm"):
        if q in ("F16", "BF16", "F32"):
            return 16
        return _SWITCH.get(family, {}).get(q, 8)
    return 8


TILE = 16
"""Columns that the first mat-mat tile holds; beyond them its time grows as ``(n / TILE) ** 0.5`` (tables, n <= 64)."""
OLD_EXPERT_BUILDS = 6500
"""Before about this build Vulkan and HIP had no small-batch kernels for routed experts (tables of b5863-b6111)."""
Kernel = Literal["auto", "mat-vec", "mat-mat"]


def smooth_max(n: float, c: float, p: float) -> float:
    """t(n)/t(1) of streaming once and computing ``n`` columns of ``c`` each: between their maximum and their sum."""
    return math.pow((1.0 + math.pow(n * c, p)) / (1.0 + math.pow(c, p)), 1.0 / p)


def distinct_experts(total: float, used: float, n: float, skew: float) -> float:
    """Distinct experts that ``n`` tokens touch, over those that one token touches.

    Tokens route independently over ``used + skew (total - used)`` experts: popular experts make the pool smaller.
    """
    pool = max(used + skew * (total - used), used * 1.0001)
    return min(pool * (1.0 - math.pow(1.0 - used / pool, n)) / used, float(n), total / used)


def compute_ratio(device: Device) -> tuple[float, bool]:
    """Vector FP32 rate over bandwidth relative to 20 TFLOPS at 500 GB/s, and whether a published rate says so.

    Without a shader rate Apple's FP16 figure counts (the same units do both); other devices are taken for average.
    """
    if device.bandwidth is None:
        return 1.0, False
    typical = 20.0 * device.bandwidth.value / 500.0
    if device.fp32_vector is not None:
        return device.fp32_vector.value / typical, True
    if device.fp16 is not None and device.device_class == "apple-soc":
        return device.fp16.value / typical, True
    return 1.0, False


def matrix_ratio(device: Device) -> float:
    """Bandwidth over FP16 matrix rate [GB/s per TFLOPS], relative to 10; from the shader rate if none is published."""
    if device.bandwidth is None:
        return 1.0
    if device.fp16 is not None:
        return device.bandwidth.value / device.fp16.value / 10.0
    shader = compute_ratio(device)[0] * 20.0 * device.bandwidth.value / 500.0
    return device.bandwidth.value / (5.0 * shader) / 10.0


CORE_RATE = 12e9
"""Weights per second that one CPU core multiplies by one column, whatever their type (AVX2 and later).

Measured here on two cores of an AMD EPYC: 8 to 24 billion by type, 12 in the middle; assumed for other processors."""


def odd_step(backend: Backend, device: Device) -> bool:
    """Whether bandwidth explains decode speed badly: CPUs, SYCL, OpenCL, and GPUs of Intel and Qualcomm."""
    return backend in ("cpu", "sycl", "opencl") or device.vendor in ("Intel", "Qualcomm")


FEW_CORES = 4
"""CPUs with so few cores compute rather than stream; by type of weight they differ by a factor (assumed spread)."""


class _Quant:
    """Constants of one quantisation on one device, ready for arithmetic."""

    __slots__ = ("c", "flat", "seconds_per_byte", "switch")

    def __init__(self, seconds_per_byte: float, c: float, switch: int, flat: float) -> None:
        self.seconds_per_byte = seconds_per_byte
        self.c = c
        self.switch = switch
        self.flat = flat


class FittedCosts:
    """What a device charges, by the fitted constants. Implements :class:`advisor.performance.costs.CostModel`.

    Args:
        device: the tier; its bandwidth must be known.
        backend: llama.cpp backend that drives it.
        constants: other constants than the shipped ones.
        build: llama.cpp build number; None = a current one.
        kernel: force one family of kernels, as some published experiments did.

    Raises:
        InputError: the device has no memory bandwidth, so nothing can be said about it.
    """

    def __init__(
        self,
        device: Device,
        backend: Backend,
        constants: Constants | None = None,
        *,
        build: int | None = None,
        kernel: Kernel = "auto",
    ) -> None:
        if device.bandwidth is None or device.bandwidth.value <= 0:
            raise InputError(
                f"The memory bandwidth of {device.name} is not known, so its speed cannot be predicted.",
                "Give it in GB/s with --bandwidth.",
            )
        self.device = device
        self.backend: Backend = backend
        self.constants = k = constants or load_constants()
        self.family = a = family_of(device)
        b = backend
        self.bandwidth = device.bandwidth.value * 1e9
        self.rho, self._rho_known = compute_ratio(device)
        self._kernel = kernel
        self._p = 1.0 + k["smooth"]
        self._share = k[f"stream.{b}"] * k.factor(f"stream.{b}.{a}")
        self._layer = k[f"layer.{b}"] * k.factor(f"layer.{b}.{a}") * 1e-6
        self._column = k[f"compute.{b}"] * k.factor(f"compute.{b}.{a}")
        if b != "cpu":
            self._column /= sqrt(self.rho)
        self._tile = k[f"tile.{b}"] * matrix_ratio(device) ** k["tile_rate"]
        self._expert = k[f"expert.{b}"]
        self._skew = k["skew"]
        self._old = build is not None and build < OLD_EXPERT_BUILDS
        self._legacy = k.factor(f"legacy.{b}") if self._old else 1.0
        slow = k.factor(f"layer.{b}.{a}") * 1e-6
        self._draft_layer = k[f"draft_layer.{b}"] * slow
        self._draft_token = k[f"draft_token.{b}"] * slow
        self._cores = device.cores * CORE_RATE if b == "cpu" and device.cores else None
        self._sampling = k["sampling"] * 1e-9
        self._checkpoint_rate = k["checkpoint"] * 1e9
        self._quants: dict[str, _Quant] = {}
        self._ratios: dict[tuple[str, int], float] = {}

    def _quant(self, quant: str) -> _Quant:
        found = self._quants.get(quant)
        if found is None:
            k, p = self.constants, self._p
            share = self._share * k.factor(f"quant.{stream_group(quant)}")
            thin = 6.0 / bits_of(quant)
            slow = k.factor(f"compute_quant.{compute_group(quant)}")
            c = self._column * slow * thin
            switch = {"auto": switch_of(self.backend, self.family, quant), "mat-vec": NO_SWITCH, "mat-mat": 1}
            flat = (1.0 + (self._tile * slow ** k["tile_quant"] * thin) ** p) ** (1.0 / p)
            found = _Quant(1.0 / (share * self.bandwidth), c, switch[self._kernel], flat)
            self._quants[quant] = found
        return found

    def _ratio(self, quant: str, n: int) -> float:
        """t(n)/t(1) of one matrix."""
        if n <= 1:
            return 1.0
        key = (quant, n)
        found = self._ratios.get(key)
        if found is None:
            q = self._quant(quant)
            found = smooth_max(n, q.c, self._p) if n <= q.switch else q.flat * sqrt(max(1.0, n / TILE))
            self._ratios[key] = found
        return found

    @property
    def kind(self) -> Provenance:
        """``fitted``; ``assumed`` when no published pass time exists for the backend."""
        return "assumed" if self.constants.values[f"compute.{self.backend}"].prior else "fitted"

    def log_sd(self, architecture: str, method: str) -> float:
        """Standard deviation of ln(true / predicted) of R(k); method ``verify`` means a bare pass t(n)/t(1)."""
        k = self.constants
        variance = k["scatter.verify" if method == "verify" else "scatter.round"] ** 2
        if not self._rho_known:
            variance += k["scatter.unknown_rate"] ** 2
        family = k.values.get(f"compute.{self.backend}.{self.family}")
        if family is None or family.prior:
            variance += k["scatter.unseen_family"] ** 2
        if k.values[f"compute.{self.backend}"].prior:
            variance += k["scatter.unseen_backend"] ** 2
        if method not in ("draft-mtp", "draft-simple", "verify"):
            variance += k["scatter.rare_method"] ** 2
        if self.backend == "cpu" and self.device.cores is not None and self.device.cores <= FEW_CORES:
            variance += k["scatter.few_cores"] ** 2
        if method == "draft-simple" and k.values[f"draft_layer.{self.backend}"].prior:
            variance += k["scatter.unseen_draft"] ** 2
        return sqrt(variance)

    def step_log_sd(self, architecture: str) -> float:
        """Standard deviation of ln(true / predicted) of T(1)."""
        k = self.constants
        family = k.values.get(f"stream.{self.backend}.{self.family}")
        variance = k["scatter.step"] ** 2
        if family is None or family.prior:
            variance += k["scatter.step_family"] ** 2
        if odd_step(self.backend, self.device):
            variance += k["scatter.step_backend"] ** 2
        return sqrt(variance)

    def fixed(self, architecture: str, layers: float, n: int) -> float:
        """Launches and small operations of ``layers`` blocks [s]."""
        return layers * self._layer

    def matrix(self, weights: Matrices, n: int, architecture: str) -> float:
        """One pass over dense matrices [s]; published tables do not tell short rows from long ones."""
        streamed = weights.nbytes * self._quant(weights.quant).seconds_per_byte
        return self._limited(streamed * self._ratio(weights.quant, n), weights.parameters * n)

    def _limited(self, seconds: float, products: float) -> float:
        """Not faster than the cores multiply, if their number is known."""
        if self._cores is None:
            return seconds
        p = self._p
        return math.pow(math.pow(seconds, p) + math.pow(products / self._cores, p), 1.0 / p)

    def experts(self, weights: Experts, n: int, architecture: str) -> float:
        """Routed experts of one pass [s].

        Mat-vec kernels stream distinct experts, or on Metal every (token, expert) pair; mat-mat kernels, and all passes
        of builds without small-batch kernels for experts, spend at least one tile on every distinct expert.
        """
        quant, nbytes, parameters, count, used, _ = weights
        q = self._quant(quant)
        one = nbytes * used / count * q.seconds_per_byte
        products = parameters * used / count * n
        if n <= 1:
            return self._limited(one, products)
        distinct = distinct_experts(count, used, n, self._skew)
        if n > q.switch or self._old:
            return one * q.flat * (1.0 + self._expert * (distinct - 1.0)) * self._legacy
        streams = float(n) if self.backend == "metal" else distinct
        return self._limited(one * (self._ratio(quant, n) + self._expert * (streams - 1.0)), products)

    def cache(self, nbytes: float, n: int) -> float:
        """Reading the KV cache once for all query tokens [s]."""
        return nbytes / (self._share * self.bandwidth)

    def state(self, nbytes: float, n: int, snapshots: int) -> float:
        """Reading and writing recurrent state, one extra write per kept snapshot [s]."""
        return nbytes * (2.0 + min(max(n - 1, 0), snapshots)) / (self._share * self.bandwidth)

    def checkpoint(self, nbytes: float) -> float:
        """Copying recurrent state to or from host memory [s]."""
        return nbytes / self._checkpoint_rate

    def drafted_token(self, method: str, vocabulary: int, layers: float = 1.0) -> float:
        """Graph rebuild, launches, sampling and synchronisation of one draft pass [s].

        Only ``draft-simple`` samples its draft on the host (``common/speculative.cpp``).
        """
        if method == "draft-simple":
            return self._draft_layer * layers + self._sampling * vocabulary
        return self._draft_token

    def verified_token(self, vocabulary: int) -> float:
        """Sampling one row of logits on the host [s]."""
        return self._sampling * vocabulary

    def round_overhead(self, method: str) -> float:
        """No constant per round survives cross-validation: 0 [s]."""
        return 0.0

    def figures(self, architecture: str, quant: str) -> dict[str, Figure]:
        """The constants behind a prediction, each with its standard error where it was fitted."""
        q, k, b = self._quant(quant), self.constants, self.backend
        kind = self.kind

        def told(name: str) -> str:
            c = k.values[name]
            if c.prior:
                return f"assumed; no measurement of {b} bears on it ({k.fitted})"
            return f"fitted to {c.rows} rows of {c.devices} devices, +-{100 * c.log_se:.0f} % ({k.fitted})"

        found = {} if self.device.bandwidth is None else {"bandwidth": self.device.bandwidth}
        found["stream_rate"] = Figure(
            value=1e-9 / q.seconds_per_byte, unit="GB/s", kind=kind, source=told(f"stream.{b}")
        )
        found["layer_overhead"] = Figure(
            value=self._layer * 1e6, unit="us per layer", kind=kind, source=told(f"layer.{b}")
        )
        found["column_cost"] = Figure(value=q.c, unit="decode steps per column", kind=kind, source=told(f"compute.{b}"))
        return found


__all__ = [
    "FittedCosts",
    "bits_of",
    "compute_group",
    "compute_ratio",
    "distinct_experts",
    "matrix_ratio",
    "smooth_max",
    "stream_group",
    "switch_of",
]
