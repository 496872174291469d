"""Validation: other people's tables are read without crashing, lines are skipped with reasons, figures are honest."""

from __future__ import annotations

import contextlib
import csv
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from advisor.cli.main import app
from advisor.errors import InputError
from advisor.validation import validate
from advisor.validation.cases import (
    Skipped,
    SpeculationCase,
    model_of,
    published_yield,
    resize,
    speculation_case,
)
from advisor.validation.report import score, weighted_quantile
from advisor.validation.tables import Row, recognise

DATA = Path(__file__).resolve().parent.parent / "data"
GOOD = {
    "id": "X1", "source_group": "me", "hardware": "rtx-3090", "device_count": "1", "backend": "cuda",
    "placement": "gpu", "target": "qwen3.8-27b", "target_quant": "UD-Q4_K_XL", "target_quant_base": "Q4_K_M",
    "method": "draft-mtp", "draft_max": "3", "baseline_tps": "40", "spec_tps": "60", "speedup": "1.5",
    "acceptance": "0.6", "usable_for": "fit", "setup": "s1", "engine": "llama.cpp",
}  # fmt: skip

OTHER_COLUMNS = (
    "p_min", "mean_accepted_length", "context_used", "parallel", "target_bytes", "notes", "draft", "draft_quant",
)  # fmt: skip
ODD_VALUES = (
    "-1", "0", "1e99", "nan", "inf", "1,5", "0.5", "2", "rtx-3090+", "+", "gpu", "Q4_K_M", "metal",
)  # fmt: skip


def table(path: Path, *rows: dict[str, str]) -> Path:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def case(**changes: str) -> SpeculationCase | Skipped:
    fields = {k: v for k, v in (GOOD | changes).items() if v != "-"}
    return speculation_case(Row(fields.get("id", "row 1"), fields))


def test_the_shipped_table_of_runs_is_used_almost_whole_and_predicted_well() -> None:
    report = validate(DATA / "speculation.csv")
    assert report.table == "speculation"
    assert report.used >= 0.85 * 236
    assert report.used + sum(s.count for s in report.skipped) == report.rows == 567
    assert report.median_error_pct is not None
    assert report.median_error_pct < 8
    assert report.p90_error_pct is not None
    assert report.p90_error_pct < 20
    assert report.sign_accuracy is not None
    assert report.sign_accuracy > 0.96
    assert report.interval_coverage is not None
    assert 0.75 < report.interval_coverage < 0.98
    ids = {p.id for p in report.predictions}
    assert not ids & {"A0001", "A0002", "A0003"}
    for p in report.predictions:
        assert 0 < p.low < p.predicted < p.high


@pytest.mark.parametrize(("name", "median"), [("decode", 9.0), ("batch", 12.0)])
def test_the_other_shipped_tables(name: str, median: float) -> None:
    report = validate(DATA / f"{name}.csv")
    assert report.table == name
    assert report.used > 400
    assert report.median_error_pct is not None
    assert report.median_error_pct < median
    assert (report.sign_accuracy is None) == (name == "decode")
    assert (report.acceptance is None) is True


def test_measured_speeds_do_not_enter_the_prediction(tmp_path: Path) -> None:
    honest, lying = GOOD, GOOD | {"baseline_tps": "4000", "spec_tps": "1", "speedup": "0.5"}
    one = validate(table(tmp_path / "a.csv", honest)).predictions[0]
    two = validate(table(tmp_path / "b.csv", lying)).predictions[0]
    assert (one.predicted, one.low, one.high) == (two.predicted, two.low, two.high)
    assert two.measured == 0.5


def test_every_cluster_counts_once(tmp_path: Path) -> None:
    many = [GOOD | {"id": f"a{i}", "setup": "sweep", "speedup": "9"} for i in range(20)]
    others = [GOOD | {"id": f"b{i}", "setup": f"single{i}"} for i in range(3)]
    report = validate(table(tmp_path / "t.csv", *many, *others))
    assert report.used == 23
    assert report.median_error_pct is not None
    assert report.median_error_pct < 50  # three setups against one sweep


