"""Time of one forward pass: the work of every memory tier, charged by that tier's cost model, summed.

A plan is made once per (model, setup): which groups of weights lie on which tier. After that a pass of ``n`` tokens
is a few dozen multiplications, so that sweeps over draft lengths and candidates stay cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Union

from advisor.base import Frozen
from advisor.errors import InputError
from advisor.hardware.machine import Backend, Device, Hardware, Placement, Setup
from advisor.models.architectures import WHOLE_LAST_BLOCK
from advisor.models.description import LOOKED_UP, MTP_ROLES, Layer, ModelDescription, cache_element_bytes
from advisor.performance.costs import CostModel, Experts, Matrices
from advisor.performance.identity import IdentityCache

CostSource = Union[CostModel, Callable[[Device, Backend], CostModel]]  # noqa: UP007 - evaluated on Python 3.10
"""One cost model for every tier, or what gives a tier its cost model."""

PCIE_LINK = 12.0
"""Host to device [GB/s] when nobody said: about PCIe 3.0 x16 or 4.0 x8 (assumed)."""
HOP_SECONDS = 25e-6
"""Synchronisation when a pass moves from one device to the next on the same host [s] (assumed)."""


class PassTime(Frozen):
    """Time of one pass and what it is made of, all in seconds.

    ``fixed`` launches, ``weights`` dense matrices without the head, ``head`` output matrix, ``experts`` routed
    experts, ``cache`` KV reads, ``state`` recurrent state, ``transfer`` activations between tiers.
    """

    seconds: float
    fixed: float
    weights: float
    head: float
    experts: float
    cache: float
    state: float
    transfer: float


class Parts(NamedTuple):
    """The same as :class:`PassTime`, light enough for inner loops."""

    fixed: float
    weights: float
    head: float
    experts: float
    cache: float
    state: float
    transfer: float


class Tier(NamedTuple):
    """What one device does in a pass. ``cache`` holds (bytes, window) per position and layer kind.

    ``last`` and ``last_experts`` are the part of ``dense`` and ``experts`` that only rows with outputs reach: the
    feed-forward part of the last block.
    """

    costs: CostModel
    layers: float
    dense: tuple[Matrices, ...]
    head: tuple[Matrices, ...]
    experts: tuple[Experts, ...]
    cache: tuple[tuple[float, int | None], ...]
    state: float
    last: tuple[Matrices, ...] = ()
    last_experts: tuple[Experts, ...] = ()


class Plan:
    """A model laid out on a machine: everything of a pass that does not depend on ``n`` and depth."""

    def __init__(
        self,
        architecture: str,
        tiers: Sequence[Tier],
        hop_seconds: float = 0.0,
        hop_seconds_per_token: float = 0.0,
        vocabulary: int = 0,
        *,
        every_head: bool = False,
    ) -> None:
        """``every_head``: the head is computed for every row, whether its output is wanted or not (EAGLE-3)."""
        self.architecture = architecture
        self.every_head = every_head
        self.tiers = tuple(tiers)
        self.hop_seconds = hop_seconds
        self.hop_seconds_per_token = hop_seconds_per_token
        self.vocabulary = vocabulary
        self._parts: dict[tuple[int, int, int, int, int], Parts] = {}
        self._seconds: dict[tuple[int, int, int, int, int], float] = {}

    @cached_property
    def layers(self) -> float:
        """Blocks run per pass."""
        return sum(t.layers for t in self.tiers)

    @cached_property
    def state_bytes(self) -> float:
        """Recurrent state of one sequence [bytes]."""
        return sum(t.state for t in self.tiers)

    @property
    def costs(self) -> CostModel:
        """Cost model of the tier that computes the output."""
        return self.tiers[-1].costs

    def parts(self, n: int, logits: int | None = None, depth: int = 0, snapshots: int = 0, sequences: int = 1) -> Parts:
        """The pass in parts [s]: ``n`` tokens in all, ``logits`` rows of output (default all), ``sequences`` slots."""
        rows = n if logits is None else logits
        key = (n, rows, depth, snapshots, sequences)
        found = self._parts.get(key)
        if found is None:
            found = self._parts[key] = self._compute(n, rows, depth, snapshots, sequences)
        return found

    def seconds(
        self, n: int, logits: int | None = None, depth: int = 0, snapshots: int = 0, sequences: int = 1
    ) -> float:
        """Time of the pass [s]; arguments as in :meth:`parts`."""
        key = (n, n if logits is None else logits, depth, snapshots, sequences)
        found = self._seconds.get(key)
        if found is None:
            found = self._seconds[key] = sum(self.parts(*key))
        return found

    def _compute(self, n: int, rows: int, depth: int, snapshots: int, sequences: int) -> Parts:
        fixed = weights = head = experts = cache = state = 0.0
        a = self.architecture
        heads = n if self.every_head else rows
        for t in self.tiers:
            c = t.costs
            fixed += c.fixed(a, t.layers, n)
            for m in t.dense:
                weights += c.matrix(m, n, a)
            if heads:
                for m in t.head:
                    head += c.matrix(m, heads, a)
            for e in t.experts:
                experts += c.experts(e, n, a)
            if rows < n:
                for m in t.last:
                    weights += -1.0 * c.matrix(m, n, a)
                    if rows:
                        weights += c.matrix(m, rows, a)
                for e in t.last_experts:
                    experts += -1.0 * c.experts(e, n, a)
                    if rows:
                        experts += c.experts(e, rows, a)
            if depth and t.cache:
                nbytes = sum(b * (min(depth, w) if w else depth) for b, w in t.cache)
                cache += c.cache(nbytes * sequences, n)
            if t.state:
                state += c.state(t.state * sequences, max(1, n // sequences), snapshots)
        return Parts(fixed, weights, head, experts, cache, state, self.hop_seconds + self.hop_seconds_per_token * n)


_PLANS: IdentityCache[Plan] = IdentityCache()


def plan_of(model: ModelDescription, setup: Setup, costs: CostSource | None = None, *, draft: bool = False) -> Plan:
    """The trunk of ``model`` on the machine of ``setup``.

    Args:
        model: what runs.
        setup: where, with which backend, placement and cache types.
        costs: cost model for every tier instead of the usual ones.
        draft: whether it is the draft of the run (``placement.draft_device`` decides where it lies).

    Raises:
        InputError: a device without bandwidth, a placement that the machine does not have.
    """
    owners: tuple[Any, ...] = (model, setup) if costs is None else (model, setup, costs)
    return _PLANS.get(owners, ("draft" if draft else "trunk"), lambda: _make_plan(model, setup, costs, draft))


def mtp_plan_of(model: ModelDescription, setup: Setup, costs: CostSource | None = None) -> Plan:
    """The MTP block of ``model`` with the head it uses, on the device that holds the output.

    Raises:
        InputError: the model has no MTP block.
    """
    owners: tuple[Any, ...] = (model, setup) if costs is None else (model, setup, costs)
    return _PLANS.get(owners, "mtp", lambda: _make_mtp(model, setup, costs))


def pass_time(
    model: ModelDescription,
    setup: Setup,
    n: int = 1,
    depth: int = 0,
    *,
    logits: int | None = None,
    costs: CostSource | None = None,
) -> PassTime:
    """Time of one pass of ``n`` tokens at context ``depth``.

    Args:
        model: what runs; its MTP block is not part of an ordinary pass.
        setup: machine, backend, placement, cache types.
        n: tokens in the pass.
        depth: positions already in the cache.
        logits: rows for which the output matrix is computed; None = all ``n``, as when drafts are verified.
        costs: another cost model for every tier.

    Raises:
        InputError: ``n`` below 1, a negative depth, a device without bandwidth.
    """
    if n < 1 or depth < 0:
        raise InputError(f"A pass needs at least one token and a depth of zero or more, not {n} and {depth}.")
    parts = plan_of(model, setup, costs).parts(n, logits, depth)
    return PassTime(seconds=sum(parts), **parts._asdict())


def decode_tps(model: ModelDescription, setup: Setup, depth: int = 0, *, costs: CostSource | None = None) -> float:
    """Tokens per second of ordinary decoding of one sequence.

    Raises:
        InputError: a device without bandwidth.
    """
    return 1.0 / plan_of(model, setup, costs).seconds(1, None, depth)


def matrices_of(model: ModelDescription, roles: frozenset[str], *, without: bool = False) -> tuple[Matrices, ...]:
    """Weight groups of the given roles (or of all others), added up by ggml type."""
    sums: dict[str, list[float]] = {}
    for g in model.weights:
        if (g.role in roles) != without and g.bytes:
            entry = sums.setdefault(g.quant, [0.0, 0.0, 0.0])
            entry[0] += g.bytes
            entry[1] += g.parameters
            entry[2] += g.rows
    return tuple(Matrices(q, *sizes) for q, sizes in sums.items())


_HEAD = frozenset({"head"})
_EXPERTS = frozenset({"experts"})
_TRUNK_SKIP = LOOKED_UP | MTP_ROLES | _HEAD | _EXPERTS


def _scaled(groups: tuple[Matrices, ...], share: float) -> tuple[Matrices, ...]:
    if share == 1.0:
        return groups
    return tuple(m.scaled(share) for m in groups) if share else ()


class _Slice(NamedTuple):
    device: Device
    backend: Backend
    layers: tuple[Layer, ...]
    output: bool
    experts_of: tuple[Layer, ...]
    share: float = 1.0  # of every matrix, when devices work on the same layers


def _make_plan(model: ModelDescription, setup: Setup, costs: CostSource | None, draft: bool) -> Plan:
    slices, hop, hop_token = _lay_out(model, setup, draft)
    loops = model.loops
    trunk = matrices_of(model, _TRUNK_SKIP, without=True)
    head = matrices_of(model, _HEAD)
    expert_groups = matrices_of(model, _EXPERTS)
    all_dense = sum(x.bytes - x.expert_bytes for x in model.layers) or 1
    all_experts = sum(x.expert_bytes for x in model.layers) or 1
    last = model.layers[-1] if model.layers and model.architecture not in WHOLE_LAST_BLOCK else None
    tiers = []
    for s in slices:
        share = sum(x.bytes - x.expert_bytes for x in s.layers) / all_dense if model.layers else float(s.output)
        experts = []
        for count, used in {(x.expert_count, x.expert_used) for x in s.experts_of if x.expert_count}:
            part = sum(x.expert_bytes for x in s.experts_of if (x.expert_count, x.expert_used) == (count, used))
            portion = part / all_experts * s.share * loops
            experts += [m.scaled(portion).routed(count, used) for m in expert_groups]
        cache: dict[int | None, float] = {}
        for x in s.layers:
            width = x.key_width * cache_element_bytes(setup.cache_type_k)
            width += x.value_width * cache_element_bytes(setup.cache_type_v)
            if width:
                cache[x.window] = cache.get(x.window, 0.0) + width * s.share * loops
        tiers.append(
            Tier(
                costs=resolve_costs(setup, s.device, s.backend, costs),
                layers=float(len(s.layers) * loops),
                dense=_scaled(trunk, share * s.share * loops),
                head=_scaled(head, s.share) if s.output else (),
                experts=tuple(experts),
                cache=tuple((b, w) for w, b in cache.items()),
                state=4.0 * sum(x.state_elements for x in s.layers) * loops,
                last=_scaled(_last_dense(model), s.share) if last in s.layers else (),
                last_experts=_last_experts(model, s.share) if last in s.experts_of else (),
            )
        )
    width = max(model.embedding_length, 1) * 4.0
    return Plan(model.architecture, tiers, hop, hop_token * width, model.vocabulary_size)


def _last_dense(model: ModelDescription) -> tuple[Matrices, ...]:
    """Dense feed-forward weights of the last block: an even part of their role."""
    role, of = ("ffn", False) if not model.layers[-1].expert_count else ("shared_experts", True)
    blocks = sum(1 for x in model.layers if bool(x.expert_count) == of)
    return _scaled(matrices_of(model, frozenset({role})), 1.0 / blocks)


def _last_experts(model: ModelDescription, portion: float) -> tuple[Experts, ...]:
    """Routed experts of the last block."""
    last = model.layers[-1]
    if not last.expert_count:
        return ()
    share = portion * last.expert_bytes / (sum(x.expert_bytes for x in model.layers) or 1)
    return tuple(m.scaled(share).routed(last.expert_count, last.expert_used) for m in matrices_of(model, _EXPERTS))


def _make_mtp(model: ModelDescription, setup: Setup, costs: CostSource | None) -> Plan:
    block = model.mtp
    if block is None:
        raise InputError(f"{model.name} has no MTP layers.", "Choose a file that keeps them, or another method.")
    dense = matrices_of(model, frozenset({"mtp"}))
    own_head = matrices_of(model, frozenset({"mtp_head"}))
    width = block.key_width * cache_element_bytes(setup.cache_type_k)
    width += block.value_width * cache_element_bytes(setup.cache_type_v)
    n = max(block.layers, 1)
    device, backend = _output_device(setup)
    tier = Tier(
        costs=resolve_costs(setup, device, backend, costs),
        layers=1.0,
        dense=_scaled(dense, 1.0 / n),
        head=_scaled(own_head, 1.0 / n) if own_head else matrices_of(model, _HEAD),
        experts=tuple(
            m.scaled(1.0 / n).routed(block.expert_count, block.expert_used)
            for m in matrices_of(model, frozenset({"mtp_experts"}))
        ),
        cache=((width / n, None),) if width else (),
        state=0.0,
    )
    return Plan(model.architecture, [tier], vocabulary=model.vocabulary_size)


def resolve_costs(setup: Setup, device: Device, backend: Backend, given: CostSource | None) -> CostModel:
    """Cost model of one tier: what was given, else a calibration of this machine, else the fitted constants.

    Raises:
        InputError: the device has no bandwidth.
    """
    if callable(given):
        return given(device, backend)
    if given is not None:
        return given
    from advisor.performance.select import cost_model

    return cost_model(setup, device, backend)


def _output_device(setup: Setup) -> tuple[Device, Backend]:
    hardware, placement = setup.hardware, setup.placement
    if placement.gpu_layers == 0 and hardware.host is not None:
        return hardware.host, "cpu"
    return hardware.devices[-1], setup.backend


def draft_device(setup: Setup) -> tuple[Device, Backend]:
    """Where a drafter runs, or a draft model that is not spread like its target.

    Raises:
        InputError: the placement names a device that the machine does not have.
    """
    hardware, wanted = setup.hardware, setup.placement.draft_device
    if wanted == "host":
        if hardware.host is None and not hardware.device.is_cpu:
            raise InputError(f"{hardware.name} has no host CPU described, so a draft cannot be put there.")
        return hardware.host or hardware.device, "cpu"
    if wanted == "second":
        if len(hardware.devices) < 2:
            raise InputError(f"{hardware.name} has one device only, so a draft cannot be put on a second one.")
        return hardware.devices[1], setup.backend
    return hardware.devices[0], setup.backend


def _shares(setup: Setup, devices: Sequence[Device]) -> list[float]:
    """Part of the layers each device takes: ``--tensor-split``, else in proportion to memory, else evenly."""
    told = setup.placement.tensor_split
    if told and len(told) == len(devices) and sum(told) > 0:
        return [x / sum(told) for x in told]
    memory = [d.memory.value if d.memory else 0.0 for d in devices]
    if all(memory):
        return [m / sum(memory) for m in memory]
    return [1.0 / len(devices)] * len(devices)


def _lay_out(model: ModelDescription, setup: Setup, draft: bool) -> tuple[list[_Slice], float, float]:
    """Slices of the model by device, seconds of fixed hops per pass, seconds per byte and token moved."""
    hardware, placement = setup.hardware, setup.placement
    host = hardware.host
    layers = model.layers
    if draft:
        if placement.draft_device != "same" or len(hardware.devices) == 1:
            device, backend = draft_device(setup)
            return [_Slice(device, backend, layers, True, layers)], 0.0, 0.0
        # Like the target over all devices of this host; -ngl, --cpu-moe and RPC hosts are the target's alone.
        placement = Placement(split=placement.split, tensor_split=placement.tensor_split)

    link = (hardware.link.value if hardware.link else PCIE_LINK) * 1e9
    hops = 0
    extra_seconds = extra_per_byte = 0.0
    on_host: tuple[Layer, ...] = ()
    on_device = layers
    output_on_host = False
    if placement.gpu_layers is not None and host is not None and not hardware.device.is_cpu:
        # llama.cpp offloads the last layers; the output counts as one more (llama-model.cpp, i_gpu_start).
        first = max(len(layers) + 1 - placement.gpu_layers, 0)
        on_host, on_device = layers[:first], layers[first:]
        output_on_host = placement.gpu_layers == 0
        hops += bool(on_host) and (bool(on_device) or not output_on_host)
    host_experts: tuple[Layer, ...] = ()
    if (placement.cpu_moe or placement.cpu_moe_layers) and host is not None and not hardware.device.is_cpu:
        host_experts = tuple(
            x for x in on_device if x.expert_count and (placement.cpu_moe or x.index < placement.cpu_moe_layers)
        )
        hops += 2 * len(host_experts)

    slices: list[_Slice] = []
    if on_host or host_experts or output_on_host:
        assert host is not None
        slices.append(_Slice(host, "cpu", on_host, output_on_host, on_host + host_experts))
    kept_experts = [x for x in on_device if x not in host_experts] if host_experts else on_device

    workers: list[tuple[Device, Backend]] = []
    for remote in placement.rpc:  # llama.cpp fills RPC devices first, so that the output stays here
        workers += [(d, remote.hardware.backend) for d in remote.hardware.devices]
        # Each remote is entered and left once per pass.
        extra_seconds += 2 * remote.latency.value * 1e-3
        extra_per_byte += 2 / (remote.bandwidth.value * 1e9)
    workers += [(d, setup.backend) for d in hardware.devices]
    if len(workers) == 1 or (placement.split == "none" and not placement.rpc):
        device, backend = workers[0]
        if on_device or not output_on_host:
            slices.append(_Slice(device, backend, tuple(on_device), not output_on_host, tuple(kept_experts)))
    elif placement.split in ("row", "tensor") and not placement.rpc:
        # All devices work on every matrix; the shares follow bandwidth, so one device's time stands for all.
        device, backend = workers[0]
        rates = [d.bandwidth.value if d.bandwidth else 0.0 for d, _ in workers]
        share = rates[0] / sum(rates) if all(rates) else 1.0 / len(workers)
        slices.append(_Slice(device, backend, tuple(on_device), not output_on_host, tuple(kept_experts), share))
        hops += 2 * len(on_device)
    else:
        shares = _shares(setup, [d for d, _ in workers])
        bounds, edge = [0], 0.0
        for x in shares:
            edge += x
            bounds.append(round(edge * len(on_device)))
        last = len(workers) - 1
        for i, (device, backend) in enumerate(workers):
            mine = tuple(on_device[bounds[i] : bounds[i + 1]])
            output = i == last and not output_on_host
            if mine or output:
                slices.append(_Slice(device, backend, mine, output, tuple(x for x in mine if x in kept_experts)))
        hops += len(hardware.devices) - 1
    if not slices:
        raise InputError(f"The placement leaves nothing of {model.name} on any device of {hardware.name}.")
    slices.sort(key=lambda s: s.output)  # the tier that computes the output comes last
    return slices, hops * HOP_SECONDS + extra_seconds, hops / link + extra_per_byte


def simple_setup(hardware: Hardware, backend: Backend | None = None) -> Setup:
    """A setup with everything on the device(s) of ``hardware`` and llama.cpp's defaults."""
    return Setup(hardware=hardware, backend=backend or hardware.backend)
