"""Measured costs: curves, fallbacks between types, storage, and when a calibration speaks for a machine."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.base import Figure
from advisor.hardware.machine import Device, Hardware, Setup
from advisor.llamacpp.calibrate import (
    _Calibrator,
    _fit_experts,
    _wide_experts,
    disturbed,
    per_row,
    pooled_rows,
    through_first,
    without_spikes,
)
from advisor.llamacpp.contention import ContentionMeter
from advisor.llamacpp.find import Capabilities, Engine
from advisor.llamacpp.probe import PassTimings, Timing, merged, summarise
from advisor.llamacpp.synthetic import tiny, write_synthetic
from advisor.models.reference import describe
from advisor.performance.costs import Experts, Matrices
from advisor.performance.measured import (
    Calibration,
    Check,
    Correction,
    Curve,
    DraftCost,
    ExpertCost,
    MatrixCost,
    MeasuredCosts,
    alike,
    applicable,
    comparable,
    family_of_architecture,
    forget_calibrations,
    load_calibrations,
    mean_of,
    measured_costs,
    save_calibration,
    this_machine,
)
from advisor.performance.passes import plan_of
from advisor.performance.select import cost_model
from advisor.speculation.rounds import round_of

STAIRS = Curve(columns=(1, 2, 4, 5, 8, 16), values=(1e-10, 1.9e-10, 2.0e-10, 2.9e-10, 3.2e-10, 6.4e-10))


def calibration(**changes: object) -> Calibration:
    base: dict[str, object] = {
        "created": "2026-11-29T12:00:00+00:00",
        "machine": this_machine(),
        "backend": "cpu",
        "engine": "embedded xllamacpp 2026.10.11549",
        "build": "b11549",
        "seconds": 100.0,
        "matrices": (
            MatrixCost(quant="Q8_0", seconds_per_byte=STAIRS),
            MatrixCost(quant="Q4_K", seconds_per_byte=STAIRS),
            MatrixCost(quant="F16", seconds_per_byte=Curve(columns=(1, 8), values=(1e-10, 1.5e-10))),
        ),
        "experts": (ExpertCost(quant="Q8_0", read=0.7e-10, pair=0.3e-10),),
        "layers": {"dense": Curve(columns=(1,), values=(20e-6,)), "delta": Curve(columns=(1,), values=(50e-6,))},
        "step": 100e-6,
        "cache": Curve(columns=(1, 9), values=(1e-10, 5e-10)),
        "state": Curve(columns=(1,), values=(4e-10,)),
        "state_copy": 1e-10,
        "checkpoint": 2e-10,
        "checkpoint_constant": 50e-6,
        "sampling": 5e-9,
        "drafting": {"draft-simple": DraftCost(constant=200e-6, per_entry=4e-9, per_layer=20e-6)},
        "rounds": {"ngram-simple": 150e-6},
    }
    return Calibration.model_validate(base | changes)


def test_curves_are_what_was_measured() -> None:
    for n, value in zip(STAIRS.columns, STAIRS.values, strict=True):
        assert STAIRS.at(n) == value
    assert STAIRS.at(3) == pytest.approx(1.95e-10)
    assert STAIRS.at(32) == pytest.approx(12.8e-10)  # the last slope goes on
    assert Curve(columns=(1,), values=(2.0,)).at(9) == 2.0
    assert Curve(columns=(1, 2), values=(2.0, 1.0)).at(50) == 1.0  # never below what was seen, never negative


@given(st.integers(1, 200), st.sampled_from(["Q8_0", "Q4_K", "Q6_K", "IQ2_XS", "BF16", "Q1_0", "nonsense"]))
def test_every_charge_is_positive(n: int, quant: str) -> None:
    costs = MeasuredCosts(calibration())
    assert 0 < costs.matrix(Matrices(quant, 1e8, 1e8), n, "llama") < math.inf
    assert 0 < costs.experts(Experts(quant, 1e8, 1e8, 64, 4), n, "qwen3moe") < math.inf
    assert costs.fixed("llama", 32, n) > 0
    assert costs.cache(1e6, n) > 0
    assert costs.state(1e6, n, 3) > 0


def test_charges() -> None:
    costs = MeasuredCosts(calibration())
    assert costs.kind == "measured"
    assert costs.matrix(Matrices("Q8_0", 1e8, 9e7), 4, "llama") == pytest.approx(0.02)
    assert costs.fixed("llama", 10, 1) == pytest.approx(300e-6)
    assert costs.fixed("qwen35", 10, 1) == pytest.approx(600e-6)
    # One token: 4 of 16 experts read and computed; many tokens: all of them read, pairs go on growing.
    one = costs.experts(Experts("Q8_0", 16e6, 16e6, 16, 4), 1, "qwen3moe")
    assert one == pytest.approx(4e6 * 1e-10)
    many = costs.experts(Experts("Q8_0", 16e6, 16e6, 16, 4), 64, "qwen3moe")
    assert many == pytest.approx(16e6 * 0.7e-10 + 4 * 64 * 1e6 * 0.3e-10, rel=1e-3)
    assert costs.checkpoint(1e6) == pytest.approx(250e-6)
    assert costs.checkpoint(0) == 0
    assert costs.drafted_token("draft-simple", 100_000, 10) == pytest.approx(800e-6)
    assert costs.drafted_token("draft-mtp", 100_000) == 0  # never measured here: nothing is claimed
    assert costs.round_overhead("ngram-mod") == pytest.approx(150e-6)
    assert costs.state(1e6, 4, 2) == pytest.approx(6e-4)
    figures = costs.figures("llama", "Q8_0")
    assert figures["stream_rate"].value == pytest.approx(10.0)
    assert all(f.kind == "measured" and "2026-11-29" in f.source for f in figures.values())


def test_short_rows_cost_more() -> None:
    row = Curve(columns=(1, 8), values=(10e-9, 40e-9))
    plain, dear = MeasuredCosts(calibration()), MeasuredCosts(calibration(rows=row))
    for n in (1, 8):
        more = dear.matrix(Matrices("Q8_0", 1e8, 9e7, 50_000), n, "llama") - plain.matrix(
            Matrices("Q8_0", 1e8, 9e7, 50_000), n, "llama"
        )
        assert more == pytest.approx(50_000 * row.at(n))
        # Experts are computed one column at a time: a row costs what it does in a decode step, for every pair.
        more = dear.experts(Experts("Q8_0", 1e8, 9e7, 16, 4, 16_000), n, "x") - plain.experts(
            Experts("Q8_0", 1e8, 9e7, 16, 4), n, "x"
        )
        assert more == pytest.approx(4 * n * 1000 * row.at(1))
    assert dear.matrix(Matrices("Q8_0", 1e8, 9e7), 4, "llama") == plain.matrix(
        Matrices("Q8_0", 1e8, 9e7), 4, "llama"
    )  # rows unknown


@given(
    byte=st.floats(1e-11, 1e-9),
    first=st.floats(0.0, 50e-9),
    start=st.floats(0.0, 50e-9),
    slope=st.floats(0.0, 10e-9),
    columns=st.floats(0.3, 1.5),
)
def test_rows_are_told_apart_from_bytes(byte: float, first: float, start: float, slope: float, columns: float) -> None:
    long, short = (130e6, 47e3), (100e6, 150e3)

    def seconds(shape: tuple[float, float], n: int) -> float:
        return shape[0] * byte * (1 + columns * (n - 1)) + shape[1] * (first if n == 1 else start + slope * n)

    wide, narrow = ({n: seconds(shape, n) for n in (1, 2, 4, 8)} for shape in (long, short))
    found = per_row(wide, narrow, long, short)
    row = pooled_rows([found, found, dict.fromkeys(found, 1.0)])  # a type whose measurement went wrong
    assert row.at(1) == pytest.approx(first, abs=1e-10)
    for n in (2, 4, 8):
        assert row.at(n) == pytest.approx(start + slope * n, rel=1e-3, abs=1e-10)


def test_noise_cannot_make_rows_cost_less_than_nothing() -> None:
    found = per_row({1: 7e-3, 2: 9e-3}, {1: 3e-3, 2: 4e-3}, (130e6, 47e3), (100e6, 150e3))
    assert found[1] < 0
    assert pooled_rows([found]).values == (0.0, 0.0)


def test_types_that_were_not_measured_use_the_nearest() -> None:
    costs = MeasuredCosts(calibration())
    assert costs.matrix(Matrices("BF16", 1e8, 5e7), 1, "llama") == costs.matrix(Matrices("F16", 1e8, 5e7), 1, "llama")
    # Other kernels, fewer bits: the cost per weight is taken over, not that per byte.
    assert costs.matrix(Matrices("Q4_1", 1e8, 1.6e8), 1, "llama") == pytest.approx(1e8 * 1e-10 * 8.5 / 5.0, rel=0.01)


def test_a_correction_speaks_for_its_architecture_only() -> None:
    ratio = Curve(columns=(1, 4), values=(1.1, 1.3))
    plain = MeasuredCosts(calibration())
    costs = MeasuredCosts(calibration(corrections=(Correction(architecture="gemma3", model="g", ratio=ratio),)))
    assert costs.matrix(Matrices("Q8_0", 1e8, 1e8), 4, "gemma3") == pytest.approx(
        1.3 * plain.matrix(Matrices("Q8_0", 1e8, 1e8), 4, "llama")
    )
    assert costs.matrix(Matrices("Q8_0", 1e8, 1e8), 4, "llama") == plain.matrix(Matrices("Q8_0", 1e8, 1e8), 4, "llama")
    assert costs.step_log_sd("gemma3") < costs.step_log_sd("llama")


def test_scatter_follows_the_checks() -> None:
    good = tuple(Check(name="x", method="m", draft_max=3, measured=2.0, predicted=2.0 * f) for f in (1.0, 0.99, 1.01))
    bad = tuple(Check(name="x", method="m", draft_max=3, measured=2.0, predicted=2.0 * f) for f in (1.3, 0.7, 1.2))
    sharp = MeasuredCosts(calibration(checks=good)).log_sd("llama", "draft-simple")
    blunt = MeasuredCosts(calibration(checks=bad)).log_sd("llama", "draft-simple")
    assert 0 < sharp < 0.05 < blunt


@pytest.mark.parametrize(
    ("architecture", "family"),
    [("llama", "dense"), ("gemma3n", "sandwich"), ("qwen3moe", "experts"), ("gpt-oss", "experts"),
     ("qwen35moe", "delta"), ("lfm2moe", "convolution"), ("deepseek2", "latent"), ("olmoe", "experts"),
     ("qwen2", "dense")],
)  # fmt: skip
def test_families(architecture: str, family: str) -> None:
    assert family_of_architecture(architecture) == family


def test_rounds_rest_on_it(tmp_path: Path) -> None:
    """The same round, by hand: draft passes, verification, catch-up, overheads."""
    target = describe(str(write_synthetic(tiny("llama", layers=6, width=256), tmp_path / "t.gguf")))
    draft = describe(str(write_synthetic(tiny("llama", layers=2), tmp_path / "d.gguf")))
    costs = MeasuredCosts(calibration())
    setup = setup_of(source="detected")
    one = round_of(target, draft, "draft-simple", setup, 2, positions=(1.0,), costs=costs)
    t, d = plan_of(target, setup, costs), plan_of(draft, setup, costs, draft=True)
    token = costs.drafted_token("draft-simple", 512, 2)
    seconds = 2 * (d.seconds(1) + token) + t.seconds(3) + d.seconds(3, 1) + 3 * costs.verified_token(512)
    assert one.cost.milliseconds == pytest.approx(seconds * 1e3)
    assert one.cost.cost == pytest.approx(seconds / (t.seconds(1) + costs.verified_token(512)))


# ------------------------------------------------------------------------------------------------ storage and choice


def setup_of(source: str) -> Setup:
    device = Device(
        slug="here", name="here", vendor="x", device_class="desktop-cpu",
        bandwidth=Figure(value=40, unit="GB/s", kind="assumed", source="test"),
    )  # fmt: skip
    hardware = Hardware.model_validate({"name": "here", "devices": (device,), "backend": "cpu", "source": source})
    return Setup(hardware=hardware, backend="cpu")


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ADVISOR_DATA_DIR", str(tmp_path))
    return tmp_path / "calibrations"


def test_storing_and_finding(stored: Path) -> None:
    assert load_calibrations() == ()
    old, new = calibration(), calibration(created="2026-12-01T00:00:00+00:00")
    save_calibration(old)
    path = save_calibration(new)
    assert load_calibrations() == (new, old)
    (stored / "damaged.json").write_text("{")
    (stored / "future.json").write_text(json.dumps({"schema_version": 99}))
    assert load_calibrations() == (new, old)
    path.unlink()
    assert load_calibrations() == (old,)
    assert not list(stored.glob("*.part"))


def test_it_speaks_for_this_machine_and_backend_only(stored: Path) -> None:
    setup = setup_of("detected")
    assert applicable(setup) is None
    save_calibration(calibration())
    assert applicable(setup) == calibration()
    assert applicable(setup_of("profile")) is None
    assert applicable(setup, backend="cuda") is None
    save_calibration(
        calibration(
            created="2027-01-01T00:00:00+00:00", machine=this_machine().model_copy(update={"processor": "other"})
        )
    )
    assert applicable(setup) == calibration()


def at(day: int, **changes: object) -> Calibration:
    return calibration(created=f"2026-11-{day:02d}T12:00:00+00:00", **changes)


def test_comparable_calibrations() -> None:
    newest = at(29)
    others = [
        at(28),
        at(27, build="b1"),
        at(26, engine="other"),
        at(25, threads=1),
        at(24, procedure=2),
        at(23, backend="cuda"),
        at(22, machine=this_machine().model_copy(update={"memory": 3})),
        at(21, contention=0.5),
        at(20),
        at(30),  # newer than the newest: not asked about
        calibration(created="2026-10-01T00:00:00+00:00"),
        calibration(created="when?"),
    ]
    assert comparable(newest, [newest, *others]) == [newest, at(28), at(20)]
    assert len(comparable(newest, [newest, *(at(day) for day in range(1, 20))])) == 8
    many = [newest, *(at(day) for day in range(1, 20)), at(21, contention=0.5), at(30), at(5, build="b1")]
    assert len(alike(newest, many)) == 21  # what --replace forgets: more than are averaged, disturbed ones too
    busy = at(29, contention=0.5)
    assert comparable(busy, [busy, at(28)]) == [at(28)]
    assert comparable(busy, [busy]) == [busy]


def test_the_mean_charges_the_mean() -> None:
    row = Curve(columns=(1, 8), values=(10e-9, 40e-9))
    slower = Curve(columns=(1, 8, 16), values=(2e-10, 6e-10, 9e-10))
    one = at(
        29,
        sampling=4e-9,
        rows=Curve(columns=(1,), values=(30e-9,)),
        checks=(Check(name="a", method="x", draft_max=3, measured=2.0, predicted=2.2),),
    )
    two = at(
        20,
        step=300e-6,
        sampling=2e-9,
        rows=row,
        matrices=(
            MatrixCost(quant="Q8_0", seconds_per_byte=slower),
            MatrixCost(quant="Q4_K", seconds_per_byte=slower),
            MatrixCost(quant="F16", seconds_per_byte=slower),
        ),
        experts=(ExpertCost(quant="Q8_0", read=1e-10, pair=0.5e-10),),
        layers={"dense": Curve(columns=(1, 8), values=(10e-6, 80e-6)), "latent": Curve(columns=(1,), values=(1e-6,))},
        checkpoint=None,
        drafting={"draft-simple": DraftCost(constant=-100e-6, per_entry=8e-9)},
        corrections=(Correction(architecture="gemma3", model="g", ratio=Curve(columns=(1,), values=(1.2,))),),
    )
    mean = mean_of([one, two])
    assert mean.averaged == 2
    assert mean.created == one.created
    assert mean.checks == one.checks
    assert mean.corrections == two.corrections
    a, b, both = (MeasuredCosts(c) for c in (one, two, mean))

    def charges(costs: MeasuredCosts) -> list[float]:
        return [
            costs.matrix(Matrices("Q8_0", 1e8, 9e7), 4, "llama"),
            costs.matrix(Matrices("Q8_0", 1e8, 9e7, 50_000), 1, "llama"),
            costs.matrix(Matrices("F16", 1e8, 5e7), 8, "llama"),
            costs.experts(Experts("Q8_0", 1e8, 9e7, 16, 4), 4, "llama"),
            costs.fixed("llama", 10, 1),
            costs.cache(1e6, 4),
            costs.state(1e6, 4, 2),
            costs.drafted_token("draft-simple", 32000, 10),
            costs.verified_token(32000),
            costs.round_overhead("ngram-simple"),
        ]

    for x, y, z in zip(charges(a), charges(b), charges(both), strict=True):
        assert z == pytest.approx((x + y) / 2)
    assert both.checkpoint(1e6) == a.checkpoint(1e6)  # only one knows
    assert mean_of([one]) is one
    source = both.figures("llama", "Q8_0")["stream_rate"].source
    assert "2 calibrations, the last of 2026-11-29" in source


def test_repeated_calibrations_are_averaged(stored: Path) -> None:
    setup = setup_of("detected")
    save_calibration(at(20, step=100e-6))
    save_calibration(at(22, step=200e-6))
    used = applicable(setup)
    assert used is not None
    assert used.averaged == 2
    assert used.step == pytest.approx(150e-6)
    assert applicable(setup) is used  # made once
    forget_calibrations([at(20), at(1)])  # the second was never stored
    assert applicable(setup) == at(22, step=200e-6)


def test_visits_are_averaged_where_they_looked() -> None:
    def seen(passes: dict[int, float], step: float) -> PassTimings:
        one = {n: Timing(seconds=v, spread=0.0, count=2) for n, v in passes.items()}
        return PassTimings(passes=one, step=Timing(seconds=step, spread=0.0, count=2), verified=True)

    both = merged([seen({1: 1.0, 2: 2.0, 32: 9.0}, 1.0), seen({1: 2.0, 2: 3.0}, 3.0)])
    assert {n: t.seconds for n, t in both.passes.items()} == {1: 1.5, 2: 2.5, 32: 9.0}
    assert both.step.seconds == 2.0
    assert both.passes[2].count == 4


def test_predictions_use_it_by_themselves(stored: Path) -> None:
    setup = setup_of("detected")
    assert cost_model(setup).kind != "measured"
    save_calibration(calibration())
    assert cost_model(setup).kind == "measured"
    assert cost_model(setup, calibrated=False).kind != "measured"
    assert measured_costs(setup, setup.hardware.device, "cpu") is measured_costs(setup, setup.hardware.device, "cpu")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    from advisor.errors import InputError

    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be stored"):
        save_calibration(calibration(), tmp_path / "x")


# ------------------------------------------------------------------------------------------------ the instruments


def test_experts_are_told_apart_from_exact_times() -> None:
    recipe = _wide_experts("Q8_0", 1e7)
    read, pair, one = 3e-11, 5e-11, 1e6

    def layer(n: int) -> float:
        return one / recipe.layers * (read * 16 * (1 - 0.75**n) + pair * 4 * n)

    seconds = {n: recipe.layers * layer(n) for n in (1, 2, 4, 8, 16)}
    found = _fit_experts("Q8_0", recipe, one, seconds, 0.0)
    assert (found.read, found.pair) == pytest.approx((read, pair))


@given(
    first=st.floats(1e-6, 1e-3),
    slope=st.floats(0.0, 1e-4),
    surcharge=st.floats(0.0, 1e-3),
    columns=st.sets(st.integers(2, 32), min_size=2, max_size=8),
)
def test_small_operations_lie_on_a_line_through_the_step(
    first: float, slope: float, surcharge: float, columns: set[int]
) -> None:
    exact = {n: first + slope * (n - 1) + surcharge for n in columns}
    line, over = through_first(first, exact)
    assert line.at(1) == first
    assert over == pytest.approx(surcharge, abs=1e-9)
    for n in columns:
        assert line.at(n) == pytest.approx(first + slope * (n - 1), abs=1e-9)


def test_one_disturbed_pass_does_not_bend_the_line() -> None:
    exact = {n: 50e-6 + 10e-6 * n for n in (2, 3, 4, 5, 8, 9, 16)}
    line, over = through_first(20e-6, {**exact, 5: 900e-6})
    assert line.at(16) == pytest.approx(20e-6 + 150e-6, rel=0.1)
    assert over == pytest.approx(40e-6, rel=0.1)
    assert through_first(20e-6, {}) == (Curve(columns=(1,), values=(20e-6,)), 0.0)


def test_spikes_are_cut_and_stairs_are_kept() -> None:
    stairs = {1: 1.0, 2: 1.7, 3: 2.5, 4: 2.2, 8: 4.0}
    assert without_spikes(stairs) == stairs
    assert without_spikes({**stairs, 3: 9.0})[3] == pytest.approx(1.3 * 2.2)


def test_passes_inside_rounds_cost_their_factor_and_steps_do_not() -> None:
    plain, dear = (MeasuredCosts(calibration(in_rounds=f)) for f in (1.0, 1.1))
    for n, factor in ((1, 1.0), (2, 1.1), (8, 1.1)):
        assert dear.matrix(Matrices("Q8_0", 1e9, 1e9), n, "llama") == pytest.approx(
            factor * plain.matrix(Matrices("Q8_0", 1e9, 1e9), n, "llama")
        )
        assert dear.experts(Experts("Q8_0", 1e9, 1e9, 32, 4), n, "qwen3moe") == pytest.approx(
            factor * plain.experts(Experts("Q8_0", 1e9, 1e9, 32, 4), n, "qwen3moe")
        )
        assert dear.fixed("llama", 12, n) == plain.fixed("llama", 12, n)


def test_a_model_that_costs_its_parts_needs_no_correction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rounds cost beyond their passes: a model of the user is timed by prompts, which hold none of it."""
    path = write_synthetic(tiny("llama"), tmp_path / "m.gguf")
    idle = Engine(
        kind="embedded", command=(), version="", build="", capabilities=Capabilities(flags=frozenset()), origin="test"
    )
    one = _Calibrator(idle, tmp_path, None, None, 1.0, None, None)
    one.calibration = calibration(in_rounds=1.2)
    one.rebuild = one.prompt_constant = one.prompt_per_layer = 0.0
    exact = one._predict(calibration(in_rounds=1.0), describe(str(path)), (1, 2, 4, 8), False)

    def prompts(*_: object) -> PassTimings:
        timings = {n: Timing(seconds=value, spread=0.0, count=1) for n, value in exact.items()}
        return PassTimings(passes=timings, step=timings[1], verified=False)

    monkeypatch.setattr(one, "prompts", prompts)
    one._real(path)
    (found,) = one.calibration.corrections
    assert found.ratio.values == pytest.approx([1.0] * 4)


