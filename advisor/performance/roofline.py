"""The roofline of a machine and where the passes of a round sit below it.

Williams, Waterman, Patterson (2009): attainable rate = min(peak, intensity x bandwidth), with the operational
intensity in FLOP per byte moved. A decode step moves every active weight for one token, so it sits far left; a verify
pass moves the same bytes for k + 1 tokens (more of them in a mixture of experts), so it sits further right.
"""

from __future__ import annotations

from typing import Literal

from advisor.base import Figure, Frozen
from advisor.hardware.machine import Backend, Setup
from advisor.models.description import ModelDescription
from advisor.performance.passes import CostSource, plan_of

SCHEMA_VERSION = 1
_REACHED_AT = 16
"""Tokens of the pass whose rate stands for the compute ceiling where the vendor states none."""


class PassPoint(Frozen):
    """One pass: ``intensity`` [FLOP/byte], ``rate`` [TFLOP/s], ``attainable`` [TFLOP/s] below the roof, time [ms]."""

    name: str
    model: str
    role: Literal["decode", "verify", "draft"]
    tokens: int
    flop: float
    bytes: float
    intensity: float
    rate: float
    attainable: float
    milliseconds: float
    bound: Literal["bandwidth", "compute"]


class Roofline(Frozen):
    """Both ceilings of a machine (its first device) and the passes of one round."""

    schema_version: int = SCHEMA_VERSION
    hardware: str
    backend: Backend
    bandwidth: Figure
    """Peak memory bandwidth [GB/s]."""
    peak: Figure
    """Compute ceiling [TFLOP/s]: the vendor's vector FP32 rate, or what the cost model reaches."""
    ridge: float
    """Intensity at which the ceilings meet [FLOP/byte]."""
    context: int
    points: tuple[PassPoint, ...]


def flop_of(model: ModelDescription, tokens: int) -> float:
    """Multiply-adds of one pass, counted as two FLOP each, the head for every row; attention scores left out."""
    return 2.0 * model.active_parameters * tokens * model.loops


def bytes_of(model: ModelDescription, tokens: int, depth: int = 0, type_k: str = "f16", type_v: str = "f16") -> float:
    """Bytes one pass of ``tokens`` moves: dense weights once, distinct experts, cache, state read and written."""
    routed = sum(
        x.expert_bytes * (1.0 - (1.0 - x.expert_used / x.expert_count) ** tokens)
        for x in model.layers
        if x.expert_count
    )
    head = float(model.head_bytes)
    body = model.dense_bytes - head + routed
    return body * model.loops + head + model.kv_bytes(depth, type_k, type_v) + 2.0 * model.state_bytes


def roofline(
    target: ModelDescription,
    draft: ModelDescription | None,
    setup: Setup,
    *,
    draft_max: int = 3,
    depth: int = 0,
    costs: CostSource | None = None,
) -> Roofline:
    """Ceilings of the first device, and decode, verify (``draft_max`` + 1 tokens) and draft passes below them.

    Raises:
        InputError: the device has no bandwidth.
    """
    device = setup.hardware.device
    plan = plan_of(target, setup, costs)
    bandwidth = device.bandwidth
    assert bandwidth is not None  # plan_of has refused a device without
    peak = device.fp32_vector
    if peak is None:
        reached = flop_of(target, _REACHED_AT) / plan.seconds(_REACHED_AT, None, depth) / 1e12
        peak = Figure(
            value=reached,
            unit="TFLOP/s",
            kind="measured" if plan.costs.kind == "measured" else "fitted",
            source=f"rate of a pass of {_REACHED_AT} tokens; no vector FP32 rate is stated for {device.name}",
        )
    passes: list[tuple[str, ModelDescription, Literal["decode", "verify", "draft"], int]] = [
        ("decode", target, "decode", 1),
        (f"verify {draft_max + 1}", target, "verify", draft_max + 1),
    ]
    if draft is not None and draft.kind == "model":
        passes.append(("draft", draft, "draft", 1))
    points = []
    for name, model, role, n in passes:
        own = plan if model is target else plan_of(model, setup, costs, draft=True)
        seconds = own.seconds(n, None, depth)
        flop, moved = flop_of(model, n), bytes_of(model, n, depth, setup.cache_type_k, setup.cache_type_v)
        slope = flop / moved * bandwidth.value * 1e9 / 1e12
        points.append(
            PassPoint(
                name=name,
                model=model.name,
                role=role,
                tokens=n,
                flop=flop,
                bytes=moved,
                intensity=flop / moved,
                rate=flop / seconds / 1e12,
                attainable=min(slope, peak.value),
                milliseconds=seconds * 1e3,
                bound="bandwidth" if slope <= peak.value else "compute",
            )
        )
    return Roofline(
        hardware=setup.hardware.name,
        backend=setup.backend,
        bandwidth=bandwidth,
        peak=peak,
        ridge=peak.value * 1e12 / (bandwidth.value * 1e9),
        context=depth,
        points=tuple(points),
    )
