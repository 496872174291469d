"""Where the weights of a run go when not everything fits on the device."""

from __future__ import annotations

from advisor.hardware.machine import Placement, Setup
from advisor.models.description import ModelDescription
from advisor.performance.identity import IdentityCache
from advisor.performance.memory import memory_plan, place
from advisor.speculation.prediction import MemoryPlan, Method

_FOUND: IdentityCache[list[tuple[Setup, MemoryPlan]]] = IdentityCache(2048)


def arrangements(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    *,
    context: int,
    draft_max: int,
    alone: Placement | None = None,
) -> list[tuple[Setup, MemoryPlan]]:
    """Placements worth comparing for a run, each with its memory plan; the first is the usual one.

    Everything on the device if it fits. If not, and the machine has a host behind its device, what
    :func:`advisor.performance.memory.place` moves there; and the same with the draft on the host, so that it does not
    push the target away. What the user has placed stays there.

    Args:
        target: the target.
        draft: draft model or head, if any.
        method: llama.cpp's method; ``none`` = without speculation.
        setup: the machine and what the user has said of the placement.
        context: context to plan for [tokens].
        draft_max: longest draft, for state copies and output rows.
        alone: where the target lies without a draft, if that is known: with the draft on the host it can stay there.
    """
    owners = (target, setup) if draft is None else (target, setup, draft)
    extra = (method, context, draft_max, alone, draft is None)
    return _FOUND.get(owners, extra, lambda: _arrange(target, draft, method, setup, context, draft_max, alone))


def _arrange(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    context: int,
    draft_max: int,
    alone: Placement | None,
) -> list[tuple[Setup, MemoryPlan]]:
    def plan(placement: Placement) -> tuple[Setup, MemoryPlan]:
        tried = setup if placement == setup.placement else setup.model_copy(update={"placement": placement})
        memory = memory_plan(target, draft, method, tried, context=context, draft_max=draft_max, advise=False)
        return tried, memory

    given = setup.placement
    first = plan(given)
    if first[1].fits is not False or setup.hardware.host is None or setup.backend == "cpu":
        return [first]
    free = given.gpu_layers is None and not given.cpu_moe and not given.cpu_moe_layers
    placements: list[Placement] = [
        place(target, draft, method, setup, context=context, draft_max=draft_max) if free else given
    ]
    if draft is not None and given.draft_device == "same":
        on_host = (alone or given).model_copy(update={"draft_device": "host"})
        if free and alone is None:
            start = setup.model_copy(update={"placement": on_host})
            on_host = place(target, draft, method, start, context=context, draft_max=draft_max)
        if on_host not in placements:
            placements.append(on_host)
    found = [one for one in map(plan, placements) if one[1].fits is not False]
    return found or [first]
