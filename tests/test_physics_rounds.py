"""Passes and rounds: what must hold for any machine, and what llama.cpp does by method and architecture."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.base import Figure
from advisor.errors import InputError
from advisor.hardware.machine import Placement, RpcHost, Setup
from advisor.hardware.profiles import find
from advisor.models.catalogue import describe_catalogue
from advisor.models.description import ModelDescription
from advisor.performance.passes import decode_tps, pass_time, plan_of, simple_setup
from advisor.performance.select import fitted_costs
from advisor.speculation.rounds import gate, positions_behind_gate, rollback_class, round_of, rounds_of

METHODS_WITH_DRAFT = ("draft-simple",)


@pytest.fixture(scope="module")
def dense() -> ModelDescription:
    return describe_catalogue("qwen2.5-7b:Q4_K_M")


@pytest.fixture(scope="module")
def small() -> ModelDescription:
    return describe_catalogue("qwen2.5-0.5b:Q8_0")


@pytest.fixture(scope="module")
def hybrid() -> ModelDescription:
    return describe_catalogue("qwen3.6-27b:Q4_K_M")


@pytest.fixture(scope="module")
def routed() -> ModelDescription:
    return describe_catalogue("qwen3.6-35b-a3b:UD-Q4_K_XL")


def on(name: str = "RTX 3090", backend: str | None = None, **placement: object) -> Setup:
    setup = simple_setup(find(name), backend)  # type: ignore[arg-type]  # a literal in each test
    return setup.model_copy(update={"placement": Placement.model_validate(placement)})


def test_a_pass_is_the_sum_of_its_parts(hybrid: ModelDescription) -> None:
    t = pass_time(hybrid, on(), 4, 8192, costs=fitted_costs)
    parts = t.fixed + t.weights + t.head + t.experts + t.cache + t.state + t.transfer
    assert t.seconds == pytest.approx(parts)
    assert min(t.fixed, t.weights, t.head, t.cache, t.state) > 0
    assert t.experts == t.transfer == 0


def test_decode_speed_stays_below_what_memory_allows(dense: ModelDescription) -> None:
    setup = on()
    ceiling = setup.hardware.device.bandwidth.value * 1e9 / dense.decode_bytes  # type: ignore[union-attr]
    assert 0.4 * ceiling < decode_tps(dense, setup, costs=fitted_costs) < ceiling


def test_depth_costs_cache_reads(dense: ModelDescription) -> None:
    setup = on()
    shallow, deep = (pass_time(dense, setup, 1, d, costs=fitted_costs) for d in (0, 32768))
    assert deep.cache > shallow.cache == 0
    small_cache = setup.model_copy(update={"cache_type_k": "q8_0", "cache_type_v": "q8_0"})
    assert pass_time(dense, small_cache, 1, 32768, costs=fitted_costs).cache == pytest.approx(deep.cache * 17 / 32)


def test_the_head_is_computed_for_every_verified_row(small: ModelDescription) -> None:
    setup = on()
    every = pass_time(small, setup, 4, costs=fitted_costs)
    last = pass_time(small, setup, 4, logits=1, costs=fitted_costs)
    none = pass_time(small, setup, 4, logits=0, costs=fitted_costs)
    assert every.head > last.head > none.head == 0


def test_the_last_block_is_finished_for_rows_with_outputs_only(
    small: ModelDescription, hybrid: ModelDescription
) -> None:
    setup = on()
    every, last, none = (pass_time(small, setup, 4, logits=n, costs=fitted_costs).weights for n in (4, 1, 0))
    ffn = sum(g.bytes for g in small.weights if g.role == "ffn") / len(small.layers)
    streamed = sum(g.bytes for g in small.weights if g.role not in ("embedding", "head"))
    assert every > last > none
    assert none == pytest.approx(every * (1 - ffn / streamed), rel=0.01)
    assert pass_time(small, setup, 1, logits=1, costs=fitted_costs).weights < last
    # Architectures that hand their last hidden state on compute it for every row (src/models/qwen35.cpp).
    whole = {pass_time(hybrid, setup, 4, logits=n, costs=fitted_costs).weights for n in (4, 1, 0)}
    assert len(whole) == 1


def test_the_last_experts_see_rows_with_outputs_only() -> None:
    setup, qwen, oss = on(), describe_catalogue("qwen3-30b-a3b:Q4_K_M"), describe_catalogue("gpt-oss-20b:MXFP4")
    every, last = (pass_time(qwen, setup, 8, logits=n, costs=fitted_costs).experts for n in (8, 1))
    assert 0.9 * every < last < every
    assert pass_time(oss, setup, 8, logits=1, costs=fitted_costs) == pass_time(
        oss, setup, 8, costs=fitted_costs
    ).model_copy(
        update={
            "head": pass_time(oss, setup, 1, costs=fitted_costs).head,
            "seconds": pass_time(oss, setup, 8, logits=1, costs=fitted_costs).seconds,
        }
    )


def test_experts_join_as_tokens_are_added(routed: ModelDescription) -> None:
    setup = on()
    times = [pass_time(routed, setup, n, costs=fitted_costs).experts for n in (1, 2, 4, 8)]
    assert times == sorted(times)
    assert times[2] > 1.8 * times[0]
    assert times[3] < 8 * times[0]


@pytest.mark.parametrize("n", [1, 4])
def test_offload_lies_between_device_and_host(dense: ModelDescription, n: int) -> None:
    whole = pass_time(dense, on("RTX 4090 + DDR5-6000 dual channel 64GB"), n, costs=fitted_costs).seconds
    times = [
        pass_time(dense, on("RTX 4090 + DDR5-6000 dual channel 64GB", gpu_layers=g), n, costs=fitted_costs).seconds
        for g in (29, 20, 10, 0)
    ]
    assert times == sorted(times)
    assert times[0] == pytest.approx(whole)
    assert times[-1] > 3 * whole


def test_experts_on_the_host_cost_and_only_some_cost_less(routed: ModelDescription) -> None:
    machine = "RTX 4090 + DDR5-6000 dual channel 64GB"
    gpu = pass_time(routed, on(machine), 1, costs=fitted_costs)
    half = pass_time(routed, on(machine, cpu_moe_layers=20), 1, costs=fitted_costs)
    host = pass_time(routed, on(machine, cpu_moe=True), 1, costs=fitted_costs)
    assert gpu.experts < half.experts < host.experts
    assert gpu.weights == pytest.approx(host.weights)
    assert host.transfer > half.transfer > gpu.transfer == 0


def test_two_cards_share_by_layer_or_by_matrix(dense: ModelDescription) -> None:
    one = pass_time(dense, on("RTX 3090"), costs=fitted_costs).seconds
    layered = pass_time(dense, on("2x RTX 3090"), costs=fitted_costs).seconds
    split = pass_time(dense, on("2x RTX 3090", split="tensor"), costs=fitted_costs)
    assert layered == pytest.approx(one, rel=0.02)
    assert split.weights == pytest.approx(pass_time(dense, on("RTX 3090"), costs=fitted_costs).weights / 2)
    assert split.transfer > 0


def test_a_remote_host_adds_its_network(dense: ModelDescription) -> None:
    def figure(value: float, unit: str) -> Figure:
        return Figure(value=value, unit=unit, kind="assumed", source="test")

    def seconds(latency: float, n: int = 1) -> float:
        host = RpcHost(hardware=find("RTX 3090"), bandwidth=figure(0.1, "GB/s"), latency=figure(latency, "ms"))
        return pass_time(dense, on("RTX 3090", rpc=(host,)), n, costs=fitted_costs).seconds

    assert seconds(5.0) - seconds(1.0) == pytest.approx(0.008, rel=1e-6)
    assert seconds(1.0, 8) > seconds(1.0)


def test_a_draft_is_spread_like_its_target_over_the_cards_of_one_host(small: ModelDescription) -> None:
    both = "RTX 3090 + GTX 1080 Ti"
    fast, slow = (plan_of(small, on(name), fitted_costs, draft=True).seconds(1) for name in ("RTX 3090", "GTX 1080 Ti"))
    spread = plan_of(small, on(both), fitted_costs, draft=True)
    assert len(spread.tiers) == 2
    assert fast < spread.seconds(1) < slow + 1e-4  # and a hop
    second = plan_of(small, on(both, draft_device="second"), fitted_costs, draft=True)
    assert second.seconds(1) == pytest.approx(slow)


def test_a_slower_backend_of_the_same_chip_is_not_confused(dense: ModelDescription) -> None:
    assert plan_of(dense, on("395", "vulkan"), fitted_costs) is not plan_of(dense, on("395", "rocm"), fitted_costs)


def test_bad_passes_are_refused(dense: ModelDescription) -> None:
    with pytest.raises(InputError):
        pass_time(dense, on(), 0)
    with pytest.raises(InputError):
        pass_time(dense, on(), 1, -1)
    with pytest.raises(InputError, match="second"):
        round_of(dense, dense, "draft-simple", on(draft_device="second"), 3, acceptance=0.5)


# --- rounds -------------------------------------------------------------------------------------------------------


def test_tokens_are_one_plus_what_is_accepted(dense: ModelDescription, small: ModelDescription) -> None:
    r = round_of(dense, small, "draft-simple", on(), 3, positions=(0.9, 0.8, 0.7), costs=fitted_costs)
    assert r.tokens == pytest.approx(1 + 0.9 + 0.9 * 0.8 + 0.9 * 0.8 * 0.7)
    assert r.drafted == 3
    given_rate = round_of(dense, small, "draft-simple", on(), 3, acceptance=0.6, costs=fitted_costs)
    assert given_rate.tokens == pytest.approx(1 + 3 * 0.6, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.floats(0.0, 1.0), st.floats(0.0, 0.95))
def test_any_round_adds_up(k: int, acceptance: float, p_min: float) -> None:
    target, draft = describe_catalogue("qwen2.5-7b:Q4_K_M"), describe_catalogue("qwen2.5-0.5b:Q8_0")
    r = round_of(target, draft, "draft-simple", on(), k, positions=(acceptance,), p_min=p_min, costs=fitted_costs)
    c = r.cost
    assert c.cost == pytest.approx(c.draft + c.verify + c.overhead)
    assert c.rollback <= c.overhead + 1e-12
    assert c.cost >= 1
    assert 1 <= r.tokens <= k + 1 + 1e-9
    assert 0 <= r.drafted <= k + 1e-9
    assert r.tokens - 1 <= r.drafted + 1e-9
    assert r.log_sd > 0


def test_longer_drafts_cost_more(dense: ModelDescription, small: ModelDescription) -> None:
    costs = [
        round_of(dense, small, "draft-simple", on(), k, acceptance=0.7, costs=fitted_costs).cost.cost
        for k in range(1, 8)
    ]
    assert costs == sorted(costs)


def test_rollback_follows_architecture_and_method(
    dense: ModelDescription, hybrid: ModelDescription, routed: ModelDescription
) -> None:
    """llama-arch.cpp b11434: qwen35 and qwen35moe keep snapshots for MTP and friends, never for a separate draft."""
    assert rollback_class(dense, "draft-simple") == "free"
    assert rollback_class(hybrid, "draft-mtp") == rollback_class(routed, "draft-mtp") == "snapshots"
    assert rollback_class(hybrid, "draft-simple") == rollback_class(hybrid, "ngram-mod") == "checkpoint"
    assert rollback_class(describe_catalogue("qwen3-next-80b-a3b:Q4_K_M"), "draft-mtp") == "checkpoint"


def test_a_restored_checkpoint_replays_and_yields_one_token_more(hybrid: ModelDescription) -> None:
    draft = describe_catalogue("qwen3.5-0.8b:Q4_K_M")
    sure = round_of(hybrid, draft, "draft-simple", on(), 3, positions=(1.0,), costs=fitted_costs)
    half = round_of(hybrid, draft, "draft-simple", on(), 3, positions=(0.5,), costs=fitted_costs)
    assert sure.tokens == pytest.approx(4)  # nothing to replay
    assert half.tokens == pytest.approx(1 + 0.5 + 0.25 + 0.125 + (1 - 0.125))
    assert half.cost.rollback > sure.cost.rollback > 0  # the state is saved in every round
    assert half.cost.rollback > 0.9  # a second decode of the target


def test_a_mtp_round_reads_block_and_head_per_token(hybrid: ModelDescription) -> None:
    setup = on()
    r = rounds_of(hybrid, None, "draft-mtp", setup, costs=fitted_costs)
    assert r.draft_plan is not None
    one = r.draft_plan.parts(1, 1)
    assert one.head == pytest.approx(r.plan.parts(1).head)
    assert r.draft_plan.parts(3, 0).head == 0  # catching up needs no head
    mtp = round_of(hybrid, None, "draft-mtp", setup, 3, acceptance=0.7, costs=fitted_costs)
    assert 1.3 < mtp.cost.cost < 2.6


def test_dflash_pays_once_per_round(hybrid: ModelDescription) -> None:
    drafter = describe_catalogue("qwen3.8-27b-dflash2")
    target = describe_catalogue("qwen3.8-27b:Q4_K_M")
    drafts = [
        round_of(target, drafter, "draft-dflash", on(), k, acceptance=0.5, costs=fitted_costs).cost.draft
        for k in (2, 6)
    ]
    assert drafts[1] < 2 * drafts[0]
    mtp = [round_of(target, None, "draft-mtp", on(), k, acceptance=0.5, costs=fitted_costs).cost.draft for k in (2, 6)]
    assert mtp[1] == pytest.approx(3 * mtp[0])


def test_eagle_fuses_once_and_computes_its_head_for_every_row() -> None:
    """common/speculative.cpp and src/models/eagle3.cpp of b11434: no rows are picked in front of the head."""
    target, drafter = describe_catalogue("llama-3.1-8b:Q4_K_M"), describe_catalogue("llama-3.1-8b-eagle3")
    r = rounds_of(target, drafter, "draft-eagle3", on(), costs=fitted_costs)
    assert r.draft_plan is not None
    assert r.draft_plan.parts(3, 0).head == r.draft_plan.parts(3).head > r.draft_plan.parts(1, 1).head
    fusion = sum(g.bytes for g in drafter.weights if g.role == "fusion")
    assert 0 < fusion < sum(g.bytes for g in drafter.weights)
    # The draft passes leave the fusion out, so two drafted tokens cost exactly twice one.
    one, two = (r.work(k, k).draft for k in (1, 2))
    assert two == pytest.approx(2 * one)


def test_old_builds_do_not_decode_the_batch_again(dense: ModelDescription, small: ModelDescription) -> None:
    new, old = on(), on().model_copy(update={"build": 9105})
    now = round_of(dense, small, "draft-simple", new, 3, positions=(0.5,), costs=fitted_costs).cost
    then = round_of(dense, small, "draft-simple", old, 3, positions=(0.5,), costs=fitted_costs).cost
    lucky = round_of(dense, small, "draft-simple", old, 3, positions=(1.0,), costs=fitted_costs).cost
    assert then.overhead < now.overhead
    assert then.draft == now.draft
    assert lucky.overhead > then.overhead  # the last drafted token has to be decoded once it is accepted


def test_sampling_is_paid_by_vocabulary_entry(dense: ModelDescription, small: ModelDescription) -> None:
    costs = fitted_costs(find("RTX 3090").device, "cuda")
    assert costs.verified_token(200_000) == pytest.approx(2 * costs.verified_token(100_000))
    assert 1e-4 < costs.verified_token(100_000) < 1e-3
    assert costs.drafted_token("draft-simple", 200_000) > costs.drafted_token("draft-simple", 100_000)
    assert costs.drafted_token("draft-mtp", 200_000) == costs.drafted_token(
        "draft-mtp", 100_000
    )  # sampled on the device


def test_ngrams_draft_for_nothing_and_misses_cost_a_step(dense: ModelDescription) -> None:
    hit = round_of(dense, None, "ngram-simple", on(), 8, acceptance=0.8, costs=fitted_costs)
    half = round_of(dense, None, "ngram-simple", on(), 8, acceptance=0.8, hit_rate=0.5, costs=fitted_costs)
    never = round_of(dense, None, "ngram-simple", on(), 8, acceptance=0.8, hit_rate=0.0, costs=fitted_costs)
    assert hit.cost.draft == 0
    assert half.cost.cost == pytest.approx((hit.cost.cost + 1) / 2)
    assert never.cost.cost == pytest.approx(1)
    assert never.tokens == 1


def test_the_gain_fades_with_many_slots(dense: ModelDescription, small: ModelDescription) -> None:
    gains = []
    for slots in (1, 16):
        r = round_of(dense, small, "draft-simple", on(), 3, acceptance=0.7, parallel=slots, costs=fitted_costs)
        gains.append(r.tokens / r.cost.cost)
    assert gains[1] < gains[0]


def test_a_draft_with_experts_and_one_on_the_host_are_slower(dense: ModelDescription, small: ModelDescription) -> None:
    machine = "RTX 4090 + DDR5-6000 dual channel 64GB"
    same = round_of(dense, small, "draft-simple", on(machine), 3, acceptance=0.7, costs=fitted_costs)
    host = round_of(
        dense, small, "draft-simple", on(machine, draft_device="host"), 3, acceptance=0.7, costs=fitted_costs
    )
    assert host.cost.draft > same.cost.draft
    big = describe_catalogue("gpt-oss-120b:MXFP4")
    tiny = describe_catalogue("gpt-oss-20b:MXFP4")
    loses = round_of(big, tiny, "draft-simple", on("395", "vulkan"), 3, acceptance=0.718, costs=fitted_costs)
    assert loses.tokens / loses.cost.cost < 0.8


def test_a_gate_trades_drafted_tokens_for_acceptance() -> None:
    assert gate(0.7, 0.0) == (1.0, 0.7)
    for p in (0.2, 0.5, 0.8):
        g = gate(0.7, p)
        assert g.accepted <= g.passed < 1
        assert g.accepted / g.passed >= 0.7 - 1e-9
    assert gate(0.7, 0.8).passed < gate(0.7, 0.3).passed
    assert gate(0.95, 0.5).passed > gate(0.5, 0.5).passed


@given(st.floats(0.05, 0.95), st.integers(1, 8), st.floats(0.0, 0.9))
def test_an_acceptance_behind_a_gate_is_found_again(rate: float, k: int, p_min: float) -> None:
    a = positions_behind_gate(rate, k, p_min)[0]
    g = gate(a, p_min)
    drafted = sum(g.passed**i for i in range(1, k + 1))
    if 1e-6 < a < 1 - 1e-6 and drafted > 1e-6:
        assert sum(g.accepted**i for i in range(1, k + 1)) / drafted == pytest.approx(rate, abs=1e-3)


def test_rounds_need_their_draft_and_sane_numbers(dense: ModelDescription, small: ModelDescription) -> None:
    for method in ("draft-simple", "draft-eagle3", "draft-dflash", "draft-mtp"):
        with pytest.raises(InputError):
            round_of(dense, None, method, on(), 3, acceptance=0.5)  # type: ignore[arg-type]  # literals
    with pytest.raises(InputError):
        round_of(dense, small, "draft-simple", on(), 0, acceptance=0.5)
    with pytest.raises(InputError):
        round_of(dense, small, "draft-simple", on(), 3)
    with pytest.raises(InputError):
        round_of(dense, small, "draft-simple", on(), 3, positions=())
    with pytest.raises(InputError):
        round_of(dense, small, "draft-simple", on(), 3, acceptance=1.5)
    with pytest.raises(InputError):
        round_of(dense, small, "draft-simple", on(), 3, acceptance=0.5, parallel=0)


def test_published_shapes_come_out(hybrid: ModelDescription) -> None:
    """Strix Halo, 27B UD-Q8_K_XL with MTP: R(3) 1.54 to 1.56 in nine published prompts of one author."""
    target = describe_catalogue("qwen3.6-27b:UD-Q8_K_XL")
    r = round_of(target, None, "draft-mtp", on("395", "rocm"), 3, acceptance=0.75, costs=fitted_costs)
    assert r.cost.cost == pytest.approx(1.55, rel=0.2)
