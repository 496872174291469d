"""One round of speculative decoding: what it costs and how many tokens it yields.

A round drafts up to ``k`` tokens, verifies them in one pass of the target, lets the draft catch up with what was
accepted and, on some targets, rolls a recurrent state back. Which of these happen is llama.cpp's doing
(tools/server/server-context.cpp and common/speculative.cpp of build 11434); their times come from
:mod:`advisor.performance.passes`. Costs are in decode steps of the target: the time of one ordinary token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import sqrt
from typing import Any, NamedTuple

from advisor.base import Frozen
from advisor.errors import InputError
from advisor.hardware.machine import Setup
from advisor.models.description import LOOKED_UP, ModelDescription
from advisor.performance.constants import load_constants
from advisor.performance.identity import IdentityCache
from advisor.performance.passes import (
    CostSource,
    Plan,
    Tier,
    draft_device,
    matrices_of,
    mtp_plan_of,
    plan_of,
    resolve_costs,
)
from advisor.speculation.prediction import Method, RoundCost

SNAPSHOT_ARCHITECTURES = frozenset(
    {
        "kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe",
        "lfm2", "lfm2moe", "bailingmoe3",
    }
)  # fmt: skip
"""Recurrent or hybrid architectures whose state llama.cpp can roll back by snapshots (src/llama-arch.cpp, b11434)."""
SNAPSHOT_METHODS = frozenset({"draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"})
"""Methods for which llama.cpp keeps such snapshots (common/common.h, n_rs_seq); all others use checkpoints."""
BLOCK_METHODS = frozenset({"draft-dflash", "draft-dspark"})
"""Methods that draft all tokens of a round in one pass."""
NGRAM_METHODS = frozenset({"ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache"})
CATCH_UP_BUILD = 9129
"""From about this build (May 2026) a draft model decodes the whole verified batch again (``process()``); before, it
only followed by the one token that it had drafted last, if that was accepted (sources of b9105 and b9129)."""
CHAINED_HEADS = frozenset({"step35"})
"""Architectures whose MTP layers are different heads used one after another: draft i re-decodes the i tokens before."""


class Round(Frozen):
    """One round: its cost, the tokens it yields, the tokens it drafts, and how sure the cost is.

    ``tokens`` counts everything emitted per draft round: accepted drafts, the target's own token and, after a
    checkpoint was restored, the one more that the replay yields. ``log_sd`` is the standard deviation of
    ln(true / predicted) of ``cost.cost``.
    """

    cost: RoundCost
    tokens: float
    drafted: float
    log_sd: float


class Gate(NamedTuple):
    """What ``--spec-draft-p-min`` does at one position: chance to go on, and chance to go on and be accepted."""

    passed: float
    accepted: float


def gate(acceptance: float, p_min: float, stop: float | None = None, loss: float | None = None) -> Gate:
    """Effect of a confidence gate on one drafted token with conditional acceptance ``acceptance``.

    The chance that the drafter's confidence lies below ``p`` is taken as ``stop (1 - acceptance) p**2``, and that
    of losing a token which would have been accepted as ``2/3 loss stop (1 - acceptance) p**3``: the density then
    falls linearly to zero confidence, and acceptance is proportional to confidence. Both factors are fitted.
    """
    if p_min <= 0.0:
        return Gate(1.0, acceptance)
    k = load_constants()
    h = k["gate.stop"] if stop is None else stop
    q = k["gate.loss"] if loss is None else loss
    stopped = min(h * (1.0 - acceptance) * p_min * p_min, 0.98)
    kept = acceptance - min(2.0 / 3.0 * q * stopped * p_min, stopped, acceptance)
    return Gate(1.0 - stopped, min(kept, 1.0 - stopped))


def gated_rate(a: float, k: int, p_min: float) -> float:
    """Accepted / drafted of rounds with constant conditional acceptance ``a`` behind a gate."""
    passed, accepted = gate(a, p_min)
    drafted = _geometric(passed, k)
    return _geometric(accepted, k) / drafted if drafted > 0 else 0.0


@lru_cache(maxsize=4096)
def positions_behind_gate(rate: float, k: int, p_min: float) -> tuple[float, ...]:
    """Constant conditional acceptance that shows as ``rate`` = accepted / drafted with draft length ``k`` and gate.

    Raises:
        InputError: a rate outside 0..1 or a draft length below 1.
    """
    if not 0.0 <= rate <= 1.0 or k < 1:
        raise InputError(f"Acceptance must lie between 0 and 1 and the draft length be positive, not {rate} and {k}.")
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        if gated_rate(middle, k, p_min) < rate:
            low = middle
        else:
            high = middle
    return (0.5 * (low + high),) * k


def _geometric(x: float, k: int) -> float:
    """x + x**2 + ... + x**k."""
    return float(k) if x >= 1.0 else x * (1.0 - x**k) / (1.0 - x)


class _Work(NamedTuple):
    """Seconds of a round that drafted ``m`` tokens, before anything is rolled back."""

    draft: float
    verify: float
    overhead: float


class Expected(NamedTuple):
    """Seconds of the average round by cause, tokens it yields, tokens it drafts."""

    draft: float
    verify: float
    overhead: float
    rollback: float
    tokens: float
    drafted: float

    @property
    def seconds(self) -> float:
        """The whole round [s]."""
        return self.draft + self.verify + self.overhead + self.rollback


def step_seconds(plan: Plan, depth: int, slots: int = 1) -> float:
    """One ordinary decode step of a target in a server: the pass and the sampling of one row per slot [s]."""
    return plan.seconds(slots, None, depth, 0, slots) + plan.costs.verified_token(plan.vocabulary) * slots


class Rounds:
    """All rounds of one pair on one machine at one depth; what does not depend on acceptance is computed once."""

    def __init__(
        self,
        target: ModelDescription,
        draft: ModelDescription | None,
        method: Method,
        setup: Setup,
        depth: int,
        parallel: int,
        costs: CostSource | None,
    ) -> None:
        if parallel < 1 or depth < 0:
            raise InputError(f"Slots must be at least 1 and depth at least 0, not {parallel} and {depth}.")
        self.method: Method = method
        self.depth = depth
        self.slots = parallel
        # Slots share the draft's graph but are sampled one after another: half and half (assumed).
        self._per_slot = 0.5 + 0.5 * parallel
        self.plan = plan_of(target, setup, costs)
        self.costs = self.plan.costs
        self.architecture = target.architecture
        self._routed = target.is_moe
        self.vocabulary = target.vocabulary_size
        self._sampled = self.costs.verified_token(self.vocabulary) * parallel
        self.base = step_seconds(self.plan, depth, parallel)
        self.rollback = rollback_class(target, method)
        self.draft_plan: Plan | None = None
        self.draft_layers = 1.0
        self.draft_costs = self.costs
        self._chained = False
        if method == "draft-simple":
            if draft is None:
                raise InputError("draft-simple needs a draft model.")
            self.draft_plan = plan_of(draft, setup, costs, draft=True)
        elif method == "draft-mtp" and draft is None:
            self.draft_plan = mtp_plan_of(target, setup, costs)
            self._chained = target.architecture in CHAINED_HEADS and target.mtp_layers > 1
        elif method in SNAPSHOT_METHODS:
            if draft is None:
                raise InputError(f"{method} needs its drafter.", "Name the drafter file.")
            self.draft_plan = _drafter_plan(draft, target, setup, costs)
        elif method not in NGRAM_METHODS:
            raise InputError(f"There is no round for the method {method}.")
        if self.draft_plan is not None:
            self.draft_layers = self.draft_plan.layers
            self.draft_costs = self.draft_plan.costs
        self._routed_draft = method == "draft-simple" and draft is not None and draft.is_moe
        self._catch_up: Callable[[int], float] | None = None
        self._last_draft = 0.0
        if method == "draft-simple" and setup.build is not None and setup.build < CATCH_UP_BUILD:
            assert self.draft_plan is not None
            self._last_draft = self.draft_plan.seconds(parallel, 0, depth, 0, parallel)
        elif self.draft_plan is not None:
            self._catch_up = _catch_up(self.draft_plan, draft, target, method, setup, costs, depth, parallel)
        self.draft_state = self.draft_plan.state_bytes if self.draft_plan is not None else 0.0
        self._work: dict[tuple[int, int], _Work] = {}
        self._replay: dict[int, float] = {}
        if self.rollback == "checkpoint":
            self.save = self.costs.checkpoint(self.plan.state_bytes * parallel)
            if self.draft_state:
                # The draft's state is saved before and restored after drafting in every round.
                self.save += 2.0 * self.draft_costs.checkpoint(self.draft_state * parallel)
            self.restore = self.costs.checkpoint(self.plan.state_bytes * parallel)
        else:
            self.save = self.restore = 0.0

    def work(self, m: int, k: int) -> _Work:
        """Drafting and verifying ``m`` of at most ``k`` tokens in each slot [s]."""
        key = (m, k)
        found = self._work.get(key)
        if found is None:
            found = self._work[key] = self._make_work(m, k)
        return found

    def _make_work(self, m: int, k: int) -> _Work:
        s, depth, method = self.slots, self.depth, self.method
        snapshots = k if self.rollback == "snapshots" else 0
        verify = self.plan.seconds(s * (m + 1), None, depth, snapshots, s)
        overhead = self._sampled + self.costs.round_overhead(method)
        plan = self.draft_plan
        if plan is None:
            return _Work(0.0, verify, overhead)
        c = self.draft_costs
        token = c.drafted_token(method, plan.vocabulary or self.vocabulary, self.draft_layers) * self._per_slot
        overhead += self.catch_up(m)
        if method in BLOCK_METHODS:
            # The whole block is drafted in one pass, however much of it a gate keeps.
            rows = k + 1 if method == "draft-dflash" else k
            return _Work(plan.seconds(s * rows, None, depth, 0, s) + token, verify, overhead)
        # A gate that stops the draft has already paid for the token it drops.
        passes = m + (1 if m < k else 0)
        if self._chained:
            draft = sum(_pass(plan.seconds(s * (i + 1), s, depth, 0, s), token) for i in range(passes))
        else:
            draft = passes * _pass(plan.seconds(s, s, depth, 0, s), token)
        return _Work(draft, verify, overhead)

    def catch_up(self, m: int) -> float:
        """What the draft does to follow a verification of ``m`` drafted tokens [s]."""
        return self._catch_up(m) if self._catch_up is not None else 0.0

    def replay(self, accepted: int) -> float:
        """Restoring the state and decoding ``accepted`` + 2 tokens again, on target and draft [s]."""
        found = self._replay.get(accepted)
        if found is None:
            n, s = accepted + 2, self.slots
            found = self.restore + self.plan.seconds(s * n, None, self.depth, 0, s) + self.catch_up(accepted + 1)
            self._replay[accepted] = found
        return found

    def expected(self, k: int, gates: Sequence[Gate], hit_rate: float = 1.0) -> Expected:
        """The average round when position ``i`` goes on and is accepted as ``gates[i]`` says [s, tokens].

        Only sums and products of costs, so that a fit can follow them back to the constants.
        """
        checkpoint = self.rollback == "checkpoint"
        draft = verify = overhead = rollback = 0.0
        accepted = drafted = extra = 0.0
        reached = kept = 1.0  # chance that the gate let all earlier tokens through; that they were also accepted
        for m in range(k + 1):
            going_on = gates[m].passed if m < k else 0.0
            chance = reached * (1.0 - going_on)
            reached *= going_on
            drafted += reached
            if chance <= 0.0:
                continue
            w = self.work(m, k)
            draft += chance * w.draft
            verify += chance * w.verify
            overhead += chance * w.overhead
            if checkpoint and m:
                rollback += chance * self.save
        for i in range(k):
            missed = kept * (gates[i].passed - gates[i].accepted)
            if checkpoint and missed > 0.0:
                rollback += missed * self.replay(i)
                extra += missed
            kept *= gates[i].accepted
            accepted += kept
        # Rows behind the first rejection are computed but never sampled.
        overhead += self._sampled * accepted
        if self._last_draft:
            overhead += kept * self._last_draft
        if hit_rate < 1.0:
            draft, overhead, rollback = draft * hit_rate, overhead * hit_rate, rollback * hit_rate
            verify = verify * hit_rate + self.base * (1.0 - hit_rate)
        return Expected(draft, verify, overhead, rollback, 1.0 + (accepted + extra) * hit_rate, drafted * hit_rate)

    def round(self, k: int, gates: Sequence[Gate], hit_rate: float = 1.0) -> Round:
        """The same in decode steps, with its uncertainty; see :func:`round_of`."""
        e = self.expected(k, gates, hit_rate)
        return Round(
            cost=self.cost_of(e), tokens=e.tokens, drafted=e.drafted, log_sd=self.log_sd(gates[0].passed < 1.0)
        )

    def cost_of(self, e: Expected) -> RoundCost:
        """An average round in decode steps."""
        base = self.base
        return RoundCost(
            cost=e.seconds / base,
            draft=e.draft / base,
            verify=e.verify / base,
            overhead=(e.overhead + e.rollback) / base,
            rollback=e.rollback / base,
            milliseconds=e.seconds * 1e3,
        )

    def log_sd(self, gated: bool) -> float:
        """Standard deviation of ln(true / predicted) of the round cost."""
        k = load_constants()
        variance = self.costs.log_sd(self.architecture, self.method) ** 2
        if self.costs.kind != "measured":
            if self.rollback == "checkpoint":
                variance += k["scatter.checkpoint"] ** 2
            if self._routed:
                variance += k["scatter.experts"] ** 2
            if self._routed_draft:
                variance += k["scatter.unseen_draft"] ** 2  # no published run has a draft model with experts
        if gated:
            variance += k["scatter.gate"] ** 2
        if self.slots > 1:
            variance += k["scatter.slots"] ** 2
        if len(self.plan.tiers) > 1:
            variance += k["scatter.tiers"] ** 2
        return sqrt(variance)


_ROUNDS: IdentityCache[Rounds] = IdentityCache()


def rounds_of(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    *,
    depth: int = 0,
    parallel: int = 1,
    costs: CostSource | None = None,
) -> Rounds:
    """Everything about rounds of this pair that acceptance does not change, kept between calls.

    Raises:
        InputError: the method needs a draft that is missing, or MTP layers the target does not have.
    """
    owners: tuple[Any, ...] = tuple(x for x in (target, draft, setup, costs) if x is not None)
    extra = (method, depth, parallel, draft is None, costs is None)
    return _ROUNDS.get(owners, extra, lambda: Rounds(target, draft, method, setup, depth, parallel, costs))


def round_of(
    target: ModelDescription,
    draft: ModelDescription | None,
    method: Method,
    setup: Setup,
    k: int,
    *,
    positions: Sequence[float] | None = None,
    acceptance: float | None = None,
    depth: int = 0,
    p_min: float = 0.0,
    parallel: int = 1,
    hit_rate: float = 1.0,
    costs: CostSource | None = None,
) -> Round:
    """Cost and yield of one round of draft length ``k``.

    Args:
        target: the model whose output is wanted.
        draft: the draft model or drafter; None for MTP layers inside the target and for n-gram methods.
        method: llama.cpp's name of the method.
        setup: machine, backend, placement, cache types.
        k: most tokens drafted per round (``--spec-draft-n-max``).
        positions: conditional acceptance of each position *without* a gate; the last is used beyond their end.
        acceptance: instead of ``positions``: accepted / drafted as llama.cpp counts it in this very run, gate
            included; every position then gets the same conditional acceptance.
        depth: tokens already in the context.
        p_min: ``--spec-draft-p-min``.
        parallel: sequences decoded at the same time; costs are then in steps that give each of them one token.
        hit_rate: share of rounds in which the method drafts at all (n-gram methods miss).
        costs: another cost model, or a source of them, instead of calibration and fitted constants.

    Raises:
        InputError: no acceptance given, values out of range, or a draft that is missing.
    """
    if k < 1:
        raise InputError(f"The draft length must be at least 1, not {k}.")
    if not 0.0 <= p_min <= 1.0 or not 0.0 <= hit_rate <= 1.0:
        raise InputError("p_min and hit rate must lie between 0 and 1.")
    if positions is None:
        if acceptance is None:
            raise InputError("A round needs the acceptance, as one number or by position.")
        positions = positions_behind_gate(acceptance, k, p_min)
    elif not positions:
        raise InputError("The list of acceptances by position is empty.")
    if len(positions) < k:
        positions = (*positions, *([positions[-1]] * (k - len(positions))))
    rounds = rounds_of(target, draft, method, setup, depth=depth, parallel=parallel, costs=costs)
    return rounds.round(k, [gate(a, p_min) for a in positions], hit_rate)


def rollback_class(target: ModelDescription, method: Method) -> str:
    """How llama.cpp undoes rejected tokens: ``free``, ``snapshots`` or ``checkpoint`` (save, restore, replay)."""
    if not target.is_recurrent:
        return "free"
    if method in SNAPSHOT_METHODS and target.architecture in SNAPSHOT_ARCHITECTURES:
        return "snapshots"
    return "checkpoint"


def _catch_up(
    plan: Plan,
    draft: ModelDescription | None,
    target: ModelDescription,
    method: Method,
    setup: Setup,
    costs: CostSource | None,
    depth: int,
    slots: int,
) -> Callable[[int], float] | None:
    """Seconds by which the draft follows a verification of ``m`` drafted tokens; None = it has nothing to follow.

    A draft model decodes all ``m`` + 1 tokens again, with one row of output; MTP layers do so too, without output and
    once per chained head; EAGLE-3 projects the target's features of ``m`` + 1 tokens and decodes ``m`` of them; DFlash
    projects them into the keys and values of its blocks. Assistants that share the target's cache do nothing.
    """
    s = slots
    if method == "draft-simple":
        return lambda m: plan.seconds(s * (m + 1), s, depth, 0, s)
    if method == "draft-mtp" and draft is None:
        heads = target.mtp_layers if target.architecture in CHAINED_HEADS else 1
        return lambda m: heads * plan.seconds(s * (m + 1), 0, depth, 0, s)
    if draft is None or draft.architecture == "gemma4-assistant":
        return None
    if method == "draft-mtp":
        return lambda m: plan.seconds(s * (m + 1), 0, depth, 0, s)
    fusion = _fusion_plan(draft, method, setup, costs)
    if method in BLOCK_METHODS:
        return lambda m: fusion.seconds(s * (m + 1), 0, 0, 0, s)
    return lambda m: fusion.seconds(s * (m + 1), 0, 0, 0, s) + (plan.seconds(s * m, 0, depth, 0, s) if m else 0.0)


def _pass(weights: float, overhead: float) -> float:
    """A draft pass [s]. A calibration's overhead may be negative (narrow models stay in the cache), a pass cannot."""
    whole = weights + overhead
    return 0.0 if isinstance(whole, float) and whole < 0.0 else whole  # a fit records sums that are no numbers