def test_a_missing_speedup_is_taken_from_the_speeds() -> None:
    found = case(speedup="-")
    assert isinstance(found, SpeculationCase)
    assert found.measured == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hardware": "abacus-9000"}, "abacus"),
        ({"hardware": ""}, "no hardware"),
        ({"target": "unheard-of-3b"}, "unheard-of"),
        ({"target_quant": "", "target_quant_base": ""}, "quantisation"),
        ({"target_quant": "MLX-4bit", "target_quant_base": ""}, "not a llama.cpp"),
        ({"engine": "mlx-engine"}, "another engine"),
        ({"method": "telepathy"}, "unknown method"),
        ({"method": ""}, "no method"),
        ({"draft_max": ""}, "no draft length"),
        ({"draft_max": "100000"}, "draft length above"),
        ({"acceptance": "", "mean_accepted_length": ""}, "neither acceptance"),
        ({"speedup": "", "spec_tps": ""}, "no speedup"),
        ({"backend": "quantum"}, "unknown backend"),
        ({"method": "draft-simple"}, "no draft model"),
        ({"target": "qwen2.5-7b", "target_quant": "Q4_K_M"}, "no MTP layers"),
        ({"device_count": "1e6"}, "devices"),
    ],
)
def test_lines_are_skipped_with_their_reason(changes: dict[str, str], reason: str) -> None:
    found = case(**changes)
    assert isinstance(found, Skipped)
    assert reason in found.reason


@pytest.mark.parametrize(
    "changes",
    [
        {"hardware": "rtx-5080+rtx-3090", "device_count": "2", "placement": "multi-gpu", "notes": "tensor split"},
        {"hardware": "rtx-3090", "device_count": "2", "placement": "multi-gpu", "notes": "layer split; q8_0 KV"},
        {"placement": "partial-offload", "notes": "25 of 66 layers on GPU, rest CPU"},
        {"placement": "partial-offload", "notes": "-ngl 60"},
        {"placement": "experts-on-cpu", "target": "qwen3.6-35b-a3b"},
        {"placement": "experts-on-cpu", "target": "qwen3.6-35b-a3b", "notes": "--n-cpu-moe 12"},
        {"hardware": "cpu-ddr5-5600-2ch", "backend": "cpu", "placement": "cpu"},
        {"target_quant": "NVFP4", "target_quant_base": "NVFP4"},
        {"target_quant": "AD-IQ3", "target_quant_base": ""},
        {"target_quant": "Q4-XYZ-v2", "target_quant_base": ""},
        {"target": "qwen3.8-27b-heretic"},
        {"target_bytes": "17560000000"},
        {"p_min": "0.6"},
        {"p_min": "0.6", "mean_accepted_length": "2.4"},
        {"acceptance": "-", "mean_accepted_length": "2.4"},
        {"mean_accepted_length": "2.4"},
        {"acceptance": "0"},
        {"method": "ngram-cache", "acceptance": "0", "mean_accepted_length": "1"},
        {"method": "ngram-mod", "draft_max": "64", "acceptance": "0.5", "mean_accepted_length": "9"},
        {"method": "draft-simple", "draft": "qwen3.5-0.8b", "draft_quant": "Q4_K_M"},
        {"method": "draft-simple", "draft": "qwen3.5-0.8b", "draft_quant": ""},
        {"method": "draft-dflash", "draft": "qwen3.8-27b-dflash2"},
        {"parallel": "4"},
        {"context_used": "65536"},
        {"backend": "", "build": "b10451 (abc)"},
        {"hardware": "ryzen-ai-max-395", "backend": "vulkan", "build": "b6077"},
        {"hardware": "apple-m4-max-40c", "backend": "metal"},
    ],
)
@pytest.mark.parametrize("blind", [False, True])
def test_odd_lines_are_predicted(changes: dict[str, str], blind: bool) -> None:
    found = case(**changes)
    assert isinstance(found, SpeculationCase), found
    line = score(found, blind=blind).line
    assert 0.02 < line.predicted < 60
    assert 0 < line.low < line.predicted < line.high


def test_a_known_drafted_length_is_used_behind_a_gate() -> None:
    found = case(p_min="0.5", acceptance="0.8", mean_accepted_length="2.2")
    assert isinstance(found, SpeculationCase)
    told = published_yield(found, "snapshots")
    drafted = sum(math.prod([told.gates[0].passed] * i) for i in range(1, 4))
    assert drafted == pytest.approx(1.2 / 0.8, abs=1e-6)
    assert sum(told.gates[0].accepted ** i for i in range(1, 4)) == pytest.approx(1.2, abs=1e-6)