def test_busy_machines_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.llamacpp import contention

    class Server:
        used = 0.0

        def processor_seconds(self) -> float:
            return self.used

    clock = {"busy": 0.0, "total": 0.0}
    monkeypatch.setattr(contention, "_machine", lambda: (clock["busy"], clock["total"]))
    server, meter = Server(), ContentionMeter()
    assert meter.share is None
    with meter.during(server):
        clock.update(busy=1.5, total=2.0)
        server.used = 1.0
    assert meter.share == pytest.approx(0.25, abs=0.02)
    assert meter.busy
    assert summarise([1.0, 1.1, 1.2, 9.0, 9.1], busy=True).seconds == 1.1  # disturbances only ever add
    assert summarise([1.0, 1.1, 1.2, 9.0, 9.1]).seconds == 1.2
    assert "Close them" in (disturbed(calibration(contention=0.4)) or "")
    assert disturbed(calibration(contention=0.01)) is None


def test_a_draft_pass_never_costs_less_than_nothing(tmp_path: Path) -> None:
    model = describe(str(write_synthetic(tiny("llama"), tmp_path / "m.gguf")))
    cached = calibration(drafting={"draft-simple": DraftCost(constant=-1.0)})
    rounds = [
        round_of(model, model, "draft-simple", setup_of("detected"), k, positions=(1.0,), costs=MeasuredCosts(cached))
        for k in (1, 4)
    ]
    assert [r.cost.draft for r in rounds] == [0.0, 0.0]
    assert all(r.cost.cost > 0 for r in rounds)


