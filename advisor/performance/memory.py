"""The memory of a run: what is kept where, whether it fits, what would make it fit, and the best placement that does.

What is kept is listed by :mod:`advisor.performance.footprint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from advisor.hardware.machine import Placement, Setup
from advisor.models.description import ModelDescription, cache_element_bytes
from advisor.performance.footprint import CACHE_PAD, GIB, Footprint, Item
from advisor.speculation.prediction import DeviceMemory, MemoryItem, MemoryPlan, Method

_QUANTS = (
    ("Q8_0", 8.5),
    ("Q6_K", 6.6),
    ("Q5_K_M", 5.7),
    ("Q4_K_M", 4.85),
    ("IQ4_XS", 4.3),
    ("Q3_K_M", 3.9),
    ("Q2_K", 3.0),
)
"""Usual quantisations and their bits per weight over a whole file."""


def memory_plan(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    *,
    context: int,
    draft_max: int,
    draft_cache_type: str = "f16",
    advise: bool = True,
) -> MemoryPlan:
    """The memory of a run.

    Args:
        target: the model whose output is wanted.
        draft: draft model or drafter file; None = the method needs none (MTP inside the target, n-gram, none).
        method: speculation method; ``none`` ignores ``draft``.
        setup: machine, placement, cache types and slots.
        context: tokens that each slot must be able to hold (``-c`` divided by ``-np``).
        draft_max: draft length n_max; n-gram methods draft up to it too.
        draft_cache_type: type of the draft's cache (``-ctkd``, ``-ctvd``), which does not follow the target's.
        advise: work out what would make it fit, if it does not.

    Raises:
        KeyError: unknown cache type.
    """
    budget = _footprint(target, draft, method, setup, context, draft_max, draft_cache_type)
    devices, fits = budget.verdict()
    items = [x for x in budget.items() if round(x.nbytes) > 0]

    def total(*groups: str) -> int:
        return sum(round(x.nbytes) for x in items if x.group in groups)

    return MemoryPlan(
        target_weights=total("target_weights"),
        draft_weights=total("draft_weights"),
        target_kv=total("target_kv"),
        draft_kv=total("draft_kv"),
        state=total("state"),
        compute=total("compute"),
        total=sum(round(x.nbytes) for x in items),
        context=context,
        devices=devices,
        fits=fits,
        advice=_advice(budget, devices) if advise and fits is not True else _remarks(budget),
        items=tuple(
            MemoryItem(what=x.what, device=budget.bins[x.where].label, bytes=round(x.nbytes), kind=x.kind, how=x.how)
            for x in items
        ),
    )


def _footprint(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    context: int,
    draft_max: int,
    draft_cache_type: str,
) -> Footprint:
    used = draft if method != "none" else None
    return Footprint(target, used, method, setup, max(1, context), max(0, draft_max), draft_cache_type)


def place(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    *,
    context: int,
    draft_max: int,
    draft_cache_type: str = "f16",
) -> Placement:
    """The best placement that fits: as much on the GPU(s) as possible, and what is read least moved off first.

    In order: everything on the devices; the draft on the second device; routed experts of as few layers as needed on
    the host (``--n-cpu-moe``); as many layers as fit on the device (``-ngl``), then the same with the draft on the
    host. A draft never pushes layers of the target off a device if another device can hold it. If nothing fits, the
    placement of ``setup`` comes back unchanged; so it does on a machine with one memory, where nothing can be moved.
    """
    start = _footprint(target, draft, method, setup, context, draft_max, draft_cache_type)
    for option in _placements(start):
        if option.works():
            return option.setup.placement
    return setup.placement


# --- what would make it fit ---------------------------------------------------------------------------------------


def _placements(start: Footprint) -> Iterator[Footprint]:
    """Placements from best to worst, the search for a fitting number included."""
    placement = start.setup.placement
    yield start
    if start.host in start.local:
        return
    has_draft = start.draft is not None
    drafts: list[Placement] = [placement]
    if has_draft and placement.draft_device == "same":
        if len(start.local) > 1:
            second = placement.model_copy(update={"draft_device": "second"})
            drafts.append(second)
            yield start.but(placement=second)
        drafts.append(placement.model_copy(update={"draft_device": "host"}))
    moe = any(layer.expert_count for layer in start.target.layers)
    for base in drafts:
        if moe:
            yield _least(start, base, "cpu_moe_layers", _highest_moe_layer(start.target))
    for base in drafts:
        best = _most_layers(start, base.model_copy(update={"cpu_moe": moe, "cpu_moe_layers": 0}))
        if best is not None:
            yield best


def _highest_moe_layer(model: ModelDescription) -> int:
    return max((layer.index + 1 for layer in model.layers if layer.expert_count), default=0)


def _least(start: Footprint, base: Placement, field: str, top: int) -> Footprint:
    """The smallest number in ``field`` that fits (or the largest there is)."""
    low, high = 1, max(1, top)
    while low < high:
        middle = (low + high) // 2
        if start.but(placement=base.model_copy(update={field: middle})).works():
            high = middle
        else:
            low = middle + 1
    return start.but(placement=base.model_copy(update={field: low}))


def _most_layers(start: Footprint, base: Placement) -> Footprint | None:
    """As many layers on the device as fit; None if not even the output does."""
    low, high = 0, len(start.target.layers)
    while low < high:
        middle = (low + high + 1) // 2
        if start.but(placement=base.model_copy(update={"gpu_layers": middle})).works():
            low = middle
        else:
            high = middle - 1
    found = start.but(placement=base.model_copy(update={"gpu_layers": low}))
    return found if found.works() else None


def _largest(top: int, fits: Callable[[int], bool]) -> int:
    """Largest multiple of 256 up to ``top`` that fits, 0 if none."""
    low, high = 0, top // CACHE_PAD
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle * CACHE_PAD):
            low = middle
        else:
            high = middle - 1
    return low * CACHE_PAD


def _label(budget: Footprint, item: Item) -> str:
    return budget.bins[item.where].label


def _gb(nbytes: float) -> str:
    return f"{nbytes / GIB:.1f} GiB"


def _advice(budget: Footprint, devices: tuple[DeviceMemory, ...]) -> tuple[str, ...]:
    said: list[str] = []
    short = [x for x in devices if x.fits is False and x.capacity is not None]
    for device in short:
        said.append(f"{device.device} needs {_gb(device.need)} and has {_gb(device.capacity or 0)} to give.")
    for device in devices:
        if device.fits is None and device.capacity is not None:
            doubt = sum(x.nbytes for x in budget.items() if x.kind == "assumed" and _label(budget, x) == device.device)
            said.append(
                f"{device.device} needs about {_gb(device.need)} ({_gb(doubt)} of it estimated) and has "
                f"{_gb(device.capacity)} to give: too close to call."
            )
        if device.capacity is None and device.need > 4 * GIB:
            said.append(
                f"{device.device} needs {_gb(device.need)}; its memory is not known (name it, or give --memory)."
            )
    close = [x for x in devices if x.fits is None and x.capacity is not None]
    if not short and not close:
        return (*said, *_remarks(budget))
    stated = len(said)
    setup = budget.setup
    context = _largest(budget.context, lambda size: budget.but(context=size).works())
    if context:
        total = (
            f" (-c {context * setup.parallel} for {setup.parallel} slots)" if setup.parallel > 1 else f" (-c {context})"
        )
        said.append(f"A context of {context} tokens fits{total}.")
    if setup.flash_attention and cache_element_bytes(setup.cache_type_k) > cache_element_bytes("q8_0"):
        for cache in ("q8_0", "q4_0"):
            if budget.but(cache=cache).works():
                flags = f"-ctk {cache} -ctv {cache}"
                if budget.draft is not None or budget.method == "draft-mtp":
                    flags += f" -ctkd {cache} -ctvd {cache}"
                said.append(f"The same context fits with a {cache} cache ({flags}).")
                break
    if setup.parallel > 1 and budget.but(parallel=1).works():
        said.append("One slot fits (-np 1).")
    said += _placement_advice(budget)
    plain = budget.but(draft=False)
    if (budget.draft is not None or budget.method == "draft-mtp") and plain.works():
        saved = sum(x.nbytes for x in budget.items()) - sum(x.nbytes for x in plain.items())
        said.append(f"Without speculation it fits: the draft and what it needs take {_gb(saved)}.")
    quant = _smaller_quant(budget, short + close)
    if quant:
        said.append(quant)
    if len(said) == stated:
        said.append("Nothing that can be changed here makes it fit: a smaller model or more memory is needed.")
    return (*said, *_remarks(budget))


def _placement_advice(budget: Footprint) -> Iterator[str]:
    if budget.host in budget.local:
        return
    placement = budget.setup.placement
    if budget.draft is not None and placement.draft_device == "same":
        second = placement.model_copy(update={"draft_device": "second"})
        if len(budget.local) > 1 and budget.but(placement=second).works():
            yield f"It fits with the draft on {budget.bins[budget.local[1]].label} alone (-devd)."
        elif budget.but(placement=placement.model_copy(update={"draft_device": "host"})).works():
            yield "It fits with the draft on the host (-devd none), where it drafts more slowly."
    if any(layer.expert_count for layer in budget.target.layers) and not placement.cpu_moe:
        moved = _least(budget, placement, "cpu_moe_layers", _highest_moe_layer(budget.target))
        if moved.works():
            count = moved.setup.placement.cpu_moe_layers
            yield (
                f"It fits with the experts of {count} of {len(budget.target.layers)} layers on the host "
                f"(--n-cpu-moe {count})."
            )
            return
    layers = _most_layers(budget, placement)
    if layers is not None and layers.setup.placement.gpu_layers:
        count = layers.setup.placement.gpu_layers
        yield (
            f"It fits with {count} of {len(budget.target.layers) + 1} layers on the GPU (-ngl {count}); "
            "the rest runs on the host."
        )


def _smaller_quant(budget: Footprint, short: list[DeviceMemory]) -> str | None:
    """The largest usual quantisation of the target with which the fullest device would hold what it must."""
    total = budget.target.total_parameters
    if not total:
        return None
    weights: dict[str, float] = {}
    for item in budget.items():
        if item.group == "target_weights":
            label = budget.bins[item.where].label
            weights[label] = weights.get(label, 0.0) + item.nbytes
    now = 8.0 * sum(g.bytes for g in budget.target.weights) / total
    scale = 1.0
    for device in short:
        mine = weights.get(device.device, 0.0)
        room = (device.capacity or 0) - (device.need - mine)
        scale = min(scale, room / mine if mine else 0.0)
    wanted = next(((name, bits) for name, bits in _QUANTS if bits <= now * scale and bits < now * 0.95), None)
    if wanted is None:
        return None
    return f"With a smaller file of the target it fits: {wanted[0]}, {wanted[1]:g} bits a weight instead of {now:.1f}."


def _remarks(budget: Footprint) -> tuple[str, ...]:
    """What should be known even if everything fits."""
    said = []
    device = budget.bins[budget.local[0]].device
    need = sum(x.nbytes for x in budget.items() if x.where == budget.local[0])
    size = device.memory.value * GIB if device.memory else 0.0
    if (
        device.is_unified
        and device.vendor == "AMD"
        and device.memory
        and device.memory.kind != "measured"
        and need > 0.5 * size
    ):
        said.append(
            "Linux lets this GPU use half the memory unless the kernel option ttm.pages_limit is raised "
            "(or the BIOS sets more aside)."
        )
    if device.device_class == "apple-soc" and size and need > 0.6 * size:
        said.append(
            "macOS gives the GPU two thirds to three quarters of the memory; "
            "sudo sysctl iogpu.wired_limit_mb=… raises it."
        )
    return tuple(said)
