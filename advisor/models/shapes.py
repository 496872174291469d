"""From a catalogue row to the tensors its GGUF would hold, so that a name is described by the same code as a file.

A row of ``data/models.json`` states the shape in GGUF terms; this module writes down every tensor with llama.cpp's
names. The totals are checked against the published weight counts in ``tests/test_models_catalogue.py``.
Layouts: ``src/models/*.cpp`` of llama.cpp b11434.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]
Shapes = list[tuple[str, tuple[int, ...]]]
Keys = dict[str, int | tuple[int | bool, ...]]

_FUSED_QKV = frozenset({"phi3", "chatglm"})
_FUSED_GATE_UP = frozenset({"phi3", "chatglm", "glm4"})
_POST_ATTENTION_ONLY = frozenset({"qwen35", "qwen35moe", "qwen3next", "gpt-oss"})


def _layered(value: Any, layer: int) -> int:
    """A scalar, or the entry of a per-layer list (the last one for the MTP layer behind the list)."""
    if isinstance(value, list):
        value = value[min(layer, len(value) - 1)]
    return int(value or 0)


class _Builder:
    def __init__(self, row: Row, mtp: bool) -> None:
        self.row = row
        self.extra: Row = row.get("extra") or {}
        self.arch: str = row["gguf_arch"]
        self.width: int = row["embedding_length"]
        self.layers: int = row["block_count"]
        self.mtp = int(row["nextn_predict_layers"] or 0) if mtp else 0
        self.kinds: list[str] = row.get("layer_kinds") or ["full"] * self.layers
        self.out: Shapes = []
        self.prefix = ""

    def add(self, name: str, *shape: int) -> None:
        self.out.append((self.prefix + name, shape))

    def norm(self, name: str, width: int | None = None) -> None:
        self.add(f"{name}.weight", width or self.width)
        if self.extra.get("norm_bias"):
            self.add(f"{name}.bias", width or self.width)

    # -- mixers -----------------------------------------------------------------------------------------------

    def attention(self, layer: int, kind: str, owns_cache: bool) -> None:
        h, x = self.width, self.extra
        sliding = kind == "sliding"
        heads = _layered(self.row["head_count"], layer)
        kv = _layered(self.row["head_count_kv"], layer)
        key = (self.row["key_length_swa"] if sliding else None) or self.row["key_length"]
        value = (self.row["value_length_swa"] if sliding else None) or self.row["value_length"]
        gated = bool(x.get("attn_gate"))
        inside = gated and self.arch.startswith("qwen3")
        if self.arch in _FUSED_QKV:
            self.add("attn_qkv.weight", h, heads * key + kv * (key + value))
            if x.get("attn_qkv_bias"):
                self.add("attn_qkv.bias", heads * key + kv * (key + value))
        else:
            self.add("attn_q.weight", h, heads * key * (2 if inside else 1))
            if x.get("attn_qkv_bias"):
                self.add("attn_q.bias", heads * key)
            with_kv = not x.get("no_kv_weights") and (owns_cache or bool(x.get("kv_weights_in_shared_layers")))
            if with_kv:
                self.add("attn_k.weight", h, kv * key)
                if x.get("attn_qkv_bias"):
                    self.add("attn_k.bias", kv * key)
                if not (x.get("v_from_k_on_full") and not sliding):
                    self.add("attn_v.weight", h, kv * value)
                    if x.get("attn_qkv_bias"):
                        self.add("attn_v.bias", kv * value)
            self.qk_norms(heads, kv, key, with_kv)
        if gated and not inside:
            self.add("attn_gate.weight", h, heads * value)
        self.add("attn_output.weight", heads * value, h)
        if x.get("attn_out_bias"):
            self.add("attn_output.bias", h)
        if x.get("attn_sinks"):
            self.add("attn_sinks.weight", heads)

    def qk_norms(self, heads: int, kv: int, key: int, with_kv: bool) -> None:
        style = self.extra.get("qk_norm")
        if style == "head":
            self.add("attn_q_norm.weight", key)
            if with_kv:
                self.add("attn_k_norm.weight", key)
        elif style == "full":
            self.add("attn_q_norm.weight", heads * key)
            self.add("attn_k_norm.weight", kv * key)
        elif style == "per_head":
            self.add("attn_q_norm.weight", key, heads)
            self.add("attn_k_norm.weight", key, kv)

    def latent_attention(self, layer: int, indexer: bool) -> None:
        h, m = self.width, self.row["mla"]
        heads = _layered(self.row["head_count"], layer)
        rank, latent, nope, rope, value = (
            m["q_lora_rank"], m["kv_lora_rank"], m["qk_nope"], m["qk_rope"], m["v_head"],
        )  # fmt: skip
        if rank:
            self.add("attn_q_a.weight", h, rank)
            self.add("attn_q_a_norm.weight", rank)
            self.add("attn_q_b.weight", rank, heads * (nope + rope))
        else:
            self.add("attn_q.weight", h, heads * (nope + rope))
        self.add("attn_kv_a_mqa.weight", h, latent + rope)
        self.add("attn_kv_a_norm.weight", latent)
        self.add("attn_k_b.weight", nope, latent, heads)
        self.add("attn_v_b.weight", latent, value, heads)
        self.add("attn_output.weight", heads * value, h)
        index = self.row.get("indexer")
        if indexer and index:
            self.add("indexer.k_norm.weight", index["head_dim"])
            self.add("indexer.k_norm.bias", index["head_dim"])
            self.add("indexer.proj.weight", h, index["n_heads"])
            self.add("indexer.attn_k.weight", h, index["head_dim"])
            self.add("indexer.attn_q_b.weight", rank, index["n_heads"] * index["head_dim"])

    def delta_net(self) -> None:
        h, s = self.width, self.row["linear"]
        inner, rank = s["inner_size"], s["time_step_rank"]
        channels = 2 * s["group_count"] * s["state_size"] + inner
        self.add("attn_qkv.weight", h, channels)
        self.add("attn_gate.weight", h, inner)
        self.add("ssm_conv1d.weight", s["conv_kernel"], channels)
        self.add("ssm_dt.bias", rank)
        self.add("ssm_a", rank)
        if self.arch == "qwen3next":
            self.add("ssm_ba.weight", h, 2 * rank)
        else:
            self.add("ssm_alpha.weight", h, rank)
            self.add("ssm_beta.weight", h, rank)
        self.add("ssm_norm.weight", s["state_size"])
        self.add("ssm_out.weight", inner, h)

    def mamba2(self) -> None:
        h, s = self.width, self.row["linear"]
        inner, rank, groups, state = s["inner_size"], s["time_step_rank"], s["group_count"], s["state_size"]
        channels = inner + 2 * groups * state
        self.add("ssm_in.weight", h, 2 * inner + 2 * groups * state + rank)
        self.add("ssm_conv1d.weight", s["conv_kernel"], channels)
        self.add("ssm_conv1d.bias", channels)
        self.add("ssm_dt.bias", rank)
        self.add("ssm_a", 1, rank)
        self.add("ssm_d", 1, rank)
        self.add("ssm_norm.weight", inner // groups, groups)
        self.add("ssm_out.weight", inner, h)

    def short_convolution(self) -> None:
        h = self.width
        self.add("shortconv.conv.weight", self.row["linear"]["conv_kernel"], h)
        self.add("shortconv.in_proj.weight", h, 3 * h)
        self.add("shortconv.out_proj.weight", h, h)

    # -- feed-forward -----------------------------------------------------------------------------------------

    def dense(self, width: int) -> None:
        h, x = self.width, self.extra
        gated = x.get("ffn_gated", True)
        if gated and self.arch in _FUSED_GATE_UP:
            self.add("ffn_up.weight", h, 2 * width)
        else:
            if gated:
                self.add("ffn_gate.weight", h, width)
            self.add("ffn_up.weight", h, width)
            if x.get("ffn_bias"):
                self.add("ffn_up.bias", width)
        self.add("ffn_down.weight", width, h)
        if x.get("ffn_bias"):
            self.add("ffn_down.bias", h)

    def mixture(self, layer: int) -> None:
        row, x, h = self.row, self.extra, self.width
        count, width = row["expert_count"], row["expert_feed_forward_length"]
        inside = x.get("moe_latent_size") or h
        self.add("ffn_gate_inp.weight", h, count)
        if x.get("router_scale"):
            self.add("ffn_gate_inp.scale", h)
        if x.get("router_bias"):
            self.add("ffn_gate_inp.bias" if self.arch == "gpt-oss" else "exp_probs_b.bias", count)
        if inside != h:
            self.add("ffn_latent_down.weight", h, inside)
            self.add("ffn_latent_up.weight", inside, h)
        bias = bool(x.get("expert_bias"))
        if self.arch == "gemma4":
            self.add("ffn_gate_up_exps.weight", inside, 2 * width, count)
        else:
            for name in ("gate", "up") if x.get("expert_gated", True) else ("up",):
                self.add(f"ffn_{name}_exps.weight", inside, width, count)
                if bias:
                    self.add(f"ffn_{name}_exps.bias", width, count)
        self.add("ffn_down_exps.weight", width, inside, count)
        if bias:
            self.add("ffn_down_exps.bias", inside, count)
        if x.get("router_scale"):
            self.add("ffn_down_exps.scale", count)
        shared = row["expert_shared_feed_forward_length"]
        if x.get("dense_branch_with_moe"):
            self.dense(_layered(row["feed_forward_length"], layer))
        elif shared:
            if x.get("shared_expert_gate"):
                self.add("ffn_gate_inp_shexp.weight", h)
            if x.get("expert_gated", True):
                self.add("ffn_gate_shexp.weight", h, shared)
            self.add("ffn_up_shexp.weight", h, shared)
            self.add("ffn_down_shexp.weight", shared, h)

    def feed_forward(self, layer: int, kind: str) -> None:
        row = self.row
        step = self.extra.get("moe_layer_step") or 1
        routed = row["expert_count"] and (
            kind == "moe"
            if self.extra.get("single_mixer_blocks")
            else layer >= (row.get("leading_dense_block_count") or 0) and (layer + 1) % step == 0
        )
        if routed:
            self.mixture(layer)
        else:
            self.dense(_layered(row["feed_forward_length"], layer))

    # -- blocks -----------------------------------------------------------------------------------------------

    def norms(self) -> None:
        count = self.extra.get("norms_per_block", 2)
        self.norm("attn_norm")
        if count >= 2:
            self.norm("post_attention_norm" if self.arch in _POST_ATTENTION_ONLY else "ffn_norm")
        if count >= 4:
            self.norm("post_attention_norm")
            self.norm("post_ffw_norm")
        if self.extra.get("dense_branch_with_moe"):
            for name in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
                self.norm(name)

    def block(self, layer: int, kind: str, owns_cache: bool = True, indexer: bool = False) -> None:
        single = bool(self.extra.get("single_mixer_blocks"))
        self.norms()
        if kind in ("full", "sliding"):
            self.attention(layer, kind, owns_cache)
        elif kind == "mla":
            self.latent_attention(layer, indexer)
        elif kind == "linear":
            self.delta_net()
        elif kind == "ssm":
            self.mamba2()
        elif kind == "conv":
            self.short_convolution()
        if not single or kind in ("mlp", "moe"):
            self.feed_forward(layer, kind)
        self.per_layer_parts()

    def per_layer_parts(self) -> None:
        h, x = self.width, self.extra
        per_layer = self.row["embedding_length_per_layer_input"]
        if per_layer:
            self.add("inp_gate.weight", h, per_layer)
            self.add("proj.weight", per_layer, h)
            self.add("post_norm.weight", h)
        if x.get("scalars_per_block"):
            self.add("layer_output_scale.weight", 1)
        altup = x.get("altup")
        if altup:
            n, rank = altup["num_inputs"], altup["laurel_rank"]
            self.add("altup_correct_coef.weight", n, n)
            self.add("altup_correct_scale.weight", h)
            self.add("altup_predict_coef.weight", n, n * n)
            self.add("altup_router.weight", h, n)
            self.add("altup_router_norm.weight", h)
            self.add("laurel_l.weight", h, rank)
            self.add("laurel_r.weight", rank, h)
            self.add("laurel_post_norm.weight", h)

    def mtp_block(self, layer: int) -> None:
        h = self.width
        self.add("nextn.eh_proj.weight", 2 * h, h)
        for name in ("enorm", "hnorm", "shared_head_norm"):
            self.add(f"nextn.{name}.weight", h)
        if self.extra.get("mtp_own_embd"):
            self.add("nextn.embed_tokens.weight", h, self.row["vocab_size"])
        if self.extra.get("mtp_own_head"):
            self.add("nextn.shared_head_head.weight", h, self.row["vocab_size"])
        kind = "mla" if self.row["mla"] else "full"
        if self.extra.get("single_mixer_blocks"):
            self.norms()
            self.norm("ffn_norm")
            attending = next(i for i, k in enumerate(self.kinds) if k == "full")
            self.attention(attending, kind, True)
            self.mixture(layer)
        else:
            self.block(layer, kind, indexer=bool(self.row.get("indexer")))

    def whole(self) -> Shapes:
        row, h, x = self.row, self.width, self.extra
        vocabulary = row["vocab_size"]
        self.add("token_embd.weight", h, vocabulary)
        per_layer = row["embedding_length_per_layer_input"]
        if per_layer:
            self.add(
                "per_layer_token_embd.weight",
                per_layer * self.layers,
                x.get("vocab_size_per_layer_input") or vocabulary,
            )
            self.add("per_layer_model_proj.weight", h, per_layer * self.layers)
            self.add("per_layer_proj_norm.weight", per_layer)
        altup = x.get("altup")
        if altup:
            self.add("altup_proj.weight", h, h, altup["num_inputs"] - 1)
            self.add("altup_unembd_proj.weight", h, h, altup["num_inputs"] - 1)
        assistant = x.get("assistant")
        if assistant:
            self.add("nextn.pre_projection.weight", 2 * assistant["backbone"], h)
            self.add("nextn.post_projection.weight", h, assistant["backbone"])
            if assistant["centroids"]:
                self.add("masked_embd_centroids.weight", h, assistant["centroids"])
                self.add("masked_embd_ordering", vocabulary)
        self.norm("token_embd_norm" if self.arch.startswith("lfm2") else "output_norm")
        if not row["tied_embeddings"]:
            self.add("output.weight", h, vocabulary)
        owners = self.layers - (row["shared_kv_layers"] or 0)
        index_layers = (row.get("indexer") or {}).get("layers")
        for layer in range(self.layers):
            self.prefix = f"blk.{layer}."
            indexer = bool(row.get("indexer")) and (index_layers is None or bool(index_layers[layer]))
            self.block(layer, self.kinds[layer], owns_cache=layer < owners, indexer=indexer)
        for layer in range(self.layers, self.layers + self.mtp):
            self.prefix = f"blk.{layer}."
            self.mtp_block(layer)
        return self.out


def shapes(row: Row, mtp: bool) -> Shapes:
    """Names and shapes (row length first) of all tensors, the MTP block last if ``mtp``."""
    return _Builder(row, mtp).whole()


def keys(row: Row, mtp: bool) -> Keys:
    """The numeric GGUF keys of a row, without the architecture prefix."""
    layers = row["block_count"]
    nextn = int(row["nextn_predict_layers"] or 0) if mtp else 0
    found: Keys = {
        "block_count": layers + nextn,
        "embedding_length": row["embedding_length"],
        "vocab_size": row["vocab_size"],
    }

    def put(name: str, value: Any) -> None:
        if isinstance(value, list):
            found[name] = tuple(value)
        elif value is not None:
            found[name] = int(value)

    put("context_length", row["context_length"])
    put("attention.head_count", row["head_count"])
    heads_kv = row["head_count_kv"]
    if isinstance(heads_kv, list) and nextn:
        heads_kv = heads_kv + [max(heads_kv)] * nextn
    put("attention.head_count_kv", heads_kv)
    for name in ("key_length", "value_length", "key_length_swa", "value_length_swa", "sliding_window",
                 "shared_kv_layers"):  # fmt: skip
        put(f"attention.{name}", row[name])
    if row["mla"]:
        found["attention.key_length_mla"] = row["mla"]["qk_nope"] + row["mla"]["qk_rope"]
        found["attention.value_length_mla"] = row["mla"]["v_head"]
        found["attention.kv_lora_rank"] = row["mla"]["kv_lora_rank"]
    kinds = row.get("layer_kinds")
    if row["sliding_window"] and kinds and "sliding" in kinds:
        found["attention.sliding_window_pattern"] = tuple(kind == "sliding" for kind in kinds)
    if row["expert_count"]:
        found["expert_count"] = row["expert_count"]
        found["expert_used_count"] = row["expert_used_count"]
    linear = row["linear"]
    if linear and row["gguf_arch"].startswith("lfm2"):
        found["shortconv.l_cache"] = linear["conv_kernel"]
    elif linear:
        for name in ("conv_kernel", "state_size", "group_count", "inner_size", "time_step_rank"):
            put(f"ssm.{name}", linear[name])
    if nextn:
        found["nextn_predict_layers"] = nextn
    return found