def check_of(predicted: float) -> Check:
    return Check(name="check", method="draft-simple", draft_max=3, measured=2.0, predicted=predicted)


def test_a_calibration_that_contradicts_itself_is_not_averaged() -> None:
    good, bad = at(20, checks=(check_of(2.4),)), at(21, checks=(check_of(2.1), check_of(5.0)))
    assert disturbed(good) is None
    assert "expects 5.0 decode steps for a round of draft-simple that took 2.0" in (disturbed(bad) or "")
    newest = at(22)
    assert comparable(newest, [newest, bad, good]) == [newest, good]
    assert comparable(bad, [bad]) == [bad]  # better than nothing


def test_disturbed_measurements_are_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.llamacpp import contention

    class Server:
        def processor_seconds(self) -> float:
            return 0.0

    clock = {"busy": 0.0, "total": 0.0}
    monkeypatch.setattr(contention, "_machine", lambda: (clock["busy"], clock["total"]))
    idle = Engine(
        kind="embedded", command=(), version="", build="", capabilities=Capabilities(flags=frozenset()), origin="test"
    )
    calibrator = _Calibrator(idle, tmp_path, None, None, 1.0, None, None)
    calls = []

    def measure(busy: list[float]) -> int:
        def one(meter: ContentionMeter) -> int:
            with meter.during(Server()):
                clock["busy"] += 10 * busy[len(calls)]
                clock["total"] += 10
            calls.append(busy[len(calls)])
            return len(calls)

        calls.clear()
        return calibrator.quietly(one)

    assert measure([0.0, 0.9]) == 1
    assert measure([0.9, 0.0]) == 2
    assert measure([0.9, 0.3, 0.5, 0.0]) == 2  # three tries, the least disturbed counts
    assert len(calls) == 3
    assert calibrator.meter.share == pytest.approx(0.1, abs=0.02)  # of those that count
    calibrator.repeats = 0
    assert measure([0.9, 0.0]) == 1


