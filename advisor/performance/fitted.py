"""Costs of a device from constants that were fitted to published measurements (``benchmarks/fit.py``).

The forms, in seconds, for a matrix of ``B`` bytes and one pass of ``n`` tokens::

    stream = B / (share * quant * bandwidth)                        one column: waiting for memory
    c      = C * G * (6 / bits) ** e * rho ** -x                    computing one column, in units of ``stream``
    matrix = stream * ((1 + (n c)**p) / (1 + c**p)) ** (1/p)        mat-vec kernels, n <= switch
    matrix = stream * (A + B1 (n - 1))                              mat-mat kernels, n > switch

``rho`` is the device's vector FP32 rate over its bandwidth, relative to 20 TFLOPS at 500 GB/s. Constants are kept
by backend and, where the tables support it, by architecture family and quantisation (docs/physics.md).
"""

from __future__ import annotations

import re
from math import sqrt

from advisor.base import Figure, Provenance
from advisor.errors import InputError
from advisor.hardware.machine import Backend, Device
from advisor.performance.constants import Constants, family_of, load_constants

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


class _Quant:
    """Constants of one quantisation on one device, ready for arithmetic."""

    __slots__ = ("c", "cp", "flat", "rise", "seconds_per_byte", "switch")

    def __init__(self, seconds_per_byte: float, c: float, p: float, switch: int, flat: float, rise: float) -> None:
        self.seconds_per_byte = seconds_per_byte
        self.c = c
        self.cp = 1.0 + c**p
        self.switch = switch
        self.flat = flat
        self.rise = rise


