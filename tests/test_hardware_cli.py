"""`advisor hardware`: list, show, detect."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from advisor.cli.main import app
from advisor.errors import UnknownHardwareError
from advisor.hardware.profiles import devices


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["hardware", *arguments], catch_exceptions=False, env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    return result.output


def test_help_names_the_three_commands() -> None:
    result = CliRunner().invoke(app, ["hardware", "--help"])
    assert result.exit_code == 0
    assert all(command in result.output for command in ("list", "show", "detect"))


def test_list_in_80_columns_and_filtered() -> None:
    output = run("list")
    assert f"{len(devices())} of {len(devices())} devices" in output
    assert max(map(len, output.splitlines())) <= 80
    assert all(slug in output for slug in devices())
    few = run("list", "amd", "workstation")
    assert "radeon-ai-pro-r9700" in few
    assert "rtx-3090" not in few


def test_list_as_json() -> None:
    answer = json.loads(run("list", "apple", "m4", "--json"))
    assert answer["schema_version"] == 1
    slugs = {device["slug"] for device in answer["devices"]}
    assert "apple-m4-max-40c" in slugs
    assert answer["families"]["Apple M4 Max"][0] == "apple-m4-max-40c"
    bandwidth = next(d for d in answer["devices"] if d["slug"] == "apple-m4-max-40c")["bandwidth"]
    assert bandwidth["kind"] == "published"
    assert bandwidth["source"]


def test_show_tells_kind_source_and_assumptions() -> None:
    output = " ".join(run("show", "2x RTX 3090").split())
    for words in ("2x RTX 3090", "backend cuda", "936.2 GB/s", "published", "Host: CPU DDR5-5600", "Assumed"):
        assert words in output


def test_show_as_json_is_the_hardware() -> None:
    answer = json.loads(run("show", "395", "--json"))
    assert answer["hardware"]["devices"][0]["slug"] == "ryzen-ai-max-395"
    assert answer["hardware"]["assumptions"]


def test_show_of_an_unknown_name() -> None:
    with pytest.raises(UnknownHardwareError) as error:
        CliRunner().invoke(app, ["hardware", "show", "RTX 3095"], catch_exceptions=False)
    assert error.value.exit_code == 2


def test_detect() -> None:
    answer = json.loads(run("detect", "--json"))
    assert answer["hardware"]["source"] == "detected"
    assert answer["system"]["system"]
    assert "backend" in run("detect")
