"""The contract of ``advisor inspect``: a description with what follows from it, in one flat record."""

from __future__ import annotations

from advisor.base import Frozen
from advisor.models.description import LOOKED_UP, MTP_ROLES, Drafter, Layer, ModelDescription, MtpBlock, Tokenizer
from advisor.models.pairs import refusal

INSPECT_SCHEMA_VERSION = 1


class RoleBytes(Frozen):
    """Weights of one role. ``per_token`` are the bytes one decode step of one sequence reads of them."""

    role: str
    quants: tuple[str, ...]
    """ggml types, most bytes first."""
    parameters: int
    bytes: int
    per_token: int


class InspectReport(Frozen):
    """A model at a glance. All sizes in bytes; cache sizes for f16 keys and values.

    ``decode_bytes`` weight bytes read by one decode step; ``kv_bytes_per_token`` cache bytes one more position takes
    while it lies in every window; ``kv_bytes_per_1000`` cache of 1000 positions; ``state_bytes`` recurrent and
    convolution state of one sequence; ``active_parameters`` weights multiplied per token; ``usable`` whether it can
    be a target; ``problem`` what it is instead.
    """

    schema_version: int = INSPECT_SCHEMA_VERSION
    name: str
    reference: str
    source: str
    kind: str
    usable: bool
    problem: str | None = None
    architecture: str
    quant: str
    size_bytes: int
    total_parameters: int
    active_parameters: int
    bits_per_weight: float
    decode_bytes: int
    roles: tuple[RoleBytes, ...]
    embedding_length: int
    head_count: int
    layer_count: int
    mixers: dict[str, int]
    """How many blocks mix positions in which way (full, sliding, mla, recurrent, convolution ...)."""
    window: int | None = None
    expert_count: int = 0
    expert_used: int = 0
    vocabulary_size: int
    tied_head: bool
    context_length: int | None
    kv_bytes_per_token: int
    kv_bytes_per_1000: int
    state_bytes: int
    mtp_layers: int
    mtp: MtpBlock | None = None
    drafter: Drafter | None = None
    tokenizer: Tokenizer | None = None
    loops: int = 1
    catalogue_slug: str | None = None
    files: tuple[str, ...] = ()
    layers: tuple[Layer, ...] = ()
    """Only with ``--layers``."""
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def inspect_report(model: ModelDescription, layers: bool = False) -> InspectReport:
    """The report on one model; ``layers`` adds the table of blocks."""
    mixers: dict[str, int] = {}
    for layer in model.layers:
        mixers[layer.mixer] = mixers.get(layer.mixer, 0) + 1
    weighed = sum(g.parameters for g in model.weights)
    return InspectReport(
        name=model.name,
        reference=model.reference,
        source=model.source,
        kind=model.kind,
        usable=model.kind == "model",
        problem=None if model.kind == "model" else " ".join(refusal(model)),
        architecture=model.architecture,
        quant=model.quant,
        size_bytes=model.size_bytes,
        total_parameters=model.total_parameters,
        active_parameters=model.active_parameters,
        bits_per_weight=round(8 * sum(g.bytes for g in model.weights) / weighed, 3) if weighed else 0.0,
        decode_bytes=model.decode_bytes,
        roles=_roles(model),
        embedding_length=model.embedding_length,
        head_count=model.head_count,
        layer_count=len(model.layers),
        mixers=mixers,
        window=max((x.window for x in model.layers if x.window), default=None),
        expert_count=max((x.expert_count for x in model.layers), default=0),
        expert_used=max((x.expert_used for x in model.layers), default=0),
        vocabulary_size=model.vocabulary_size,
        tied_head=model.tied_head,
        context_length=model.context_length,
        kv_bytes_per_token=model.kv_bytes_per_token,
        kv_bytes_per_1000=round(model.kv_bytes(1000)),
        state_bytes=model.state_bytes,
        mtp_layers=model.mtp_layers,
        mtp=model.mtp,
        drafter=model.drafter,
        tokenizer=model.tokenizer,
        loops=model.loops,
        catalogue_slug=model.catalogue_slug,
        files=model.files,
        layers=model.layers if layers else (),
        assumptions=model.assumptions,
        notes=model.notes,
    )


def _roles(model: ModelDescription) -> tuple[RoleBytes, ...]:
    by_role: dict[str, list[tuple[str, int, int]]] = {}
    for group in model.weights:
        by_role.setdefault(group.role, []).append((group.quant, group.parameters, group.bytes))
    found = []
    for role, groups in by_role.items():
        size = sum(b for _, _, b in groups)
        if role in LOOKED_UP or role in MTP_ROLES:
            per_token = 0
        elif role == "experts":
            per_token = round(model.expert_bytes_used) * model.loops
        else:
            per_token = size * (1 if role == "head" else model.loops)
        found.append(
            RoleBytes(
                role=role,
                quants=tuple(q for q, _, _ in sorted(groups, key=lambda g: -g[2])),
                parameters=sum(p for _, p, _ in groups),
                bytes=size,
                per_token=per_token if model.kind in ("model", "drafter") else 0,
            )
        )
    return tuple(sorted(found, key=lambda r: -r.bytes))