def test_after_checkpoints_the_published_mean_length_is_not_trusted() -> None:
    found = case(
        target="qwen3.8-27b", method="draft-simple", draft="qwen3.5-0.8b", draft_quant="Q8_0", draft_max="4",
        acceptance="0.376", mean_accepted_length="1.9",
    )  # fmt: skip
    assert isinstance(found, SpeculationCase)
    told = published_yield(found, "checkpoint")
    assert told.hit_rate == 1.0
    assert sum(told.gates[0].accepted ** i for i in range(1, 5)) == pytest.approx(4 * 0.376, abs=1e-6)


def test_a_file_size_moves_the_right_weights() -> None:
    dense = model_of("qwen3.8-27b", ("UD-Q4_K_XL",), None)
    total = sum(g.bytes for g in dense.weights)
    bigger = resize(dense, round(total * 1.1))
    assert sum(g.bytes for g in bigger.weights) == pytest.approx(1.1 * total, rel=1e-4)
    assert bigger.decode_bytes > 1.05 * dense.decode_bytes
    assert resize(dense, total * 3) is dense  # another file
    assert resize(dense, 0) is dense
    routed = model_of("qwen3.6-35b-a3b", ("UD-Q4_K_XL",), None)
    larger = resize(routed, round(1.1 * sum(g.bytes for g in routed.weights)))
    assert larger.dense_bytes == routed.dense_bytes
    assert larger.expert_bytes_used > 1.05 * routed.expert_bytes_used


def test_tables_are_recognised_by_their_columns() -> None:
    assert recognise(["id", "method", "draft_max", "speedup"]) == "speculation"
    assert recognise(["n_tokens", "relative_time", "method"]) == "batch"
    assert recognise(["model", "tg128_tps"]) == "decode"
    assert recognise(["name", "price"]) is None


@pytest.mark.parametrize(
    "content", [b"", b"a,b\n1,2\n", b"\xff\xfe\x00", b"method,draft_max\n", b'tg128_tps\n"unclosed']
)
def test_files_that_are_no_tables_are_refused_or_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with contextlib.suppress(InputError):  # refused in a sentence, or an empty table
        assert validate(path).used == 0


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing\.csv cannot be read"):
        validate(tmp_path / "nothing.csv")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.sampled_from([*GOOD, *OTHER_COLUMNS]),
        st.one_of(
            st.text(max_size=12),
            st.sampled_from(ODD_VALUES),
        ),
        max_size=6,
    )
)  # fmt: skip
def test_no_line_ever_crashes(tmp_path: Path, changes: dict[str, str]) -> None:
    path = table(tmp_path / "fuzz.csv", GOOD, GOOD | changes)
    try:
        report = validate(path, all_rows=True)
    except InputError:
        return  # a control character may break the CSV itself
    assert report.used + sum(s.count for s in report.skipped) == report.rows
    for p in report.predictions:
        assert all(map(math.isfinite, (p.predicted, p.low, p.high, p.measured)))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.floats(0.0, 1.0))
def test_a_weighted_quantile_lies_among_the_values(values: list[float], level: float) -> None:
    found = weighted_quantile(values, [1.0] * len(values), level)
    assert min(values) - 1e-9 <= found <= max(values) + 1e-9


def test_weights_are_repetitions() -> None:
    assert weighted_quantile([1.0, 2.0, 3.0], [1, 1, 1], 0.5) == 2.0
    assert weighted_quantile([1.0, 9.0], [3, 1], 0.5) < 5
    with pytest.raises(ValueError, match="no values"):
        weighted_quantile([], [], 0.5)


def test_the_command_prints_the_promised_fields(tmp_path: Path) -> None:
    path = table(tmp_path / "t.csv", GOOD, GOOD | {"id": "X2", "hardware": "abacus"})
    result = CliRunner().invoke(app, ["validate", str(path), "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    wanted = {
        "table", "rows", "used", "skipped", "median_error_pct", "p90_error_pct", "sign_accuracy", "interval_coverage",
        "groups", "predictions",
    }  # fmt: skip
    assert wanted <= set(answer)
    assert answer["rows"] == 2
    assert answer["used"] == 1
    assert answer["skipped"][0]["count"] == 1
    assert set(answer["predictions"][0]) >= {"id", "predicted", "low", "high", "measured"}
    blind = CliRunner().invoke(app, ["validate", str(path), "--json", "--acceptance", "blind"])
    given_report = json.loads(blind.stdout)
    assert given_report["acceptance"] == "blind"
    widths = [math.log(a["predictions"][0]["high"] / a["predictions"][0]["low"]) for a in (answer, given_report)]
    assert widths[1] > widths[0]  # not knowing the acceptance costs certainty