_OWN_HEAD = frozenset({"head", "mtp_head"})
_FUSION = frozenset({"fusion"})
_NOT_STREAMED = LOOKED_UP | _OWN_HEAD | _FUSION | {"experts", "mtp_experts"}
_INJECTION = 0.25
"""Small operations of a DFlash block that only takes in keys and values, over those of a whole block (assumed)."""


def _fusion_plan(draft: ModelDescription, method: Method, setup: Setup, costs: CostSource | None) -> Plan:
    """What a drafter does with the target's features, once per round and verified token."""
    device, backend = draft_device(setup)
    layers, dense = 0.0, list(matrices_of(draft, _FUSION))
    if method in BLOCK_METHODS:
        layers = _INJECTION * len(draft.layers)
        weights = draft.embedding_length * sum(x.key_width + x.value_width for x in draft.layers)
        attention = matrices_of(draft, frozenset({"attention"}))
        whole = sum(m.parameters for m in attention)
        share = min(1.0, weights / whole) if whole else 0.0
        dense += [m.scaled(share) for m in attention]
    tier = Tier(
        costs=resolve_costs(setup, device, backend, costs), layers=layers, dense=tuple(dense), head=(), experts=(),
        cache=(), state=0.0,
    )  # fmt: skip
    return Plan(draft.architecture, [tier])


