"""The fitted cost model: shapes that physics demands, whatever the constants are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.base import Figure
from advisor.errors import InputError
from advisor.hardware.machine import Backend, Device
from advisor.hardware.profiles import devices, find
from advisor.performance.constants import family_of, load_constants
from advisor.performance.costs import Experts, Matrices
from advisor.performance.fitted import (
    CORE_RATE,
    FittedCosts,
    bits_of,
    compute_ratio,
    distinct_experts,
    smooth_max,
    switch_of,
)
from advisor.performance.passes import simple_setup
from advisor.performance.select import FittedSource, cost_model, fitted_costs

QUANTS = ("F16", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q4_0", "Q3_K", "Q2_K", "IQ4_XS", "MXFP4")
BACKENDS: tuple[Backend, ...] = ("cuda", "rocm", "vulkan", "metal", "sycl", "opencl", "cpu")


def card(bandwidth: float | None = 900.0, **changes: object) -> Device:
    def figure(value: float, unit: str) -> Figure:
        return Figure(value=value, unit=unit, kind="published", source="test")

    values: dict[str, object] = {
        "slug": "card", "name": "Card", "vendor": "NVIDIA", "device_class": "consumer-gpu", "architecture": "Ampere",
        "bandwidth": None if bandwidth is None else figure(bandwidth, "GB/s"),
        "fp32_vector": figure(35.0, "TFLOPS"), "fp16": figure(71.0, "TFLOPS"),
    }  # fmt: skip
    return Device.model_validate(values | changes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("quant", QUANTS)
def test_a_pass_never_gets_cheaper_by_another_column_of_the_same_kernel(backend: Backend, quant: str) -> None:
    costs = FittedCosts(card(), backend)
    switch = min(switch_of(backend, "Ampere", quant), 32)
    times = [costs.matrix(Matrices(quant, 1e9, 2e9), n, "llama") for n in range(1, switch + 1)]
    assert times == sorted(times)
    assert times[-1] <= times[0] * switch  # batching never costs more than doing them one by one
    beyond = [costs.matrix(Matrices(quant, 1e9, 2e9), n, "llama") for n in range(switch + 1, switch + 80)]
    assert beyond == sorted(beyond)


@pytest.mark.parametrize("backend", BACKENDS)
def test_time_is_proportional_to_bytes_and_bandwidth(backend: Backend) -> None:
    slow, fast = FittedCosts(card(450.0), backend), FittedCosts(card(900.0), backend)
    one = slow.matrix(Matrices("Q4_K", 1e9, 2e9), 1, "llama")
    assert slow.matrix(Matrices("Q4_K", 3e9, 6e9), 1, "llama") == pytest.approx(3 * one)
    assert fast.matrix(Matrices("Q4_K", 1e9, 2e9), 1, "llama") == pytest.approx(one / 2)
    assert one > 1e9 / 450e9  # never faster than the memory


def test_columns_of_wide_types_are_cheaper_in_decode_steps() -> None:
    """Published curves: BF16 on an RTX 4090 1.08 at 8 columns (0.01 a column), Q4_K on a 3090 about 0.2 to 0.3."""
    costs = fitted_costs(find("RTX 3090").device, "cuda")

    def per_column(quant: str) -> float:
        return (
            costs.matrix(Matrices(quant, 1e9, 1e9), 5, "qwen35") / costs.matrix(Matrices(quant, 1e9, 1e9), 1, "qwen35")
            - 1
        ) / 4

    assert per_column("BF16") < per_column("Q8_0") < per_column("Q4_K")
    assert 0.0 < per_column("BF16") < 0.08
    assert 0.12 < per_column("Q4_K") < 0.45


def test_a_better_processor_makes_columns_cheaper_but_not_decoding() -> None:
    strong = card(fp32_vector=Figure(value=140.0, unit="TFLOPS", kind="published", source="test"))
    weak, mighty = FittedCosts(card(), "cuda"), FittedCosts(strong, "cuda")
    assert weak.matrix(Matrices("Q4_K", 1e9, 2e9), 1, "x") == mighty.matrix(Matrices("Q4_K", 1e9, 2e9), 1, "x")
    assert weak.matrix(Matrices("Q4_K", 1e9, 2e9), 6, "x") > mighty.matrix(Matrices("Q4_K", 1e9, 2e9), 6, "x")


def test_kernel_switch_points_are_llama_cpps() -> None:
    assert switch_of("cuda", "Ampere", "Q4_K") == 8
    assert switch_of("cuda", "Blackwell", "Q4_K") == 5
    assert switch_of("cuda", "Blackwell", "Q8_0") == 8
    assert switch_of("rocm", "CDNA1", "Q4_K") == 2
    assert switch_of("cuda", "Ampere", "BF16") == 16
    assert switch_of("vulkan", "RDNA3", "Q6_K") == 8
    assert switch_of("cpu", "cpu", "Q4_K") > 1000


@given(st.floats(0.01, 2.0), st.floats(1.01, 3.0), st.integers(1, 64))
def test_the_smooth_maximum_lies_between_maximum_and_sum(c: float, p: float, n: int) -> None:
    ratio = smooth_max(n, c, p)
    unit = (1 + c**p) ** (1 / p)
    assert max(1.0, n * c) / unit <= ratio * (1 + 1e-9)
    assert ratio <= (1 + n * c) / unit * (1 + 1e-9)


@given(st.integers(2, 512), st.floats(0.2, 1.0), st.integers(1, 64), st.data())
def test_distinct_experts_grow_to_all_and_never_beyond_the_pairs(
    total: int, skew: float, n: int, data: st.DataObject
) -> None:
    used = data.draw(st.integers(1, total))
    distinct = distinct_experts(total, used, n, skew)
    assert 1 - 1e-9 <= distinct <= min(n, total / used) + 1e-6
    assert distinct_experts(total, used, n + 1, skew) >= distinct - 1e-12


def test_metal_reads_every_pair_and_cuda_the_union() -> None:
    metal, cuda = FittedCosts(card(), "metal"), FittedCosts(card(), "cuda")

    def growth(costs: FittedCosts) -> float:
        one = costs.experts(Experts("Q8_0", 1e10, 1e10, 8, 4), 1, "x")
        return (
            costs.experts(Experts("Q8_0", 1e10, 1e10, 8, 4), 8, "x")
            - costs.experts(Experts("Q8_0", 1e10, 1e10, 8, 4), 4, "x")
        ) / one

    assert growth(metal) > growth(cuda)  # four of eight experts: the union is complete after a few tokens


def test_mat_mat_kernels_spend_a_tile_on_every_expert() -> None:
    costs = FittedCosts(card(), "cuda")

    def growth(total: int) -> float:
        size = 1e7 * total
        one, many = (costs.experts(Experts("Q8_0", size, size, total, 4), n, "x") for n in (1, 16))
        return many / one

    matrix = costs.matrix(Matrices("Q8_0", 1e9, 1e9), 16, "x") / costs.matrix(Matrices("Q8_0", 1e9, 1e9), 1, "x")
    assert growth(4) == pytest.approx(matrix)  # every token uses all: nothing but a dense matrix
    assert growth(128) > 3 * growth(4)


def test_old_builds_pay_more_for_experts_only() -> None:
    device = find("395").device
    new, old = FittedCosts(device, "vulkan"), FittedCosts(device, "vulkan", build=6077)
    assert old.experts(Experts("Q4_K", 1e10, 2e10, 128, 8), 4, "x") > 2 * new.experts(
        Experts("Q4_K", 1e10, 2e10, 128, 8), 4, "x"
    )
    assert old.experts(Experts("Q4_K", 1e10, 2e10, 128, 8), 1, "x") == new.experts(
        Experts("Q4_K", 1e10, 2e10, 128, 8), 1, "x"
    )
    assert old.matrix(Matrices("Q4_K", 1e9, 2e9), 4, "x") == new.matrix(Matrices("Q4_K", 1e9, 2e9), 4, "x")


def test_few_cores_compute_rather_than_stream() -> None:
    def costs(cores: int | None) -> FittedCosts:
        return FittedCosts(card(device_class="desktop-cpu", cores=cores), "cpu")

    two, many, unknown = costs(2), costs(64), costs(None)
    weights = 1e9
    for quant, nbytes in (("F32", 4e9), ("Q4_0", 0.5625e9)):
        step = two.matrix(Matrices(quant, nbytes, weights), 1, "llama")
        assert step > weights / (2 * CORE_RATE)
        assert (
            step
            > many.matrix(Matrices(quant, nbytes, weights), 1, "llama")
            > unknown.matrix(Matrices(quant, nbytes, weights), 1, "llama")
        )
    # Narrow types gain little from their few bytes where the cores are the limit.
    gain = [
        c.matrix(Matrices("F32", 4e9, weights), 1, "llama") / c.matrix(Matrices("Q4_0", 0.5625e9, weights), 1, "llama")
        for c in (two, many)
    ]
    assert gain[0] < gain[1]
    assert FittedCosts(card(cores=2), "cuda").matrix(Matrices("Q4_0", 1e9, 2e9), 1, "x") == FittedCosts(
        card(), "cuda"
    ).matrix(Matrices("Q4_0", 1e9, 2e9), 1, "x")


def test_doubt_grows_with_what_is_unknown() -> None:
    known = fitted_costs(find("RTX 3090").device, "cuda")
    nameless = FittedCosts(card(architecture=None, fp32_vector=None, slug="x", name="X"), "cuda")
    assert nameless.log_sd("llama", "draft-mtp") > known.log_sd("llama", "draft-mtp")
    assert known.log_sd("llama", "draft-eagle3") > known.log_sd("llama", "draft-mtp")
    assert nameless.step_log_sd("llama") > known.step_log_sd("llama")
    assert fitted_costs(find("M4 Max").device, "metal").log_sd("x", "draft-simple") > known.log_sd("x", "draft-simple")


def test_a_device_without_bandwidth_is_refused_with_a_cure() -> None:
    with pytest.raises(InputError, match="--bandwidth"):
        FittedCosts(card(None), "cuda")


def test_every_profile_with_bandwidth_has_costs_on_every_backend() -> None:
    for slug in devices():
        device = devices()[slug]
        if device.bandwidth is None:
            continue
        for backend in ("cuda", "rocm", "vulkan", "metal", "sycl", "opencl", "cpu"):
            costs = FittedCosts(device, backend)  # type: ignore[arg-type]  # a literal of the tuple
            time = costs.matrix(Matrices("Q4_K", 1e9, 2e9), 4, "llama") + costs.fixed("llama", 32, 4)
            assert 0 < time < 60
            assert 0 < costs.log_sd("llama", "draft-mtp") < 1.5


def test_families_are_found_by_architecture_and_by_name() -> None:
    assert family_of(find("RTX 3090").device) == "Ampere"
    assert family_of(find("RTX 5090").device) == "Blackwell"
    assert family_of(find("395").device) == "RDNA3.5"
    assert family_of(find("M4 Max").device) == "M4"
    assert family_of(devices()["a100-80gb-pcie"]) == "Ampere-HBM"
    assert family_of(devices()["dgx-spark-gb10"]) == "GB10"
    assert family_of(devices()["xeon-spr-8ch-ddr5-4800"]) == "server-cpu"


def test_the_shipped_constants_say_what_they_rest_on() -> None:
    constants = load_constants()
    for name, c in constants.values.items():
        assert c.value > 0, name
        assert c.unit, name
        assert c.log_se > 0, name
        if not name.startswith(("scatter.", "gate.")):
            assert c.prior or c.rows > 0, name
    assert constants.values["compute.cuda"].devices >= 5
    assert constants.values["compute.sycl"].prior  # no published pass time
    with pytest.raises(KeyError):
        constants["no such constant"]


def test_figures_carry_unit_kind_and_source() -> None:
    for figure in fitted_costs(find("RTX 3090").device, "cuda").figures("qwen35", "Q4_K").values():
        assert figure.unit
        assert figure.kind in ("fitted", "published", "assumed")
        assert figure.source


def test_compute_ratio_falls_back_openly() -> None:
    assert compute_ratio(card())[1]
    assert compute_ratio(card(fp32_vector=None)) == (1.0, False)
    ratio, known = compute_ratio(card(device_class="apple-soc", fp32_vector=None))
    assert known  # the same units do FP16 and FP32 there
    assert ratio == pytest.approx(71.0 / 20 / (900 / 500))


def test_sources_keep_one_model_per_device_and_select_by_build() -> None:
    device = find("395").device
    source = FittedSource(build=6077)
    assert source(device, "vulkan") is source(device, "vulkan")
    setup = simple_setup(find("395"), "vulkan")
    old = setup.model_copy(update={"build": 6077})
    new_costs, old_costs = cost_model(setup, calibrated=False), cost_model(old, calibrated=False)
    assert old_costs.experts(Experts("Q4_K", 1e10, 2e10, 128, 8), 4, "x") > new_costs.experts(
        Experts("Q4_K", 1e10, 2e10, 128, 8), 4, "x"
    )


def test_bits_of_unknown_types_are_ordinary() -> None:
    assert bits_of("Q8_0") == 8.5
    assert bits_of("nonsense") == 4.5
