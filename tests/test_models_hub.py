"""The Hub through the real client, against a hub on the loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from gguf_files import header_bytes, llama, vocabulary
from hub import LoopbackHub, serve_hub
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import (
    EXIT_INPUT,
    EXIT_NETWORK,
    AdvisorError,
    HubError,
    InputError,
    ModelFileError,
    UnknownModelError,
)
from advisor.models import hub as hub_module
from advisor.models.hfconfig import describe_repository
from advisor.models.hub import choose_file, parse_place
from advisor.models.reference import describe
from advisor.models.tokenizer import compare

BLOCK = 1 << 16


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LoopbackHub]:
    import huggingface_hub

    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_HUB_OFFLINE",
        "http_proxy",
        "HTTP_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setenv("ADVISOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(hub_module, "BLOCK", BLOCK)
    monkeypatch.setattr(hub_module, "SHARD_BLOCK", 4096)
    with serve_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        yield running
    close = getattr(huggingface_hub, "close_session", None)
    if close is not None:
        close()


def gguf(
    layers: int = 2,
    words: int = 64,
    split: dict[str, int] | None = None,
    part: slice = slice(None),
    **options: Any,
) -> bytes:
    keys, tensors = llama(layers=layers, vocab=words, width=256)
    whole = {**keys, **vocabulary(words, **options)} if split is None or split["split.no"] == 0 else {}
    head, size = header_bytes({**whole, **(split or {})}, tensors[part])
    return head + bytes(size)


def header_size(data: bytes) -> int:
    from test_models_gguf import read_bytes

    return read_bytes(data).data_offset


# -- GGUF by ranges -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("large", [True, False])
def test_header_is_all_that_travels(hub: LoopbackHub, large: bool) -> None:
    data = gguf(words=20_000)
    hub.add("org/Small-GGUF", {"small-Q8_0.gguf": data, "README.md": b"hello"}, large=large)
    model = describe("org/Small-GGUF/small-Q8_0.gguf")
    assert (model.kind, model.source, model.name) == ("model", "hub-gguf", "small-Q8_0")
    assert model.size_bytes == len(data)
    assert model.reference == "org/Small-GGUF/small-Q8_0.gguf"
    needed = header_size(data)
    assert needed > 5 * BLOCK
    assert needed <= hub.sent("small-Q8_0.gguf") <= needed + BLOCK
    assert not hub.asked("GET", "README")


@pytest.mark.parametrize(
    "reference",
    ["org/r:Q4_K_M", "org/r:q4_k_m", "hf:org/r:Q4_K_M", "org/r/sub/m-Q4_K_M.gguf", "hf:org/r/sub/m-Q4_K_M.gguf",
     "org/r@main:Q4_K_M", "org/r", "https://huggingface.co/org/r/blob/main/sub/m-Q4_K_M.gguf",
     "https://huggingface.co/org/r/resolve/main/sub/m-Q4_K_M.gguf?download=true", "hf.co/org/r:Q4_K_M",
     "https://huggingface.co/org/r", "https://huggingface.co/org/r/tree/main"],
)  # fmt: skip
def test_ways_to_write_it(hub: LoopbackHub, reference: str) -> None:
    files = {"mmproj-F16.gguf": b"x", "imatrix.gguf": b"x", "mtp-m-Q4_K_M.gguf": b"x", "sub/m-Q4_K_M.gguf": gguf(),
             "m-Q8_0.gguf": gguf(3), "m-UD-Q4_K_XL.gguf": gguf(4)}  # fmt: skip
    hub.add("org/r", files)
    model = describe(reference)
    assert len(model.layers) == 2
    assert model.name == "m-Q4_K_M"


def test_default_file_type_is_marked(hub: LoopbackHub) -> None:
    hub.add("org/r", {"m-Q8_0.gguf": gguf(3), "m-IQ1_S.gguf": gguf()})
    model = describe("org/r")
    assert len(model.layers) == 3
    assert any("m-Q8_0.gguf" in a for a in model.assumptions)
    assert not describe("org/r", quant="IQ1_S").assumptions


def test_shards_of_a_set(hub: LoopbackHub) -> None:
    files = {}
    for i in range(3):
        split = {"split.no": i, "split.count": 3, "split.tensors.count": len(llama(layers=2)[1])}
        files[f"Q4_0/big-Q4_0-{i + 1:05d}-of-00003.gguf"] = gguf(split=split, part=slice(i, None, 3), words=3000)
    hub.add("org/Big-GGUF", files)
    model = describe("org/Big-GGUF:Q4_0")
    assert len(model.layers) == 2
    assert model.size_bytes == sum(len(d) for d in files.values())
    assert sum(len(d) for d in files.values()) > 4 * sum(r.sent for r in hub.requests)
    again = describe("org/Big-GGUF/Q4_0/big-Q4_0-00002-of-00003.gguf")
    assert again.layers == model.layers
    asked = len(hub.requests)
    assert describe("org/Big-GGUF/Q4_0/big-Q4_0-00003-of-00003.gguf", offline=True).layers == model.layers
    assert len(hub.requests) == asked
    del files["Q4_0/big-Q4_0-00003-of-00003.gguf"]
    with pytest.raises(UnknownModelError, match=r"has no file .*00003-of-00003"):
        describe("org/Big-GGUF:Q4_0")


def test_second_look_asks_for_the_etag_only(hub: LoopbackHub) -> None:
    repository = hub.add("org/r", {"m.gguf": gguf(words=3000)})
    first = describe("org/r/m.gguf")
    sent = hub.sent("m.gguf")
    assert describe("org/r/m.gguf") == first
    assert hub.sent("m.gguf") == sent
    repository.files["m.gguf"] = gguf(3, words=3000)
    assert len(describe("org/r/m.gguf").layers) == 3
    assert hub.sent("m.gguf") > sent


def test_damaged_cache_is_read_again(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/r", {"m.gguf": gguf(words=300)})
    first = describe("org/r/m.gguf")
    for path in (tmp_path / "cache" / "hub").iterdir():
        path.write_bytes(path.read_bytes()[:50])
    assert describe("org/r/m.gguf") == first


def test_tokens_of_hub_files_can_be_compared(hub: LoopbackHub) -> None:
    hub.add("org/r", {"a.gguf": gguf(words=900), "b.gguf": gguf(words=900, changed={700: "other"})})
    one, two = describe("org/r/a.gguf"), describe("org/r/b.gguf")
    verdict = compare(one, two)
    assert verdict.compatible is False
    assert 'Token 700 is "tok700" in the target and "other" in the draft' in verdict.reason


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"<html><title>no</title>" + bytes(500), "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer"),
        (gguf()[:200], "ends inside its header"),
        (gguf()[:-4000], "4,000 of .* bytes are missing"),
        (b"", "empty|how large"),
    ],
)
def test_bad_files_on_the_hub(hub: LoopbackHub, data: bytes, message: str) -> None:
    hub.add("org/r", {"m.gguf": data})
    with pytest.raises(AdvisorError, match=message):
        describe("org/r/m.gguf")


# -- servers that misbehave ---------------------------------------------------------------------------------------


def test_server_without_ranges(hub: LoopbackHub) -> None:
    data = gguf(layers=40, words=20_000)
    hub.add("org/r", {"m.gguf": data})
    hub.fault = "no ranges"
    model = describe("org/r/m.gguf")
    assert len(model.layers) == 40
    assert len(hub.asked("GET", "/cdn/")) == 1


def test_server_that_stops_serving_ranges(hub: LoopbackHub) -> None:
    hub.add("org/r", {"m.gguf": gguf(words=20_000)})
    hub.fault = "no ranges later"
    with pytest.raises(HubError, match="does not serve parts"):
        describe("org/r/m.gguf")


def test_server_that_sends_more_than_asked(hub: LoopbackHub) -> None:
    hub.add("org/r", {"m.gguf": gguf(words=3000)})
    hub.fault = "greedy"
    assert describe("org/r/m.gguf").kind == "model"


@pytest.mark.parametrize(
    ("fault", "message"),
    [("wrong range", "another part of the file"), ("other size", "changed on the server"), ("busy", "HTTP 429"),
     ("broken", "HTTP 503")],
)  # fmt: skip
def test_faults(hub: LoopbackHub, fault: str, message: str) -> None:
    hub.add("org/r", {"m.gguf": gguf(words=20_000)})
    hub.fault = fault
    with pytest.raises(HubError, match=message) as caught:
        describe("org/r/m.gguf")
    assert caught.value.exit_code == EXIT_NETWORK
    assert "secret" not in str(caught.value)


def test_connection_that_breaks(hub: LoopbackHub) -> None:
    hub.add("org/r", {"m.gguf": gguf(words=2000)})
    hub.fault = "cut"
    assert describe("org/r/m.gguf").kind == "model"  # short answers are simply continued


def test_nobody_there(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{free.getsockname()[1]}")
    with pytest.raises(HubError, match="could not be reached") as caught:
        describe("org/r/m.gguf")
    assert "\n" not in str(caught.value)


# -- who may read what --------------------------------------------------------------------------------------------


def test_gated_repository(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/gated", {"m.gguf": gguf()}, access="gated")
    hub.token = "hf_secret_token"
    for reference in ("org/gated/m.gguf", "org/gated"):
        with pytest.raises(HubError, match=r"is gated: .* Accept it at .*/org/gated, then set HF_TOKEN"):
            describe(reference)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_token")
    with pytest.raises(HubError) as caught:
        describe("org/gated/m.gguf")
    assert "hf_wrong_token" not in str(caught.value)
    monkeypatch.setenv("HF_TOKEN", "hf_secret_token")
    assert describe("org/gated/m.gguf").kind == "model"


def test_token_goes_to_the_hub_alone(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/r", {"m.gguf": gguf(words=3000)})
    monkeypatch.setenv("HF_TOKEN", "hf_secret_token")
    describe("org/r/m.gguf")
    assert any(r.authorization == "Bearer hf_secret_token" for r in hub.asked("HEAD", "/resolve/"))
    assert hub.asked("GET", "/cdn/")
    assert all(r.authorization is None for r in hub.requests if "/cdn/" in r.path)


def test_refused_without_a_reason(hub: LoopbackHub) -> None:
    hub.add("org/r", {"m.gguf": gguf()}, access="refused")
    with pytest.raises(HubError, match=r"refused org/r \(HTTP 403\).*licence.*HF_TOKEN"):
        describe("org/r/m.gguf")


def test_what_does_not_exist(hub: LoopbackHub) -> None:
    hub.add("org/r", {"model-Q8_0.gguf": gguf(), "model-Q4_0.gguf": gguf()})
    hub.add("org/hidden", {"m.gguf": gguf()}, access="private")
    with pytest.raises(UnknownModelError, match=r"no file model-Q8.gguf. It has model-Q8_0.gguf"):
        describe("org/r/model-Q8.gguf")
    with pytest.raises(UnknownModelError, match=r"no file of type Q2_K. It has: Q4_0, Q8_0"):
        describe("org/r:Q2_K")
    with pytest.raises(UnknownModelError, match="no revision v9"):
        describe("org/r@v9/model-Q8_0.gguf")
    for reference in ("org/hidden", "org/nowhere", "org/nowhere/m.gguf"):
        with pytest.raises(UnknownModelError, match="or it is private") as caught:
            describe(reference)
        assert caught.value.exit_code == EXIT_INPUT
    with pytest.raises(UnknownModelError, match="The catalogue has qwen3-8b"):
        describe("someone/Qwen3-8B-GGUF/x.gguf")


@pytest.mark.parametrize("text", ["hf:", "hf:org", "hf:a/../b", "https://huggingface.co/org", "https://example.org/index.html",
                                  "hf:org/repo/readme.md", "hf:-x/y", "hf:org/re po"])  # fmt: skip
def test_references_that_are_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_place(text)


# -- offline ------------------------------------------------------------------------------------------------------


def test_offline_reads_caches_only(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.add("org/r", {"m.gguf": gguf(words=3000)})
    online = describe("org/r/m.gguf")
    before = len(hub.requests)
    assert describe("org/r/m.gguf", offline=True).layers == online.layers
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert describe("org/r/m.gguf").layers == online.layers
    with pytest.raises(HubError, match="not in any cache, and the network is switched off"):
        describe("org/other/m.gguf")
    snapshot = tmp_path / "hf" / "models--org--downloaded" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "d-Q8_0.gguf").write_bytes(gguf(5))
    assert len(describe("org/downloaded").layers) == 5
    assert len(describe("org/downloaded:Q8_0").layers) == 5
    by_name = describe("Qwen/Qwen3-8B-GGUF:Q8_0")
    assert by_name.catalogue_slug == "qwen3-8b"
    assert any("offline" in a for a in by_name.assumptions)
    assert len(hub.requests) == before


# -- repositories without GGUF ------------------------------------------------------------------------------------

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "tie_word_embeddings": False, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
}  # fmt: skip


def config_repository(hub: LoopbackHub, config: object, **options: Any) -> None:
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": b"x"}
    hub.add("org/weights", files, large=False, **options)


@pytest.mark.parametrize("nest", [(), ("text_config",), ("llm_config",), ("thinker_config", "text_config")])
def test_config_of_a_known_shape(hub: LoopbackHub, nest: tuple[str, ...]) -> None:
    config: dict[str, Any] = dict(QWEN3_8B)
    for name in reversed(nest):
        config = {"model_type": "wrapper", "vision_config": {"hidden_size": 99}, "vocab_size": 1, name: config}
    config_repository(hub, config, safetensors=8_190_735_360)
    model = describe("org/weights")
    assert model.source == "hub-config"
    assert model.total_parameters == 8_190_735_360
    assert model.quant == "BF16"
    assert model.catalogue_slug == "qwen3-8b"
    assert describe("org/weights:Q4_K_M").size_bytes == pytest.approx(describe("qwen3-8b:Q4_K_M").size_bytes, rel=0.001)


def test_config_of_a_new_shape(hub: LoopbackHub) -> None:
    config = {**QWEN3_8B, "num_hidden_layers": 20, "hidden_size": 2048, "num_attention_heads": 16, "vocab_size": 50_000}
    config_repository(hub, config, safetensors=5)
    model = describe("org/weights")
    assert len(model.layers) == 20
    assert {x.key_width for x in model.layers} == {8 * 128}
    attention = 2048 * 128 * (16 + 8 + 8 + 16) + 2 * 128
    block = attention + 3 * 2048 * 12288 + 2 * 2048
    assert model.total_parameters == 20 * block + 2 * 50_000 * 2048 + 2048
    assert any("counted from the config" in a for a in model.assumptions)


def test_mixtures_and_windows_from_configs(hub: LoopbackHub) -> None:
    mixture = {**QWEN3_8B, "model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 16,
               "num_experts_per_tok": 2, "moe_intermediate_size": 256}  # fmt: skip
    config_repository(hub, mixture)
    model = describe("org/weights")
    assert (model.layers[0].expert_count, model.layers[0].expert_used) == (16, 2)
    assert model.layers[0].expert_parameters == 16 * 3 * 4096 * 256
    sliding = {**QWEN3_8B, "model_type": "gemma3_text", "num_hidden_layers": 12, "sliding_window": 512,
               "tie_word_embeddings": True}  # fmt: skip
    config_repository(hub, sliding)
    model = describe("org/weights")
    assert [x.window for x in model.layers] == ([512] * 5 + [None]) * 2
    hybrid = {**QWEN3_8B, "model_type": "qwen3_5_text", "num_hidden_layers": 8, "full_attention_interval": 4,
              "linear_value_head_dim": 128, "linear_num_value_heads": 32, "linear_num_key_heads": 16,
              "linear_conv_kernel_dim": 4, "mtp_num_hidden_layers": 1}  # fmt: skip
    config_repository(hub, hybrid)
    model = describe("org/weights")
    assert [x.mixer for x in model.layers] == (["recurrent"] * 3 + ["full"]) * 2
    assert model.mtp_layers == 1


@pytest.mark.parametrize(
    "missing", ["hidden_size", "num_hidden_layers", "vocab_size", "num_attention_heads", "intermediate_size"]
)
def test_a_missing_size_is_never_filled_in(hub: LoopbackHub, missing: str) -> None:
    config = {k: v for k, v in {**QWEN3_8B, "num_hidden_layers": 20, "hidden_size": 2048}.items() if k != missing}
    config_repository(hub, config)
    with pytest.raises(InputError, match=f"states no {missing}"):
        describe("org/weights")


@pytest.mark.parametrize(
    "config",
    [[], "text", {"model_type": "qwen3"}, {**QWEN3_8B, "hidden_size": "4096"}, {**QWEN3_8B, "hidden_size": -1},
     {**QWEN3_8B, "hidden_size": 2**40}, {"model_type": "whisper", "hidden_size": 8}, {}],
)  # fmt: skip
def test_unusable_configs(hub: LoopbackHub, config: object) -> None:
    config_repository(hub, config)
    with pytest.raises((InputError, HubError)) as caught:
        describe("org/weights")
    assert "\n" not in str(caught.value)


@settings(max_examples=150, deadline=2000)
@given(
    st.sampled_from(["qwen3", "llama", "gemma3_text", "qwen3_5_text", "deepseek_v3", "gpt_oss", "mixtral", "cohere2"]),
    st.dictionaries(
        st.sampled_from(
            [
                "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads",
                "num_key_value_heads", "head_dim", "intermediate_size", "num_experts", "num_local_experts",
                "num_experts_per_tok", "moe_intermediate_size", "kv_lora_rank", "qk_rope_head_dim",
                "sliding_window", "layer_types", "full_attention_interval", "linear_num_value_heads",
                "n_shared_experts", "text_config",
            ]
        ),
        st.one_of(st.integers(-5, 2**40), st.integers(0, 9), st.none(), st.booleans(), st.text(max_size=4),
                  st.lists(st.sampled_from(["full_attention", "x"]), max_size=3), st.floats(),
                  st.just({"hidden_size": 3})),
        max_size=9,
    ),
)  # fmt: skip
def test_wild_configs_never_crash(kind: str, changes: dict[str, Any]) -> None:
    config = {**QWEN3_8B, "num_hidden_layers": 3, "model_type": kind, **changes}
    with suppress(AdvisorError):
        model = describe_repository("org/repo", config, None, None, "org/repo")
        assert len(model.layers) <= 512
        assert model.decode_bytes >= 0


def test_repository_with_neither(hub: LoopbackHub) -> None:
    hub.add("org/empty", {"README.md": b"x"})
    with pytest.raises(UnknownModelError, match=r"has no file config.json"):
        describe("org/empty")


# -- choosing -----------------------------------------------------------------------------------------------------


def test_choice_among_files() -> None:
    place = parse_place("org/r")
    names = ["a-IQ2_M.gguf", "a-Q8_0.gguf", "a-Q4_K_S.gguf", "mmproj.gguf", "a-BF16-00001-of-00002.gguf"]
    assert choose_file(names, place) == "a-Q4_K_S.gguf"
    assert choose_file(names, place._replace(quant="bf16")) == "a-BF16-00001-of-00002.gguf"
    assert choose_file(["README.md"], place) is None
    assert choose_file(["mtp-x.gguf"], place) == "mtp-x.gguf"
    assert choose_file(["x-UD-Q4_K_XL.gguf"], place._replace(quant="Q4_K_XL")) == "x-UD-Q4_K_XL.gguf"


def test_any_other_server(hub: LoopbackHub) -> None:
    hub.add("org/r", {"m.gguf": gguf(words=3000)}, large=False)
    other = hub.cdn.replace("localhost", "127.0.0.1.nip.invalid")
    model = describe(f"{hub.cdn}/cdn/org/r/m.gguf")
    assert model.kind == "model"
    assert all(r.authorization is None for r in hub.asked("GET", "/cdn/"))
    with pytest.raises(HubError, match="could not be reached"):
        describe(f"{other}/m.gguf")
    with pytest.raises(UnknownModelError, match="has no file"):
        describe(f"{hub.cdn}/nothing/m.gguf")


def test_as_a_command(hub: LoopbackHub, tmp_path: Path) -> None:
    hub.add("org/gated", {"m.gguf": gguf()}, access="gated")
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path), "HF_TOKEN": "hf_secret_token"}
    done = subprocess.run(
        [sys.executable, "-m", "advisor", "inspect", "org/gated/m.gguf"],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == EXIT_NETWORK
    assert done.stdout == ""
    assert done.stderr.startswith("advisor: org/gated is gated")
    assert "Traceback" not in done.stderr
    assert "hf_secret_token" not in done.stderr


def test_header_beyond_any_model(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.models.gguf.MAX_HEADER", 100_000)
    hub.add("org/r", {"m.gguf": gguf(words=20_000)})
    with pytest.raises(ModelFileError, match="header is longer"):
        describe("org/r/m.gguf")
    assert hub.sent("m.gguf") <= 100_000 + BLOCK