def _drafter_plan(draft: ModelDescription, target: ModelDescription, setup: Setup, costs: CostSource | None) -> Plan:
    """A drafter file: all its matrices, with its own head or, if it has none, the target's."""
    device, backend = draft_device(setup)
    head = matrices_of(draft, _OWN_HEAD) or matrices_of(target, frozenset({"head"}))
    experts = tuple(
        m.routed(count, used)
        for role, count, used in _expert_shape(draft)
        for m in matrices_of(draft, frozenset({role}))
    )
    cache = tuple((float(2 * (x.key_width + x.value_width)), x.window) for x in draft.layers if x.key_width)
    tier = Tier(
        costs=resolve_costs(setup, device, backend, costs),
        layers=float(len(draft.layers) or draft.mtp_layers or 1),
        dense=matrices_of(draft, _NOT_STREAMED, without=True),
        head=head,
        experts=experts,
        cache=cache,
        state=0.0,
    )
    # llama.cpp's EAGLE-3 decoder does not pick rows: a pass without outputs computes the head for all of them.
    vocabulary = draft.vocabulary_size or target.vocabulary_size
    return Plan(draft.architecture, [tier], vocabulary=vocabulary, every_head=draft.architecture == "eagle3")


def _expert_shape(draft: ModelDescription) -> list[tuple[str, int, float]]:
    shapes: list[tuple[str, int, float]] = []
    for x in draft.layers:
        if x.expert_count:
            shapes.append(("experts", x.expert_count, x.expert_used))
            break
    if draft.mtp and draft.mtp.expert_count:
        shapes.append(("mtp_experts", draft.mtp.expert_count, draft.mtp.expert_used))
    return shapes
