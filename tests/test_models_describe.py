"""Roles, layers, caches, states, experts, MTP and drafters, from headers of every shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf_files import Tensor, block, header_bytes, llama, vocabulary, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from test_models_gguf import Memory

from advisor.errors import ModelFileError
from advisor.models.describe import describe_header
from advisor.models.description import ModelDescription
from advisor.models.gguf import parse
from advisor.models.pairs import refusal


def describe(keys: dict[str, Any], tensors: list[Tensor], name: str = "model.gguf", **options: Any) -> ModelDescription:
    head, size = header_bytes(keys, tensors, **options)
    return describe_header(parse(Memory(head, len(head) + size), name))


def roles(model: ModelDescription) -> dict[str, int]:
    """Parameters by role."""
    found: dict[str, int] = {}
    for group in model.weights:
        found[group.role] = found.get(group.role, 0) + group.parameters
    return found


def test_dense_model() -> None:
    keys, tensors = llama(layers=3, width=64, vocab=100)
    model = describe({**keys, **vocabulary(100)}, tensors)
    assert model.kind == "model"
    assert not model.assumptions
    assert not model.notes
    assert roles(model) == {
        "embedding": 6400,
        "head": 6400,
        "norm": 7 * 64,
        "attention": 3 * (2 * 64 * 64 + 2 * 64 * 32),
        "ffn": 3 * 3 * 64 * 128,
    }
    assert model.active_parameters == model.total_parameters - 6400
    assert model.decode_bytes == 2 * (model.active_parameters - 7 * 64) + 4 * 7 * 64
    assert model.kv_bytes_per_token == 3 * 2 * (32 + 32)
    assert [layer.mixer for layer in model.layers] == ["full"] * 3
    assert model.vocabulary_size == 100


def test_tied_head_is_read_whole() -> None:
    keys, tensors = llama(tied=True)
    model = describe(keys, tensors)
    assert model.tied_head
    assert roles(model)["head"] == 64 * 64
    assert "embedding" not in roles(model)
    assert model.active_parameters == model.total_parameters


@pytest.mark.parametrize(("heads", "width"), [(4, 64), (1, 16), (2, 32)])
def test_grouped_and_multi_query(heads: int, width: int) -> None:
    keys, tensors = llama(attention__head_count_kv=heads)
    tensors = [
        (n, (64, width), q) if n.endswith(("attn_k.weight", "attn_v.weight")) else (n, s, q) for n, s, q in tensors
    ]
    assert {layer.key_width for layer in describe(keys, tensors).layers} == {width}


def test_missing_kv_heads_are_taken_from_the_tensors() -> None:
    keys, tensors = llama()
    del keys["llama.attention.head_count_kv"]
    model = describe(keys, tensors)
    assert model.layers[0].key_width == 32
    assert any("head_count_kv" in a for a in model.assumptions)


def test_fused_attention_without_kv_heads_assumes_all_heads() -> None:
    keys, tensors = llama(layers=1)
    del keys["llama.attention.head_count_kv"]
    tensors = [t for t in tensors if not t[0].endswith(("attn_k.weight", "attn_v.weight", "attn_q.weight"))]
    tensors.append(("blk.0.attn_qkv.weight", (64, 192), "F16"))
    model = describe(keys, tensors)
    assert model.layers[0].key_width == 64
    assert any("as many key/value heads as heads" in a for a in model.assumptions)


def test_convolution_hybrid_with_an_array_of_heads() -> None:
    keys, tensors = llama(layers=4, arch="lfm2", attention__head_count_kv=[0, 0, 2, 0], shortconv__l_cache=3)
    tensors = [t for t in tensors if not (".attn_" in t[0] and "norm" not in t[0]) or t[0].startswith("blk.2.")]
    for i in (0, 1, 3):
        tensors += [
            (f"blk.{i}.shortconv.conv.weight", (3, 64), "F32"),
            (f"blk.{i}.shortconv.in_proj.weight", (64, 192), "F16"),
            (f"blk.{i}.shortconv.out_proj.weight", (64, 64), "F16"),
        ]
    model = describe(keys, tensors)
    assert [layer.mixer for layer in model.layers] == ["convolution", "convolution", "full", "convolution"]
    assert [layer.key_width for layer in model.layers] == [0, 0, 32, 0]
    assert model.state_bytes == 3 * 4 * 64 * 2
    assert roles(model)["convolution"] == 3 * (3 * 64 + 4 * 64 * 64)


def delta_net(i: int, width: int = 64, groups: int = 2, heads: int = 4, state: int = 16) -> list[Tensor]:
    inner, p = heads * state, f"blk.{i}."
    channels = 2 * groups * state + inner
    return [
        (p + "attn_norm.weight", (width,), "F32"), (p + "post_attention_norm.weight", (width,), "F32"),
        (p + "attn_qkv.weight", (width, channels), "F16"), (p + "attn_gate.weight", (width, inner), "F16"),
        (p + "ssm_conv1d.weight", (4, channels), "F32"), (p + "ssm_dt.bias", (heads,), "F32"),
        (p + "ssm_a", (heads,), "F32"), (p + "ssm_alpha.weight", (width, heads), "F16"),
        (p + "ssm_beta.weight", (width, heads), "F16"), (p + "ssm_norm.weight", (state,), "F32"),
        (p + "ssm_out.weight", (inner, width), "F16"), (p + "ffn_gate.weight", (width, 128), "F16"),
        (p + "ffn_up.weight", (width, 128), "F16"), (p + "ffn_down.weight", (128, width), "F16"),
    ]  # fmt: skip


def qwen35(nextn: int = 1, tensors_of_mtp: bool = True) -> tuple[dict[str, Any], list[Tensor]]:
    """Four blocks, three of them gated delta nets, and an MTP block."""
    keys, _ = llama(
        layers=4 + nextn, arch="qwen35", ssm__conv_kernel=4, ssm__state_size=16, ssm__group_count=2,
        ssm__time_step_rank=4, ssm__inner_size=64, full_attention_interval=4, nextn_predict_layers=nextn,
    )  # fmt: skip
    tensors: list[Tensor] = [("token_embd.weight", (64, 64), "F16"), ("output_norm.weight", (64,), "F32")]
    for i in range(3):
        tensors += delta_net(i)
    tensors += block(3, 64, 128, 32, 128)
    if tensors_of_mtp:
        tensors += block(4, 64, 128, 32, 128)
        tensors += [("blk.4.nextn.eh_proj.weight", (128, 64), "F16"), ("blk.4.nextn.enorm.weight", (64,), "F32")]
    return keys, tensors


def test_gated_delta_net_and_mtp() -> None:
    model = describe(*qwen35())
    assert [layer.mixer for layer in model.layers] == ["recurrent", "recurrent", "recurrent", "full"]
    assert model.state_bytes == 3 * 4 * (3 * (2 * 2 * 16 + 64) + 16 * 64)
    assert model.mtp_layers == 1
    assert model.mtp is not None
    assert (model.mtp.key_width, model.mtp.value_width, model.mtp.head_bytes) == (32, 32, 0)
    assert roles(model)["mtp"] == model.mtp.parameters
    assert model.kv_bytes_per_token == 2 * 64
    without = describe(*qwen35(nextn=1, tensors_of_mtp=False))
    assert model.decode_bytes == without.decode_bytes


def test_mtp_key_without_tensors_is_no_mtp() -> None:
    model = describe(*qwen35(tensors_of_mtp=False))
    assert model.mtp is None
    assert len(model.layers) == 4
    assert any("holds none of their tensors" in note for note in model.notes)


def test_mtp_tensors_without_key_are_never_read() -> None:
    keys, tensors = qwen35()
    del keys["qwen35.nextn_predict_layers"]
    model = describe(keys, tensors)
    assert model.mtp is None
    assert roles(model)["unused"] > 0
    assert any("without nextn_predict_layers" in note for note in model.notes)


def test_mtp_of_an_architecture_without_a_graph() -> None:
    keys, tensors = llama(layers=3, arch="exaone4", nextn_predict_layers=1)
    tensors.append(("blk.2.nextn.eh_proj.weight", (128, 64), "F16"))
    model = describe(keys, tensors)
    assert model.mtp is None
    assert any("no MTP graph" in note for note in model.notes)


def test_mtp_sidecar_is_a_drafter() -> None:
    keys, tensors = qwen35()
    model = describe(keys, [t for t in tensors if not t[0].startswith(("blk.0", "blk.1", "blk.2", "blk.3"))])
    assert model.kind == "drafter"
    assert model.drafter is not None
    assert model.drafter.method == "draft-mtp"
    assert model.mtp_layers == 1
    assert model.layers == ()


def mixture(layers: int = 3, dense: int = 1, fused: bool = False, used: Any = 2) -> tuple[dict[str, Any], list[Tensor]]:
    keys, tensors = llama(layers=layers, arch="deepseek2", expert_count=8, leading_dense_block_count=dense)
    if used is not None:
        keys["deepseek2.expert_used_count"] = used
    tensors = [t for t in tensors if ".ffn_" not in t[0] or t[0].startswith("blk.0.") or "norm" in t[0]]
    for i in range(dense, layers):
        p = f"blk.{i}."
        tensors += [(p + "ffn_gate_inp.weight", (64, 8), "F32"), (p + "exp_probs_b.bias", (8,), "F32")]
        if fused:
            tensors.append((p + "ffn_gate_up_exps.weight", (64, 64, 8), "F16"))
        else:
            tensors += [(p + f"ffn_{n}_exps.weight", (64, 32, 8), "F16") for n in ("gate", "up")]
        tensors.append((p + "ffn_down_exps.weight", (32, 64, 8), "F16"))
        tensors += [(p + f"ffn_{n}_shexp.weight", (64, 32), "F16") for n in ("gate", "up")]
        tensors.append((p + "ffn_down_shexp.weight", (32, 64), "F16"))
    return keys, tensors


@pytest.mark.parametrize("fused", [False, True])
def test_mixture_with_a_dense_start_and_shared_experts(fused: bool) -> None:
    model = describe(*mixture(fused=fused))
    assert [layer.expert_count for layer in model.layers] == [0, 8, 8]
    found = roles(model)
    assert found["experts"] == 2 * 8 * 3 * 64 * 32
    assert found["shared_experts"] == 2 * 3 * 64 * 32
    assert found["router"] == 2 * (64 * 8 + 8)
    assert found["ffn"] == 3 * 64 * 128
    assert model.active_parameters == model.total_parameters - found["embedding"] - found["experts"] * 6 // 8


def test_experts_used_per_layer() -> None:
    model = describe(*mixture(used=[0, 2, 4]))
    assert [layer.expert_used for layer in model.layers] == [0, 2, 4]


def test_missing_experts_used_is_marked() -> None:
    model = describe(*mixture(used=None))
    assert model.layers[1].expert_used == 8
    assert any("every expert counted as used" in a for a in model.assumptions)


def test_experts_as_single_tensors() -> None:
    keys, tensors = llama(layers=1, expert_count=4, expert_used_count=2)
    tensors = [t for t in tensors if ".ffn_" not in t[0] or "norm" in t[0]]
    tensors.append(("blk.0.ffn_gate_inp.weight", (64, 4), "F32"))
    for e in range(4):
        tensors += [(f"blk.0.ffn_{n}.{e}.weight", (64, 64), "F16") for n in ("gate", "up", "down")]
    model = describe(keys, tensors)
    assert (model.layers[0].expert_count, model.layers[0].expert_used) == (4, 2)
    assert roles(model)["experts"] == 4 * 3 * 64 * 64


def latent(i: int, indexer: bool = False) -> list[Tensor]:
    p = f"blk.{i}."
    found: list[Tensor] = [
        (p + "attn_q_a.weight", (64, 32), "F16"), (p + "attn_q_b.weight", (32, 96), "F16"),
        (p + "attn_kv_a_mqa.weight", (64, 40), "F16"), (p + "attn_k_b.weight", (16, 32, 4), "F16"),
        (p + "attn_v_b.weight", (32, 16, 4), "F16"), (p + "attn_output.weight", (64, 64), "F16"),
        (p + "ffn_down.weight", (128, 64), "F16"),
    ]  # fmt: skip
    if indexer:
        found.append((p + "indexer.attn_k.weight", (64, 16), "F16"))
    return found


def test_latent_attention_caches_keys_only() -> None:
    keys, _ = llama(
        layers=2, arch="deepseek2", attention__head_count_kv=1, attention__key_length=40,
        attention__value_length=32, attention__key_length_mla=24, attention__value_length_mla=16,
    )  # fmt: skip
    tensors: list[Tensor] = [("token_embd.weight", (64, 64), "F16"), ("output.weight", (64, 64), "F16")]
    model = describe(keys, tensors + latent(0) + latent(1, indexer=True))
    assert [layer.mixer for layer in model.layers] == ["mla", "mla"]
    assert [(layer.key_width, layer.value_width) for layer in model.layers] == [(40, 0), (56, 0)]


def test_old_latent_files_cache_every_head() -> None:
    keys, _ = llama(layers=1, arch="deepseek2", attention__key_length=24, attention__value_length=16)
    tensors: list[Tensor] = [
        ("token_embd.weight", (64, 64), "F16"), ("blk.0.attn_q.weight", (64, 96), "F16"),
        ("blk.0.attn_kv_a_mqa.weight", (64, 40), "F16"), ("blk.0.attn_kv_b.weight", (32, 128), "F16"),
        ("blk.0.attn_output.weight", (64, 64), "F16"),
    ]  # fmt: skip
    model = describe(keys, tensors)
    assert (model.layers[0].key_width, model.layers[0].value_width) == (4 * 24, 4 * 16)


@pytest.mark.parametrize(
    ("arch", "keys", "expected"),
    [
        ("gemma3", {"attention__sliding_window": 512}, [1, 1, 1, 1, 1, 0, 1, 1]),
        ("gemma2", {}, [1, 0, 1, 0, 1, 0, 1, 0]),
        ("gpt-oss", {"attention__sliding_window": 128}, [1, 0, 1, 0, 1, 0, 1, 0]),
        ("cohere2", {"attention__sliding_window": 4096}, [1, 1, 1, 0, 1, 1, 1, 0]),
        ("llama4", {}, [1, 1, 1, 0, 1, 1, 1, 0]),
        ("smallthinker", {"attention__sliding_window": 1}, [0, 1, 1, 1, 0, 1, 1, 1]),
        ("olmo2", {}, [0] * 8),
        ("llama", {"attention__sliding_window": 4096}, [0] * 8),
        ("phi3", {"attention__sliding_window": 2047}, [0] * 8),
        ("gemma3", {"attention__sliding_window": 512, "attention__sliding_window_pattern": 2}, [1, 0] * 4),
        (
            "gemma4",
            {"attention__sliding_window": 512, "attention__sliding_window_pattern": [True, True, False, True] * 2},
            [1, 1, 0, 1] * 2,
        ),
    ],
)
def test_sliding_windows(arch: str, keys: dict[str, Any], expected: list[int]) -> None:
    model = describe(*llama(layers=8, arch=arch, **keys))
    assert [int(layer.window is not None) for layer in model.layers] == expected
    assert {layer.mixer for layer in model.layers} <= {"sliding", "full"}


def test_window_bounds_the_cache() -> None:
    model = describe(*llama(layers=2, arch="gemma2", attention__sliding_window=100))
    per_layer = 2 * 64
    assert model.kv_bytes(1000) == per_layer * (100 + 1000)
    assert model.kv_bytes(50) == per_layer * 100


def test_shared_kv_layers_keep_no_cache_and_their_weights_are_unused() -> None:
    keys, tensors = llama(layers=4, arch="gemma4", attention__shared_kv_layers=2, attention__sliding_window=8,
                          attention__sliding_window_pattern=[True, False, True, False])  # fmt: skip
    tensors.append(("per_layer_token_embd.weight", (32, 64), "F16"))
    model = describe(keys, tensors)
    assert [layer.key_width for layer in model.layers] == [32, 32, 0, 0]
    found = roles(model)
    assert found["unused"] == 2 * 2 * 64 * 32
    assert found["per_layer_embedding"] == 32 * 64
    skipped = found["unused"] + found["per_layer_embedding"] + found["embedding"]
    assert model.active_parameters == model.total_parameters - skipped


def test_attention_without_values_caches_the_keys_twice() -> None:
    keys, tensors = llama(layers=1, arch="gemma4")
    model = describe(keys, [t for t in tensors if not t[0].endswith("attn_v.weight")])
    assert (model.layers[0].key_width, model.layers[0].value_width) == (32, 32)


def test_mamba_and_rwkv() -> None:
    keys, _ = llama(layers=1, arch="mamba2", ssm__conv_kernel=4, ssm__inner_size=128, ssm__state_size=16,
                    ssm__group_count=1, ssm__time_step_rank=8)  # fmt: skip
    del keys["mamba2.attention.head_count_kv"], keys["mamba2.attention.head_count"]
    tensors: list[Tensor] = [
        ("token_embd.weight", (64, 64), "F16"), ("blk.0.ssm_in.weight", (64, 300), "F16"),
        ("blk.0.ssm_conv1d.weight", (4, 160), "F32"), ("blk.0.ssm_out.weight", (128, 64), "F16"),
    ]  # fmt: skip
    model = describe(keys, tensors)
    assert model.layers[0].mixer == "recurrent"
    assert model.layers[0].state_elements == 3 * 160 + 128 * 16
    assert model.kv_bytes_per_token == 0
    keys, _ = llama(layers=1, arch="rwkv7", wkv__head_size=16, token_shift_count=2)
    model = describe(keys, [("token_embd.weight", (64, 64), "F16"), ("blk.0.time_mix_key.weight", (64, 64), "F16")])
    assert model.layers[0].state_elements == 2 * 64 + 64 * 16


def test_attention_beside_a_state_space_is_hybrid() -> None:
    keys, tensors = llama(layers=1, arch="falcon-h1", ssm__conv_kernel=4, ssm__inner_size=64, ssm__state_size=8)
    tensors.append(("blk.0.ssm_conv1d.weight", (4, 80), "F32"))
    model = describe(keys, tensors)
    assert model.layers[0].mixer == "hybrid"
    assert model.layers[0].key_width == 32
    assert model.layers[0].state_elements == 3 * 80 + 64 * 8


def test_looped_trunk_is_read_several_times() -> None:
    once, twice = describe(*llama(arch="nanbeige")), describe(*llama(arch="nanbeige", num_loops=2))
    assert twice.decode_bytes == 2 * once.decode_bytes - once.head_bytes


def test_unknown_architecture_is_described_by_its_tensors() -> None:
    model = describe(*llama(arch="brandnew"))
    assert model.kind == "model"
    assert model.layers[0].key_width == 32
    assert any("unknown to llama.cpp" in a for a in model.assumptions)


def test_absurd_counts_cost_nothing() -> None:
    model = describe(*llama(block_count=2**40, nextn_predict_layers=2**40, expert_count=2**31, num_loops=3))
    assert len(model.layers) == 2
    assert model.mtp is None


def test_missing_keys_are_named_and_the_rest_assumed() -> None:
    keys, tensors = llama()
    for name in ("block_count", "embedding_length", "attention.layer_norm_rms_epsilon"):
        del keys[f"llama.{name}"]
    model = describe(keys, tensors)
    assert len(model.layers) == 2
    assert model.embedding_length == 64
    assert any("block_count" in a for a in model.assumptions)
    assert any("llama.block_count" in n and "refuse" in n for n in model.notes)


def test_no_architecture_and_no_tensors() -> None:
    keys, tensors = llama()
    del keys["general.architecture"]
    with pytest.raises(ModelFileError, match="names no architecture"):
        describe(keys, tensors)
    with pytest.raises(ModelFileError, match="no tensors at all"):
        describe({"general.architecture": "llama"}, [])


@pytest.mark.parametrize(
    ("keys", "tensors", "kind"),
    [
        ({"general.architecture": "clip"}, [("v.patch_embd.weight", (8, 8), "F16")], "mmproj"),
        ({"general.architecture": "llama", "general.type": "mmproj"}, [("mm.0.weight", (8, 8), "F16")], "mmproj"),
        ({"general.architecture": "llama", "general.type": "adapter"}, [("a.lora_a", (8, 8), "F16")], "lora"),
        ({"general.architecture": "llama"}, [("blk.0.attn_q.weight.lora_a", (8, 8), "F16")], "lora"),
        ({"general.architecture": "imatrix", "general.type": "imatrix"}, [("x.in_sum2", (8,), "F32")], "imatrix"),
        ({"general.architecture": "llama", "imatrix.chunk_count": 5}, [("x.in_sum2", (8,), "F32")], "imatrix"),
        ({"general.architecture": "llama", **vocabulary()}, [], "vocabulary"),
        ({"general.architecture": "bert"}, [("token_embd.weight", (8, 8), "F16"), *block(0, 8, 8, 8, 8)], "other"),
        ({"general.architecture": "llada"}, [("token_embd.weight", (8, 8), "F16"), *block(0, 8, 8, 8, 8)], "other"),
        ({"general.architecture": "flux"}, [("double_blocks.0.img.weight", (8, 8), "F16")], "other"),
        ({"general.architecture": "dflash-draft"}, [("fc.weight", (8, 8), "F16"), *block(0, 8, 8, 8, 8)], "other"),
    ],
)
def test_files_that_are_no_models(keys: dict[str, Any], tensors: list[Tensor], kind: str) -> None:
    model = describe(keys, tensors)
    assert model.kind == kind
    message, hint = refusal(model)
    assert message.endswith(".")
    assert hint


def test_eagle3_with_a_trimmed_vocabulary() -> None:
    keys, _ = llama(layers=1, arch="eagle3", target_layers=[1, 3, 5], target_hidden_size=96)
    tensors: list[Tensor] = [
        ("fc.weight", (288, 64), "F16"), ("output.weight", (64, 32), "F16"), ("d2t", (32,), "I64"),
        ("output_norm.weight", (64,), "F32"), *block(0, 64, 64, 32, 128), ("blk.0.attn_norm_2.weight", (64,), "F32"),
    ]  # fmt: skip
    model = describe({**keys, **vocabulary(64)}, tensors)
    assert model.kind == "drafter"
    assert model.drafter is not None
    assert model.drafter.method == "draft-eagle3"
    assert (model.drafter.target_width, model.drafter.target_layers, model.drafter.vocabulary) == (96, (1, 3, 5), 32)
    assert model.drafter.own_head
    assert not model.drafter.own_embedding
    assert roles(model)["norm"] == 4 * 64


@pytest.mark.parametrize("markov", [False, True])
def test_dflash_and_dspark(markov: bool) -> None:
    keys, _ = llama(layers=2, arch="dflash", target_layers=[1, 5, 9, 13])
    tensors: list[Tensor] = [("fc.weight", (256, 64), "F16"), *block(0, 64, 64, 32, 128), *block(1, 64, 64, 32, 128)]
    if markov:
        tensors.append(("markov_w1.weight", (64, 64), "F16"))
    model = describe(keys, tensors)
    assert model.drafter is not None
    assert model.drafter.method == ("draft-dspark" if markov else "draft-dflash")
    assert model.drafter.block_size == 16
    assert any("blocks of 16" in a for a in model.assumptions)
    assert len(model.layers) == 2


@pytest.mark.parametrize("spelling", ["gemma4-assistant", "gemma4_assistant"])
def test_gemma4_assistant(spelling: str) -> None:
    keys, _ = llama(layers=2, arch=spelling, attention__head_count_kv=0, nextn_predict_layers=2,
                    embedding_length_out=256)  # fmt: skip
    tensors: list[Tensor] = [
        ("token_embd.weight", (64, 64), "F16"), ("nextn.pre_projection.weight", (512, 64), "F16"),
        ("nextn.post_projection.weight", (64, 256), "F16"), ("masked_embd_centroids.weight", (64, 32), "F16"),
    ]  # fmt: skip
    for i in range(2):
        tensors += [t for t in block(i, 64, 64, 32, 128) if "attn_k" not in t[0] and "attn_v" not in t[0]]
    model = describe(keys, tensors)
    assert model.architecture == "gemma4-assistant"
    assert model.kind == "drafter"
    assert model.drafter is not None
    assert (model.drafter.method, model.drafter.target_width) == ("draft-mtp", 256)
    assert model.kv_bytes_per_token == 0
    assert model.tied_head
    assert roles(model)["unused"] == 64 * 32
    assert any("early spelling" in n for n in model.notes) == ("_" in spelling)


def test_vision_tensors_inside_a_model_are_not_streamed() -> None:
    keys, tensors = llama()
    plain = describe(keys, tensors)
    model = describe(keys, [*tensors, ("v.blk.0.attn_q.weight", (64, 64), "F16")])
    assert model.decode_bytes == plain.decode_bytes
    assert any("Ollama" in n for n in model.notes)


@pytest.mark.parametrize(
    ("name", "file_type", "label"),
    [
        ("Qwen3-8B-UD-Q4_K_XL.gguf", 15, "UD-Q4_K_XL"),
        ("model-Q4_K_M.gguf", 15, "Q4_K_M"),
        ("model-Q8_0.gguf", 15, "Q4_K_M"),
        ("model-IQ3_XXS.gguf", None, "IQ3_XXS"),
        ("model.gguf", None, "F16"),
        ("model.gguf", 1024, "F16"),
    ],
)
def test_file_type_label(name: str, file_type: int | None, label: str) -> None:
    keys, tensors = llama()
    if file_type is not None:
        keys["general.file_type"] = file_type
    assert describe(keys, tensors, name).quant == label


def test_names_are_cleaned() -> None:
    keys, tensors = llama()
    model = describe(keys, tensors, "evil\x1b]0;title\x07\u202e.gguf")
    assert "\x1b" not in model.name
    assert "\u202e" not in model.name


def test_describes_a_real_file(gemma3: Path) -> None:
    from advisor.models.gguf import read_header

    model = describe_header(read_header(gemma3))
    assert (model.architecture, model.quant, model.tied_head) == ("gemma3", "Q4_K_M", True)
    assert model.total_parameters == 268_098_176
    assert [layer.index for layer in model.layers if layer.window is None] == [5, 11, 17]
    assert model.tokenizer is not None
    assert (model.tokenizer.type, model.tokenizer.add_bos, model.tokenizer.bos_id) == ("SPM", True, 2)


KEY_NAMES = [
    "block_count",
    "embedding_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "expert_count",
    "expert_used_count",
    "nextn_predict_layers",
    "attention.shared_kv_layers",
    "ssm.inner_size",
    "ssm.state_size",
    "num_loops",
    "vocab_size",
    "shortconv.l_cache",
    "context_length",
]


@settings(max_examples=120, deadline=2000)
@given(
    st.dictionaries(
        st.sampled_from(KEY_NAMES),
        st.one_of(
            st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1), st.floats(width=32), st.booleans(),
            st.text(max_size=5),
            st.lists(st.integers(-5, 2**31 - 1), max_size=6), st.lists(st.booleans(), max_size=6),
            st.lists(st.text(max_size=3), max_size=3),
        ),
        max_size=8,
    ),
    st.sampled_from(["llama", "gemma3", "gemma4", "qwen35", "lfm2", "gpt-oss", "deepseek2", "what"]),
)  # fmt: skip
def test_wild_keys_never_crash(keys: dict[str, Any], arch: str) -> None:
    """Any value under any key: a description comes out, with sizes that are those of the tensors."""
    plain, tensors = llama(layers=2, arch=arch)
    tensors += delta_net(2)
    model = describe({**plain, **{f"{arch}.{k}": v for k, v in keys.items()}}, tensors)
    assert sum(g.parameters for g in model.weights) == model.total_parameters
    assert len(model.layers) <= 3
    ModelDescription.model_validate_json(model.model_dump_json())
    assert model.decode_bytes >= 0
    assert model.kv_bytes_per_token >= 0


def test_a_file_written_by_the_reference_writer(tmp_path: Path) -> None:
    import numpy as np
    from gguf import GGUFWriter

    path = tmp_path / "written.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    for name, shape, quant in llama(layers=1)[1]:
        writer.add_tensor(name, np.zeros(shape[::-1], np.float32 if quant == "F32" else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    keys, tensors = llama(layers=1)
    from advisor.models.gguf import read_header

    ours = describe(keys, tensors)
    theirs = describe_header(read_header(path))
    assert theirs.weights == ours.weights
    assert theirs.layers == ours.layers


def test_write_helper_makes_sparse_files(tmp_path: Path) -> None:
    keys, tensors = llama(width=256)
    path = write_gguf(tmp_path / "a.gguf", keys, tensors)
    assert path.stat().st_size > 256 * 64 * 2