def test_command_line_shows_what_is_stored(stored: Path) -> None:
    from advisor.cli.main import app

    empty = CliRunner().invoke(app, ["calibrate", "--show"])
    assert empty.exit_code == 0
    assert "no calibration yet" in empty.stdout
    save_calibration(calibration(contention=0.5))
    shown = CliRunner().invoke(app, ["calibrate", "--show"])
    assert "measured here on 2026-11-29" in shown.stdout
    assert "Q8_0" in shown.stdout
    assert "Close them" in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    save_calibration(at(20))
    save_calibration(at(22))
    several = CliRunner().invoke(app, ["calibrate", "--show"]).stdout
    assert "mean of 2 calibrations, the last of 2026-11-22: what predictions use" in several
    forget_calibrations([at(20), at(22)])
    save_calibration(calibration(contention=0.5))
    listed = CliRunner().invoke(app, ["calibrate", "--show", "--json"])
    assert Calibration.model_validate(json.loads(listed.stdout)[0]) == calibration(contention=0.5)


def test_command_line_refuses_bad_models_at_once(tmp_path: Path) -> None:
    from advisor.cli.main import app
    from advisor.errors import InputError

    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"no")
    done = CliRunner().invoke(app, ["calibrate", str(broken), "--engine", "/nowhere"])
    assert isinstance(done.exception, InputError)
    assert "broken.gguf" in str(done.exception)


def test_command_line_replaces_what_was_measured_before(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from advisor.cli.main import app
    from advisor.errors import InputError

    def run(result: Calibration, *arguments: str) -> str:
        monkeypatch.setattr("advisor.llamacpp.calibrate.calibrate", lambda *a, **k: result)
        done = CliRunner().invoke(app, ["calibrate", *arguments])
        assert done.exit_code == 0, done.output
        return " ".join(done.stdout.split())

    for day in range(1, 12):
        save_calibration(at(day))
    other = at(13, build="b1")
    save_calibration(other)
    assert "now use the mean of 8 calibrations." in run(at(14))
    busy = at(15, contention=0.5)
    kept = run(busy, "--replace")
    assert "Earlier calibrations were kept" in kept
    assert "now use the mean of 8 calibrations." in kept
    assert "now use it." in run(at(16), "--replace")
    assert {c.created for c in load_calibrations()} == {at(16).created, other.created}
    assert "now use an earlier one." in run(at(17, contention=0.5))
    refused = CliRunner().invoke(app, ["calibrate", "--replace", "--no-save"])
    assert isinstance(refused.exception, InputError)
