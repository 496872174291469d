"""Models by name: totals, sizes against real files, near-misses, and the same answer as from a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from gguf_files import header_bytes
from test_models_gguf import Memory

from advisor.errors import UnknownModelError
from advisor.models import mixes
from advisor.models.catalogue import (
    describe_catalogue,
    find,
    names,
    normalise,
    parse_name,
    recognise,
    suggestions,
)
from advisor.models.describe import describe_header
from advisor.models.description import ModelDescription
from advisor.models.gguf import parse
from advisor.models.shapes import keys, shapes
from advisor.resources import resource

ROWS: list[dict[str, Any]] = json.loads(resource("data", "models.json").read_text(encoding="utf-8"))
FILES = list(csv.DictReader(resource("data", "quant_bpw.csv").read_text(encoding="utf-8").splitlines()))
PLAIN = {"F32", "F16", "BF16", "Q8_0", "MXFP4"}


def by_role(model: ModelDescription) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in model.weights:
        found[group.role] = found.get(group.role, 0) + group.parameters
    return found


def test_catalogue_is_large() -> None:
    assert len(ROWS) >= 150
    assert len(names()) == len(set(names())) > 200


def test_every_row_has_the_published_weights() -> None:
    """Totals were compared with published weight counts (data/models.json, ref); the tensors must add up to them."""
    wrong = {}
    for row in ROWS:
        for mtp in (False, True):
            total = 0
            for _, shape in shapes(row, mtp):
                product = 1
                for n in shape:
                    product *= n
                total += product
            expected = row["computed"]["total"] + (row["computed"]["mtp_total"] if mtp else 0)
            if total != expected:
                wrong[row["slug"], mtp] = total - expected
    assert not wrong


def test_active_weights_caches_and_states_of_every_row() -> None:
    wrong = {}
    for row in ROWS:
        model, counted = describe_catalogue(f"{row['slug']}:F16+mtp"), row["computed"]
        cached = sum(counted[f"kv_elems_per_token_{k}"] for k in ("full", "sliding"))
        if model.kv_bytes_per_token != 2 * (cached + counted["indexer_elems_per_token"]):
            wrong[row["slug"], "cache"] = model.kv_bytes_per_token
        windowed = sum(x.key_width + x.value_width for x in model.layers if x.window)
        if windowed != counted["kv_elems_per_token_sliding"]:
            wrong[row["slug"], "window"] = windowed
        if model.state_bytes != counted["recurrent_state_f32_bytes_per_seq"]:
            wrong[row["slug"], "state"] = model.state_bytes
        # an assistant's centroid table is in the file, but llama.cpp does not read it
        unread = sum(g.parameters for g in model.weights if g.role == "unused") if model.kind == "drafter" else 0
        if abs(model.active_parameters + unread - counted["active"]) > 1e-5 * counted["active"] + 262_144 * bool(
            unread
        ):
            wrong[row["slug"], "active"] = model.active_parameters - counted["active"]
        if counted["mtp_total"]:
            block = model.mtp
            assert block is not None
            found = (block.parameters, block.expert_parameters, block.key_width + block.value_width)
            if found != (counted["mtp"]["dense"], counted["mtp"].get("experts", 0), counted["mtp_kv_elems_per_token"]):
                wrong[row["slug"], "mtp"] = found
    assert not wrong


@pytest.mark.parametrize("row", FILES, ids=lambda r: f"{r['slug']}:{r['quant']}")
def test_sizes_of_real_files(row: dict[str, str]) -> None:
    suffix = "+mtp" if row["mtp_in_file"] == "1" else ""
    model = describe_catalogue(f"{row['slug']}:{row['quant']}{suffix}")
    limit = 0.01 if row["quant"] in PLAIN else 0.04
    assert model.size_bytes == pytest.approx(int(row["file_bytes"]), rel=limit)


SIZES = list(csv.DictReader(resource("data", "ud_sizes.csv").read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("row", SIZES, ids=lambda r: f"{r['slug']}:{r['quant']}")
def test_published_sizes_of_ud_files(row: dict[str, str]) -> None:
    model = describe_catalogue(f"{row['slug']}:{row['quant']}")
    assert model.size_bytes == pytest.approx(int(row["tensor_bytes"]), rel=0.01)
    assert any("published size" in a for a in model.assumptions)


def test_plain_mixes_are_nearly_exact() -> None:
    """K- and I-quants follow llama.cpp's rules tensor by tensor: most files come out to a thousandth."""
    errors = [
        abs(describe_catalogue(f"{r['slug']}:{r['quant']}").size_bytes / int(r["file_bytes"]) - 1)
        for r in FILES
        if not r["quant"].startswith("UD-")
    ]
    assert sorted(errors)[len(errors) // 2] < 0.001
    assert sum(e < 0.002 for e in errors) >= 0.9 * len(errors)


def test_ud_labels_of_unmeasured_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave one model out: the other measured files of the label (or the rule) must still place it."""
    every = mixes.measured()
    errors = {}
    for row in FILES:
        if not row["quant"].startswith("UD-") or row["slug"].startswith(("gpt-oss", "nemotron")):
            continue  # odd widths leave these no choice of type: nothing to learn from others
        rest = tuple(m for m in every if m.slug != row["slug"])
        monkeypatch.setattr(mixes, "measured", lambda rest=rest: rest)
        from advisor.models.catalogue import _core

        _core.cache_clear()
        suffix = "+mtp" if row["mtp_in_file"] == "1" else ""
        size = describe_catalogue(f"{row['slug']}:{row['quant']}{suffix}").size_bytes
        errors[row["slug"], row["quant"]] = abs(size / int(row["file_bytes"]) - 1)
    _core.cache_clear()
    assert len(errors) > 20
    assert sorted(errors.values())[len(errors) // 2] < 0.015
    assert sum(e < 0.04 for e in errors.values()) >= 0.8 * len(errors), errors
    assert max(errors.values()) < 0.15, errors


@pytest.mark.parametrize(
    "slug",
    ["smollm2-135m", "qwen3-0.6b", "gpt-oss-20b", "gemma-3-1b", "qwen3.5-0.8b", "lfm2-350m", "granite-4.0-h-350m",
     "deepseek-v2-lite", "gemma-4-e2b", "nemotron-3-nano-4b"],
)  # fmt: skip
def test_a_file_of_that_shape_is_described_the_same(slug: str) -> None:
    row = next(r for r in ROWS if r["slug"] == slug)
    arch = row["gguf_arch"]
    by_name = describe_catalogue(f"{slug}:F16+nomtp")
    tensors = [
        (n, s, "F32" if not mixes.quantised(n, s) and "altup" not in n and "model_proj" not in n else "F16")
        for n, s in shapes(row, False)
    ]
    if arch == "gpt-oss":
        tensors = [(n, s, "MXFP4" if "_exps.weight" in n else q) for n, s, q in tensors]
    if arch == "gemma4":
        tensors = [(n, s, "BF16" if "model_proj" in n else q) for n, s, q in tensors]
    numbers = {f"{arch}.{k}": list(v) if isinstance(v, tuple) else v for k, v in keys(row, False).items()}
    head, size = header_bytes({"general.architecture": arch, **numbers}, tensors)
    from_file = describe_header(parse(Memory(head, len(head) + size), f"{slug}-F16.gguf"))
    assert from_file.layers == by_name.layers
    for field in ("total_parameters", "active_parameters", "kv_bytes_per_token", "state_bytes", "tied_head", "is_moe"):
        assert getattr(from_file, field) == getattr(by_name, field), field
    assert by_role(from_file) == by_role(by_name)
    assert recognise(from_file) == slug


def test_real_files_agree_with_their_rows(smollm2: Path, gemma3: Path) -> None:
    from advisor.models.reference import describe

    for path, slug, quant in ((smollm2, "smollm2-135m", "Q4_1"), (gemma3, "gemma-3-270m", "Q4_K_M")):
        file, name = describe(str(path)), describe(f"{slug}:{quant}")
        assert file.catalogue_slug == slug
        assert file.quant == quant
        assert file.total_parameters == name.total_parameters
        assert [x.model_dump(exclude={"bytes"}) for x in file.layers] == [
            x.model_dump(exclude={"bytes"}) for x in name.layers
        ]
        assert name.size_bytes == pytest.approx(file.size_bytes, rel=0.04)
        assert name.decode_bytes == pytest.approx(file.decode_bytes, rel=0.04)


def test_weights_by_role_and_type() -> None:
    model = describe_catalogue("gpt-oss-20b:MXFP4")
    by = {(g.role, g.quant): g for g in model.weights}
    assert ("experts", "MXFP4") in by
    assert by["head", "Q8_0"].bytes == by["head", "Q8_0"].parameters * 34 // 32
    assert not any(g.quant == "MXFP4" for g in model.weights if g.role in ("attention", "head", "embedding"))
    assert ("experts", "MXFP4") in {(g.role, g.quant) for g in describe_catalogue("gpt-oss-20b:Q8_0").weights}
    ud = describe_catalogue("qwen3.6-35b-a3b:UD-Q4_K_XL")
    dense = [g for g in ud.weights if g.role in ("attention", "recurrent", "shared_experts") and g.quant != "F32"]
    experts = [g for g in ud.weights if g.role == "experts"]
    assert 8.3 < 8 * sum(g.bytes for g in dense) / sum(g.parameters for g in dense) < 9.2
    assert 4.5 < 8 * sum(g.bytes for g in experts) / sum(g.parameters for g in experts) < 5.2


def test_mtp_by_name() -> None:
    usual, with_mtp, without = (describe_catalogue("qwen3.6-27b:Q8_0" + s) for s in ("", "+mtp", "+nomtp"))
    assert (usual.mtp_layers, with_mtp.mtp_layers, without.mtp_layers) == (1, 1, 0)
    assert usual.size_bytes == without.size_bytes < with_mtp.size_bytes
    assert any("MTP" in a for a in usual.assumptions)
    assert usual.decode_bytes == without.decode_bytes
    assert describe_catalogue("qwen3.6-27b:Q8_0", mtp=False) == without.model_copy(
        update={"reference": "qwen3.6-27b:Q8_0"}
    )
    assert describe_catalogue("deepseek-v3").mtp is None
    assert describe_catalogue("deepseek-v3+mtp").mtp_layers == 1
    assert describe_catalogue("qwen3-8b+mtp").mtp is None


def test_drafters_by_name() -> None:
    assistant = describe_catalogue("gemma-4-31b-assistant:Q8_0")
    assert (assistant.kind, assistant.drafter and assistant.drafter.method) == ("drafter", "draft-mtp")
    assert assistant.drafter is not None
    assert assistant.drafter.target_width == describe_catalogue("gemma-4-31b").embedding_length
    eagle = describe_catalogue("qwen3-8b-eagle3:BF16")
    assert eagle.drafter is not None
    assert (eagle.drafter.method, eagle.drafter.vocabulary, eagle.drafter.own_embedding) == (
        "draft-eagle3",
        32000,
        True,
    )
    flash = describe_catalogue("qwen3.8-27b-dflash2")
    assert flash.drafter is not None
    assert (flash.kind, flash.drafter.method, flash.drafter.target_width) == ("drafter", "draft-dflash", 5120)


def test_published_totals_of_drafters() -> None:
    published: list[dict[str, Any]] = json.loads(resource("data", "drafters.json").read_text(encoding="utf-8"))
    totals = {row["params"] for row in published}
    for name in names()[len(ROWS) :]:
        model = describe_catalogue(name)
        assert model.kind == "drafter"
        assert min(abs(model.total_parameters / total - 1) for total in totals) < 0.005, name


@pytest.mark.parametrize(
    ("written", "slug"),
    [
        ("Qwen3-4B-Instruct-2507", "qwen3-4b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-coder-7b"),
        ("Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("gemma-3-27b-it", "gemma-3-27b"),
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("GPT-OSS-120B", "gpt-oss-120b"),
        ("unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", "qwen3-coder-30b-a3b"),
        ("Qwen3.6-27B-MTP-GGUF", "qwen3.6-27b"),
        ("z-lab/Qwen3.8-27B-DFlash2", "qwen3.8-27b-dflash2"),
        ("qwen2.5-math-72b", "qwen2.5-72b"),
    ],
)
def test_other_spellings(written: str, slug: str) -> None:
    assert find(written) == slug


@pytest.mark.parametrize(
    ("typo", "expected"),
    [("qwen3.6-27", "qwen3.6-27b"), ("lama-3.1-8b", "llama-3.1-8b"), ("gemma3-27b", "gemma-3-27b"),
     ("gptoss-20b", "gpt-oss-20b"), ("qwen3.5-27b-a3b", "qwen3.5-27b"), ("phi4", "phi-4"),
     ("qwen3-coder", "qwen3-coder-next")],
)  # fmt: skip
def test_near_misses_suggest_the_name(typo: str, expected: str) -> None:
    assert expected in suggestions(typo)
    with pytest.raises(UnknownModelError, match="Did you mean"):
        describe_catalogue(typo)


def test_unknown_names_and_file_types() -> None:
    with pytest.raises(UnknownModelError, match="no model called xyzzy"):
        describe_catalogue("xyzzy")
    with pytest.raises(UnknownModelError, match=r"Q4_X .* is not a GGUF file type. Did you mean"):
        describe_catalogue("qwen3-8b:Q4_X")
    assert parse_name("qwen3-8b:Q4_K_M+mtp") == ("qwen3-8b", "Q4_K_M", True)
    assert parse_name("nobody/knows") is None
    assert normalise("some-model-GGUF") == "some-model"


@pytest.mark.parametrize(
    "label", ["Q4_K_M", "q4_k_m", "UD-Q4_K_XL", "Q4_K_XL", "mxfp4", "IQ2_M", "fp16", "Q6_K_L", "UD-IQ1_S"]
)
def test_file_type_spellings(label: str) -> None:
    model = describe_catalogue(f"qwen3-30b-a3b:{label}")
    assert model.quant == mixes.canonical(label)
    assert model.size_bytes > 0


def test_every_file_type_of_every_shape_family() -> None:
    one_each = {row["gguf_arch"]: row["slug"] for row in ROWS}
    labels = [*mixes.DEFAULT_TYPES, "UD-Q2_K_XL", "UD-Q4_K_XL", "UD-Q8_K_XL", "UD-IQ2_M"]
    for number, slug in enumerate(one_each.values()):
        sizes = {}
        for label in labels[number % 6 :: 6]:  # a sixth each keeps this short, and together they are all
            model = describe_catalogue(f"{slug}:{label}")
            sizes[label] = model.size_bytes
            assert all(g.bytes >= 0 for g in model.weights)
            assert model.decode_bytes <= model.size_bytes
        assert max(sizes.values()) > min(sizes.values())


def test_default_file_type_is_marked() -> None:
    assert any("no file type" in a for a in describe_catalogue("qwen3-8b").assumptions)
    assert describe_catalogue("gpt-oss-20b").quant == "MXFP4"
    assert not describe_catalogue("qwen3-8b:Q8_0").assumptions


def test_recognises_only_the_same_shape() -> None:
    model = describe_catalogue("qwen3-8b:Q8_0")
    as_file = model.model_copy(update={"source": "gguf", "catalogue_slug": None, "name": "My-Finetune-Q8_0"})
    assert recognise(as_file) == "qwen3-8b"
    assert recognise(as_file.model_copy(update={"embedding_length": 4000})) is None
    same = describe_catalogue("qwen2.5-7b").model_copy(
        update={"source": "gguf", "name": "DeepSeek-R1-Distill-Qwen-7B-Q4_K_M"}
    )
    assert recognise(same) == "deepseek-r1-distill-qwen-7b"


def test_descriptions_survive_json() -> None:
    for name in ("qwen3.6-35b-a3b:UD-Q4_K_XL", "gemma-4-e2b", "qwen3-8b-eagle3"):
        model = describe_catalogue(name)
        assert ModelDescription.model_validate_json(model.model_dump_json()) == model