class FittedCosts:
    """What a device charges, by the fitted constants. Implements :class:`advisor.performance.costs.CostModel`.

    Raises:
        InputError: the device has no memory bandwidth, so nothing can be said about it.
    """

    def __init__(self, device: Device, backend: Backend, constants: Constants | None = None) -> None:
        if device.bandwidth is None or device.bandwidth.value <= 0:
            raise InputError(
                f"The memory bandwidth of {device.name} is not known, so its speed cannot be predicted.",
                "Give it in GB/s with --bandwidth.",
            )
        self.device = device
        self.backend: Backend = backend
        self.constants = k = constants or load_constants()
        self.family = family_of(device)
        b, a = backend, self.family
        self.bandwidth = device.bandwidth.value * 1e9
        self._share = k[f"stream.{b}"] * k.factor(f"stream.{b}.{a}")
        self._layer = k[f"layer.{b}"] * k.factor(f"layer.{b}.{a}")
        self._p = 1.0 + k["smooth"]
        self.rho, self.rho_known = _rho(device)
        self._expert = k[f"expert.{b}"]
        self._draft_layer = k[f"draft_layer.{b}"]
        self._mtp_token = k[f"mtp_token.{b}"]
        self._checkpoint_rate = k["checkpoint"] * 1e9
        self._quants: dict[str, _Quant] = {}
        self._ratios: dict[tuple[str, int], float] = {}

    def _quant(self, quant: str) -> _Quant:
        found = self._quants.get(quant)
        if found is None:
            k, b = self.constants, self.backend
            rate = self._share * k.factor(f"quant.{stream_group(quant)}") * self.bandwidth
            c = (
                k[f"compute.{b}"]
                * k.factor(f"compute_quant.{compute_group(quant)}")
                * (6.0 / bits_of(quant)) ** k["compute_bits"]
                * (self.rho ** -k["compute_rho"] if b != "cpu" else 1.0)
            )
            found = _Quant(
                1.0 / rate,
                c,
                self._p,
                switch_of(b, self.family, quant),
                k[f"flat.{b}"],
                k[f"rise.{b}"],
            )
            self._quants[quant] = found
        return found

    def _ratio(self, quant: str, n: int) -> float:
        """t(n)/t(1) of one matrix."""
        key = (quant, n)
        found = self._ratios.get(key)
        if found is None:
            q = self._quant(quant)
            if n <= 1:
                found = 1.0
            elif n <= q.switch:
                found = ((1.0 + (n * q.c) ** self._p) / q.cp) ** (1.0 / self._p)
            else:
                found = q.flat + q.rise * (n - 1)
            self._ratios[key] = found
        return found

    @property
    def kind(self) -> Provenance:
        """``fitted``; ``assumed`` when the backend has no measurement at all."""
        return "assumed" if self.constants.values[f"compute.{self.backend}"].prior else "fitted"

    def log_sd(self, architecture: str, method: str) -> float:
        """Standard deviation of ln(true / predicted) of R(k)."""
        k = self.constants
        variance = k["scatter.round"] ** 2
        if not self.rho_known:
            variance += k["scatter.rho"] ** 2
        if k.values[f"compute.{self.backend}"].prior:
            variance += k["scatter.backend"] ** 2
        variance += k.factor(f"scatter.{method}") ** 2 if f"scatter.{method}" in k.values else k["scatter.method"] ** 2
        return sqrt(variance)

    def step_log_sd(self, architecture: str) -> float:
        """Standard deviation of ln(true / predicted) of T(1)."""
        k = self.constants
        known = f"stream.{self.backend}.{self.family}" in k.values
        return sqrt(k["scatter.step"] ** 2 + (0.0 if known else k["scatter.family"] ** 2))

    def fixed(self, architecture: str, layers: float, n: int) -> float:
        """Launches and small operations of ``layers`` blocks [s]."""
        return layers * self._layer * 1e-6

    def matrix(self, quant: str, nbytes: float, parameters: float, n: int, architecture: str) -> float:
        """One pass over dense matrices [s]."""
        return nbytes * self._quant(quant).seconds_per_byte * self._ratio(quant, n)

    def experts(
        self, quant: str, nbytes: float, parameters: float, count: int, used: float, n: int, architecture: str
    ) -> float:
        """Routed experts of one pass [s]: distinct experts are streamed, or on Metal every (token, expert) pair."""
        one = nbytes * used / count * self._quant(quant).seconds_per_byte
        if n <= 1:
            return one
        distinct = count * (1.0 - (1.0 - used / count) ** n)
        extra = float(n - 1) if self.backend == "metal" else distinct / used - 1.0
        return one * (self._ratio(quant, n) + self._expert * extra)

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
        """Graph rebuild, launches, sampling and synchronisation of one draft pass [s]."""
        if method == "draft-simple":
            return self._draft_layer * layers * 1e-6
        return self._mtp_token * 1e-6

    def verified_token(self, vocabulary: int) -> float:
        """Not separable from the extra columns in published tables: 0 [s]."""
        return 0.0

    def round_overhead(self, method: str) -> float:
        """No constant per round survives cross-validation: 0 [s]."""
        return 0.0

    def figures(self, architecture: str, quant: str) -> dict[str, Figure]:
        """The constants behind a prediction."""
        q = self._quant(quant)
        source = f"fitted: {self.constants.fitted}"
        kind = self.kind
        shown = {
            "stream_rate": Figure(value=1e-9 / q.seconds_per_byte, unit="GB/s", kind=kind, source=source),
            "layer_overhead": Figure(value=self._layer, unit="us per layer", kind=kind, source=source),
            "column_cost": Figure(value=q.c, unit="decode steps per extra column", kind=kind, source=source),
        }
        assert self.device.bandwidth is not None
        return {"bandwidth": self.device.bandwidth, **shown}


def _rho(device: Device) -> tuple[float, bool]:
    """Compute over bandwidth relative to 20 TFLOPS at 500 GB/s, and whether it rests on a published rate."""
    if device.bandwidth is None:
        return 1.0, False
    if device.fp32_vector is not None:
        return device.fp32_vector.value / 20.0 / (device.bandwidth.value / 500.0), True
    if device.fp16 is not None and device.device_class == "apple-soc":
        return device.fp16.value / 20.0 / (device.bandwidth.value / 500.0), False
    return 1.0, False


__all__ = ["FittedCosts", "bits_of", "compute_group", "stream_group", "switch_of"]
