"""The roofline: its arithmetic, its drawing and its pictures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.cli.roofline import drawing
from advisor.errors import InputError
from advisor.hardware.resolve import resolve
from advisor.models.catalogue import describe_catalogue
from advisor.performance.roofline import bytes_of, flop_of, roofline
from advisor.report.picture import write_roofline


def test_a_decode_step_of_a_dense_model_moves_its_active_weights() -> None:
    model = describe_catalogue("qwen3-32b:Q8_0")
    assert bytes_of(model, 1) == pytest.approx(model.decode_bytes)
    assert bytes_of(model, 4) == pytest.approx(model.decode_bytes), "dense weights are read once per pass"
    assert flop_of(model, 4) == 4 * flop_of(model, 1) == 8 * model.active_parameters


def test_more_tokens_touch_more_experts_but_never_more_than_all() -> None:
    model = describe_catalogue("gpt-oss-120b:MXFP4")
    one, four, many = (bytes_of(model, n) for n in (1, 4, 10_000))
    assert one == pytest.approx(model.decode_bytes)
    experts = sum(x.expert_bytes for x in model.layers)
    assert one < four < many == pytest.approx(model.dense_bytes + experts)


def test_passes_lie_below_the_roof_and_verify_right_of_decode() -> None:
    target, draft = describe_catalogue("gpt-oss-120b:MXFP4"), describe_catalogue("gpt-oss-20b:MXFP4")
    found = roofline(target, draft, resolve("395"), draft_max=3)
    assert [p.role for p in found.points] == ["decode", "verify", "draft"]
    assert all(0 < p.rate <= p.attainable <= found.peak.value for p in found.points)
    decode, verify, _ = found.points
    assert verify.intensity > decode.intensity
    assert found.ridge == pytest.approx(found.peak.value * 1e3 / found.bandwidth.value)


def test_a_device_without_a_stated_rate_gets_what_the_model_reaches() -> None:
    found = roofline(describe_catalogue("qwen3-4b:Q4_K_M"), None, resolve("M4 Max"))
    assert found.peak.kind == "fitted"
    assert "no vector FP32 rate" in found.peak.source


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_drawing_keeps_to_its_width_and_shows_every_pass(width: int) -> None:
    target, draft = describe_catalogue("gpt-oss-120b:MXFP4"), describe_catalogue("gpt-oss-20b:MXFP4")
    lines = drawing(roofline(target, draft, resolve("395")), width, "/-")
    assert max(map(len, lines)) <= width
    text = "\n".join(lines[:-1])
    assert all(text.count(letter) == 1 for letter in "ABC")
    assert text.isascii()


def test_pictures_are_written_whole_or_refused(tmp_path: Path) -> None:
    found = roofline(describe_catalogue("qwen3-4b:Q4_K_M"), None, resolve("RTX 3090"))
    write_roofline(found, tmp_path / "r.svg")
    write_roofline(found, tmp_path / "r.png")
    svg = (tmp_path / "r.svg").read_text()
    assert svg.startswith("<svg")
    assert "var(--" not in svg
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r.png", "r.svg"]
    with pytest.raises(InputError, match="cannot be written"):
        write_roofline(found, tmp_path / "nowhere" / "r.svg")


def test_the_command_answers_in_json() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "advisor", "roofline", "qwen3-4b:Q4_K_M", "-H", "RTX 3090", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(run.stdout)
    assert answer["schema_version"] == 1
    assert [p["role"] for p in answer["points"]] == ["decode", "verify"]
