"""Where the weights of a run go when not everything fits on the device."""

from __future__ import annotations

from advisor.hardware.machine import Placement, Setup
from advisor.models.description import ModelDescription
from advisor.performance.memory import memory_plan, place
from advisor.speculation.prediction import MemoryPlan, Method


def arrangements(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    *,
    context: int,
    draft_max: int,
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
    """

    def plan(placement: Placement) -> tuple[Setup, MemoryPlan]:
        tried = setup if placement == setup.placement else setup.model_copy(update={"placement": placement})
        memory = memory_plan(target, draft, method, tried, context=context, draft_max=draft_max, advise=False)
        return tried, memory

    given = setup.placement
    first = plan(given)
    if first[1].fits is not False or setup.hardware.host is None or setup.backend == "cpu":
        return [first]
    homes = [given]
    if draft is not None and given.draft_device == "same":
        homes.append(given.model_copy(update={"draft_device": "host"}))
    free = given.gpu_layers is None and not given.cpu_moe and not given.cpu_moe_layers
    placements: list[Placement] = []
    for home in homes:
        moved = home
        if free:
            start = setup.model_copy(update={"placement": home})
            moved = place(target, draft, method, start, context=context, draft_max=draft_max)
        if moved not in placements:
            placements.append(moved)
    found = [one for one in map(plan, placements) if one[1].fits is not False]
    return found or [first]
