"""Small hand-made models, machines and predictions for the tests of the advice room."""

from __future__ import annotations

from typing import Any

from advisor.base import Figure, Range
from advisor.hardware.machine import Device, Hardware, Placement, Setup
from advisor.models.description import Drafter, Layer, ModelDescription, MtpBlock, Tokenizer, WeightGroup
from advisor.speculation.prediction import (
    AcceptanceEstimate,
    BestDraftLength,
    DeviceMemory,
    MemoryPlan,
    ModelSummary,
    Prediction,
    RoundCost,
    TokenizerVerdict,
)

BPE = Tokenizer(type="BPE", model="gpt2", pre="qwen2", size=151936, digest="a" * 64, add_bos=False, add_eos=False)


def figure(value: float, unit: str) -> Figure:
    return Figure(value=value, unit=unit, kind="assumed", source="test")


def model(
    name: str = "target-8b",
    parameters: float = 8e9,
    *,
    quant: str = "Q8_0",
    path: str | None = None,
    layers: int = 32,
    vocabulary: int = 151936,
    width: int = 4096,
    experts: tuple[int, int] | None = None,
    tokenizer: Tokenizer | None = BPE,
    mtp: bool = False,
    state: int = 0,
    architecture: str = "qwen3",
    **extra: Any,
) -> ModelDescription:
    """A model of ``parameters`` weights, 8.5 bits each; ``experts`` = (count, used) puts 90 % of them into experts."""
    head = vocabulary * width
    body = int(parameters) - head
    routed = int(body * 0.9) if experts else 0
    dense = body - routed
    count, used = experts or (0, 0)
    groups = [
        WeightGroup(role="head", quant=quant, parameters=head, bytes=_bytes(head)),
        WeightGroup(role="ffn", quant=quant, parameters=dense, bytes=_bytes(dense)),
    ]
    if routed:
        groups.append(WeightGroup(role="experts", quant=quant, parameters=routed, bytes=_bytes(routed)))
    block = None
    if mtp:
        one = body // layers
        groups.append(WeightGroup(role="mtp", quant=quant, parameters=one, bytes=_bytes(one)))
        block = MtpBlock(layers=1, bytes=_bytes(one), parameters=one, key_width=512, value_width=512)
    return ModelDescription(
        name=name,
        reference=path or f"/models/{name}.gguf",
        source="gguf",
        architecture=architecture,
        quant=quant,
        size_bytes=sum(g.bytes for g in groups),
        embedding_length=width,
        head_count=32,
        vocabulary_size=vocabulary,
        context_length=32768,
        tied_head=True,
        weights=tuple(groups),
        layers=tuple(
            Layer(
                index=i,
                mixer="recurrent" if state and i % 4 else "full",
                bytes=_bytes((dense + routed) // layers),
                parameters=(dense + routed) // layers,
                expert_bytes=_bytes(routed // layers),
                expert_parameters=routed // layers,
                expert_count=count,
                expert_used=used,
                key_width=0 if state and i % 4 else 1024,
                value_width=0 if state and i % 4 else 1024,
                state_elements=state if state and i % 4 else 0,
            )
            for i in range(layers)
        ),
        mtp=block,
        tokenizer=tokenizer,
        files=(path or f"/models/{name}.gguf",),
        **extra,
    )


def _bytes(parameters: int) -> int:
    return parameters * 17 // 16


def head(target: ModelDescription, method: str = "draft-eagle3", name: str = "head") -> ModelDescription:
    """A drafter head made for ``target``."""
    base = model(name, 0.4e9, layers=1, vocabulary=32000, width=target.embedding_length, path=f"/models/{name}.gguf")
    return base.model_copy(
        update={
            "kind": "drafter",
            "architecture": {"draft-eagle3": "eagle3", "draft-dflash": "dflash", "draft-mtp": "gemma4-assistant"}[
                method
            ],
            "drafter": Drafter(method=method, target_width=target.embedding_length, block_size=16),  # type: ignore[arg-type]
        }
    )


def setup(bandwidth: float = 900.0, memory: float = 48.0, *, cpu: bool = False, **extra: Any) -> Setup:
    """A GPU (or CPU) of that bandwidth [GB/s] and memory [GB]."""
    device = Device(
        slug="test",
        name="Test device",
        vendor="test",
        device_class="desktop-cpu" if cpu else "consumer-gpu",
        bandwidth=figure(bandwidth, "GB/s"),
        memory=figure(memory, "GB"),
        fp32_vector=figure(1.0 if cpu else 35.0, "TFLOPS"),
    )
    host = None
    if not cpu:
        host = Device(
            slug="host", name="Host", vendor="test", device_class="desktop-cpu", bandwidth=figure(80, "GB/s"),
            memory=figure(64, "GB"),
        )  # fmt: skip
    backend = "cpu" if cpu else "cuda"
    placement = extra.pop("placement", Placement())
    hardware = Hardware(name="Test machine", devices=(device,), host=host, backend=backend, source="numbers")
    return Setup(hardware=hardware, backend=backend, placement=placement, **extra)


def spread(median: float, width: float = 0.1) -> Range:
    return Range(median=median, low=median * (1 - width), high=median * (1 + width))


def prediction(
    target: ModelDescription,
    draft: ModelDescription | None = None,
    *,
    verdict: str = "faster",
    speedup: float = 1.5,
    acceptance: float = 0.6,
    method: str = "draft-simple",
    compatible: bool | None = True,
    round_cost: tuple[float, float, float] = (1.7, 0.4, 1.2),
) -> Prediction:
    """A prediction with chosen numbers, consistent enough to be judged against."""

    def summary(m: ModelDescription) -> ModelSummary:
        return ModelSummary(
            name=m.name, reference=m.reference, architecture=m.architecture, quant=m.quant, size_bytes=m.size_bytes,
            total_parameters=m.total_parameters, active_parameters=m.active_parameters, decode_bytes=m.decode_bytes,
            source=m.source,
        )  # fmt: skip

    cost, drafted, verify = round_cost
    return Prediction(
        target=summary(target),
        draft=summary(draft) if draft else None,
        hardware="Test machine",
        backend="cuda",
        method=method,  # type: ignore[arg-type]
        draft_max=3,
        context=4096,
        acceptance=AcceptanceEstimate(
            rate=spread(acceptance, 0.15), positions=(acceptance,) * 3, kind="given", evidence="test"
        ),
        mean_accepted_length=1 + 3 * acceptance,
        baseline_tps=spread(20),
        speculative_tps=spread(20 * speedup),
        speedup=spread(speedup),
        probability_faster=0.95 if speedup > 1 else 0.05,
        round=RoundCost(cost=cost, draft=drafted, verify=verify, overhead=cost - drafted - verify, milliseconds=80),
        best=BestDraftLength(draft_max=3, speedup=speedup),
        break_even_acceptance=0.25,
        curve=(),
        memory=MemoryPlan(
            target_weights=1, draft_weights=1, target_kv=1, draft_kv=1, state=0, compute=1, total=5, context=4096,
            devices=(DeviceMemory(device="Test device", need=5, capacity=10, fits=True),), fits=True,
        ),
        tokenizer=TokenizerVerdict(compatible=compatible, reason="The vocabularies are byte-equal."),
        verdict=verdict,  # type: ignore[arg-type]
        reasons=("A round is cheap.",),
        figures={},
    )  # fmt: skip
