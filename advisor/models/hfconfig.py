"""Repositories without GGUF: the model is described from ``config.json`` as the GGUF its converter would write.

Configs nest the language model differently (``text_config``, ``llm_config``, ``thinker_config.text_config`` ...).
A size that is missing is an error that names it: nothing is filled in with a default. The result is compared with
the weight total the Hub knows from the safetensors headers.
"""

from __future__ import annotations

from typing import Any

from advisor.errors import InputError, UnknownModelError
from advisor.models import catalogue, mixes
from advisor.models.description import ModelDescription
from advisor.models.shapes import Row
from advisor.text import clean

NESTED = (
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "language_model",
    "lm_config",
    "talker_config",
)
ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "ministral3": "mistral3", "mistral3": "mistral3",
    "qwen2": "qwen2", "qwen2_5_vl_text": "qwen2", "qwen2_moe": "qwen2moe", "qwen3": "qwen3", "qwen3_vl_text": "qwen3",
    "qwen3_moe": "qwen3moe", "qwen3_vl_moe_text": "qwen3moe", "qwen3_next": "qwen3next", "qwen3_5": "qwen35",
    "qwen3_5_text": "qwen35", "qwen3_5_moe": "qwen35moe", "qwen3_5_moe_text": "qwen35moe", "gemma2": "gemma2",
    "gemma3": "gemma3", "gemma3_text": "gemma3", "gemma3n_text": "gemma3n", "gemma3n": "gemma3n", "gemma4": "gemma4",
    "gemma4_text": "gemma4", "phi3": "phi3", "gpt_oss": "gpt-oss", "glm4": "glm4", "glm4_moe": "glm4moe",
    "glm4_moe_lite": "deepseek2", "glm_moe_dsa": "glm-dsa", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
    "deepseek_v32": "deepseek32", "kimi_k2": "deepseek2", "kimi_k25": "deepseek2", "granite": "granite",
    "granitemoe": "granitemoe", "granitemoehybrid": "granitehybrid", "smollm3": "smollm3", "olmo2": "olmo2",
    "olmo3": "olmo2", "exaone4": "exaone4", "exaone": "exaone", "lfm2": "lfm2", "lfm2_moe": "lfm2moe",
    "cohere": "command-r", "cohere2": "cohere2", "starcoder2": "starcoder2", "minimax_m2": "minimax-m2",
    "nemotron_h": "nemotron_h", "llama4_text": "llama4", "llama4": "llama4", "chatglm": "chatglm",
    "muse_glimmer": "muse-glimmer",
}  # fmt: skip
"""``model_type`` of a config to llama.cpp's architecture."""
_PLAIN = frozenset(
    {"llama", "mistral3", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "granite",
     "granitemoe", "smollm3", "olmo2", "exaone4", "glm4moe", "minimax-m2", "starcoder2", "cohere2", "command-r",
     "qwen35", "qwen35moe", "qwen3next", "gpt-oss", "deepseek2"}
)  # fmt: skip
"""Architectures whose tensors follow from the config; others must have the shape of a catalogue entry."""
_EXTRA: dict[str, dict[str, Any]] = {
    "qwen2": {"attn_qkv_bias": True}, "qwen2moe": {"attn_qkv_bias": True, "shared_expert_gate": True},
    "qwen3": {"qk_norm": "head"}, "qwen3moe": {"qk_norm": "head"}, "gemma2": {"norms_per_block": 4},
    "gemma3": {"norms_per_block": 4, "qk_norm": "head"}, "olmo2": {"qk_norm": "full"},
    "exaone4": {"qk_norm": "head"}, "minimax-m2": {"qk_norm": "full", "router_bias": True},
    "glm4moe": {"attn_qkv_bias": True, "router_bias": True},
    "gpt-oss": {"attn_qkv_bias": True, "attn_out_bias": True, "attn_sinks": True, "router_bias": True,
                "expert_bias": True},
    "deepseek2": {"router_bias": True},
    "qwen35": {"attn_gate": True, "qk_norm": "head"},
    "qwen35moe": {"attn_gate": True, "qk_norm": "head", "shared_expert_gate": True},
    "qwen3next": {"attn_gate": True, "qk_norm": "head", "shared_expert_gate": True},
    "starcoder2": {"attn_qkv_bias": True, "attn_out_bias": True, "ffn_gated": False, "ffn_bias": True,
                   "norm_bias": True},
    "cohere2": {"norms_per_block": 1}, "command-r": {"norms_per_block": 1},
}  # fmt: skip
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "half": "F16", "float": "F32"}


MOST = 1 << 26
"""Largest size a config may state (contexts reach ten million)."""
MOST_LAYERS = 512
"""llama.cpp's own limit (LLAMA_MAX_LAYERS)."""


class _Config:
    """The language model's part of a config, with its values checked."""

    def __init__(self, whole: dict[str, Any], repo: str) -> None:
        self.repo = repo
        self.whole = whole
        self.part, self.path = _language_part(whole)
        self.assumptions: list[str] = []

    def number(self, *names: str) -> int:
        """A size that must be there.

        Raises:
            InputError: it is missing or no positive whole number.
        """
        found = self.optional(*names)
        if found is None:
            where = f"{self.path}." if self.path else ""
            raise InputError(
                f"config.json of {self.repo} states no {where}{names[0]}, so the model's size cannot be known.",
                "Name a repository with GGUF files.",
            )
        return found

    def optional(self, *names: str) -> int | None:
        for name in names:
            value = self.part.get(name)
            if isinstance(value, bool) or value is None:
                continue
            if not isinstance(value, int) or not 0 <= value <= MOST:
                raise InputError(
                    f"config.json of {self.repo} has the unusable {clean(name)}: {clean(str(value), 40)}.",
                    "Name a repository with GGUF files.",
                )
            return value
        return None

    def flag(self, name: str) -> bool | None:
        value = self.part.get(name, self.whole.get(name))
        return value if isinstance(value, bool) else None


def _language_part(whole: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The innermost config that describes a language model, and where it lies."""
    part, path = whole, []
    for _ in range(4):
        inner = next(((n, part[n]) for n in NESTED if isinstance(part.get(n), dict) and _speaks(part[n])), None)
        if inner is None:
            break
        path.append(inner[0])
        part = inner[1]
    return part, ".".join(path)


def _speaks(part: dict[str, Any]) -> bool:
    return "num_hidden_layers" in part or "hidden_size" in part or any(isinstance(part.get(n), dict) for n in NESTED)


def describe_repository(
    repo: str, config: dict[str, Any], info: Any, quant: str | None, reference: str
) -> ModelDescription:
    """Describe the GGUF that conversion of a repository would give.

    Args:
        repo: ``org/repo``.
        config: its ``config.json``.
        info: what the Hub says of it (``siblings`` with sizes, ``safetensors.total``).
        quant: file type to assume; default: that of the weights.
        reference: what the user wrote.

    Raises:
        InputError: a size is missing in the config.
        UnknownModelError: an architecture llama.cpp or this program does not know.
    """
    wanted = _Config(config, repo)
    architecture = _architecture(wanted)
    dtype = (
        wanted.part.get("torch_dtype") or wanted.part.get("dtype") or config.get("torch_dtype") or config.get("dtype")
    )
    label = mixes.canonical(quant) if quant else _DTYPES.get(str(dtype))
    assumptions = ["no GGUF in the repository: described as the file its conversion would give"]
    if quant and label is None:
        raise UnknownModelError(f"{clean(quant, 40)} is not a GGUF file type.", "Examples: Q4_K_M, Q8_0, BF16.")
    if label is None:
        label = "BF16"
        assumptions.append("16-bit weights (the config names no data type)")
    row = _row(wanted, architecture, repo)
    found = catalogue.describe_row(row, label, reference)
    assumptions += wanted.assumptions + _check_total(found, info)
    slug = catalogue.recognise(found.model_copy(update={"source": "hub-config", "name": repo, "catalogue_slug": None}))
    return found.model_copy(
        update={
            "name": repo, "source": "hub-config", "catalogue_slug": slug,
            "assumptions": (*found.assumptions, *assumptions),
            "notes": (*found.notes, f"read from config.json of {repo}, nothing else downloaded"),
        }
    )  # fmt: skip


def _architecture(config: _Config) -> str:
    kinds = [config.part.get("model_type"), config.whole.get("model_type")]
    for kind in kinds:
        if isinstance(kind, str) and kind in ARCHITECTURES:
            architecture = ARCHITECTURES[kind]
            if architecture == "nemotron_h" and config.part.get("n_routed_experts"):
                return "nemotron_h_moe"
            return architecture
    slug = catalogue.find(config.repo)
    row = catalogue.shape_row(slug) if slug else None
    if row is not None:
        return str(row["gguf_arch"])
    named = next((clean(str(k), 40) for k in kinds if k), "none")
    raise UnknownModelError(
        f"{config.repo} is of a kind ({named}) whose config cannot be read here.", "Name a repository with GGUF files."
    )


def _row(config: _Config, architecture: str, repo: str) -> Row:
    """A catalogue row for this config: of an entry with the same shape, or built from the config."""
    layers, width = config.number("num_hidden_layers", "num_layers", "n_layer"), config.number("hidden_size", "n_embd")
    if not 0 < layers <= MOST_LAYERS or not width:
        raise InputError(
            f"config.json of {repo} describes {layers} layers of width {width}.", "Name a repository with GGUF files."
        )
    vocabulary = config.number("vocab_size", "padded_vocab_size")
    experts = config.optional("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts") or 0
    feed = config.optional("intermediate_size", "ffn_hidden_size")
    same = [
        row
        for row in catalogue.shape_rows()
        if row["gguf_arch"] == architecture and row["block_count"] == layers and row["embedding_length"] == width
        and (row["expert_count"] or 0) == experts and _feed_agrees(row, feed)
    ]  # fmt: skip
    slug = catalogue.find(repo)
    same.sort(key=lambda row: (row["slug"] != slug, abs(row["vocab_size"] - vocabulary)))
    tied = config.flag("tie_word_embeddings")
    if same:
        found = dict(same[0])
        if abs(found["vocab_size"] - vocabulary) > 256:  # the converter drops padding of a few rows
            found["vocab_size"] = vocabulary
        if tied is not None and architecture not in ("gemma3", "gemma4", "command-r", "cohere2"):
            found["tied_embeddings"] = tied
        return found
    if architecture not in _PLAIN:
        raise UnknownModelError(
            f"{repo} ({architecture}) has a shape this program knows no tensor layout for.",
            "Name a repository with GGUF files.",
        )
    return _built(config, architecture, layers, width, vocabulary, experts, feed)


def _feed_agrees(row: Row, feed: int | None) -> bool:
    stated = row["feed_forward_length"]
    return feed is None or not isinstance(stated, int) or bool(row["expert_count"]) or stated == feed


def _built(
    config: _Config, architecture: str, layers: int, width: int, vocabulary: int, experts: int, feed: int | None
) -> Row:
    """A row for a shape the catalogue does not have."""
    heads = config.number("num_attention_heads", "n_head")
    kv = config.optional("num_key_value_heads")
    if kv is None and architecture != "deepseek2":
        config.assumptions.append("as many key/value heads as heads (num_key_value_heads not stated)")
    size = config.optional("head_dim")
    if size is None:
        if heads == 0 or width % heads:
            config.number("head_dim")
        size = width // heads
    extra = dict(_EXTRA.get(architecture, {}))
    bias = config.flag("attention_bias")
    if bias and "attn_qkv_bias" not in extra:
        extra["attn_qkv_bias"] = True
    if config.flag("use_qk_norm") and architecture == "glm4moe":
        extra["qk_norm"] = "head"
    used = config.number("num_experts_per_tok", "experts_per_token", "moe_topk") if experts else 0
    expert_width = config.optional("moe_intermediate_size")
    if experts and expert_width is None:
        expert_width = config.number("intermediate_size")
    shared = config.optional("n_shared_experts") or 0
    shared_width = config.optional("shared_expert_intermediate_size")
    if shared and shared_width is None and expert_width:
        shared_width = shared * expert_width
    if not experts and feed is None:
        feed = config.number("intermediate_size")
    kinds, window = _kinds(config, architecture, layers)
    tied = config.flag("tie_word_embeddings")
    if tied is None:
        tied = architecture.startswith(("gemma", "command-r", "cohere"))
        config.assumptions.append(
            f"{'no output matrix of its own' if tied else 'an own output matrix'} (tie_word_embeddings not stated)"
        )
    row: Row = {
        "slug": catalogue.normalise(config.repo), "hf_repo": config.repo, "aliases": None, "gguf_arch": architecture,
        "block_count": layers, "embedding_length": width, "feed_forward_length": feed, "head_count": heads,
        "head_count_kv": heads if kv is None else kv, "key_length": size, "value_length": size, "key_length_swa": None,
        "value_length_swa": None, "vocab_size": vocabulary, "tied_embeddings": tied, "expert_count": experts,
        "expert_used_count": used, "expert_feed_forward_length": expert_width, "expert_shared_count": shared,
        "expert_shared_feed_forward_length": shared_width,
        "leading_dense_block_count": config.optional("first_k_dense_replace"), "layer_kinds": kinds,
        "sliding_window": window, "shared_kv_layers": None, "embedding_length_per_layer_input": None,
        "mla": _latent(config) if architecture == "deepseek2" else None, "indexer": None,
        "linear": _linear(config) if architecture in ("qwen35", "qwen35moe", "qwen3next") else None,
        "nextn_predict_layers": config.optional("mtp_num_hidden_layers", "num_nextn_predict_layers") or 0,
        "nextn_in_gguf": "yes on current builds", "tokenizer_family": "unknown", "tokenizer_pre": None,
        "context_length": config.optional("max_position_embeddings"), "extra": extra, "confidence": "seen",
    }  # fmt: skip
    if row["mla"]:
        row |= {"head_count_kv": 1, "value_length": row["mla"]["kv_lora_rank"]}
        row["key_length"] = row["mla"]["kv_lora_rank"] + row["mla"]["qk_rope"]
    return row


def _kinds(config: _Config, architecture: str, layers: int) -> tuple[list[str], int | None]:
    """How each layer mixes positions, and the window."""
    if architecture == "deepseek2":
        return ["mla"] * layers, None
    names = {"full_attention": "full", "sliding_attention": "sliding", "linear_attention": "linear"}
    stated = config.part.get("layer_types")
    window = config.optional("sliding_window")
    if isinstance(stated, list) and len(stated) == layers and all(s in names for s in stated):
        kinds = [names[s] for s in stated]
    elif architecture in ("qwen35", "qwen35moe", "qwen3next"):
        every = max(1, config.number("full_attention_interval"))
        kinds = ["full" if (i + 1) % every == 0 else "linear" for i in range(layers)]
    elif architecture in ("gemma2", "gemma3", "cohere2", "gpt-oss"):
        period = {"gemma2": 2, "gpt-oss": 2, "cohere2": 4}.get(architecture, 6)
        period = config.optional("sliding_window_pattern", "_sliding_window_pattern") or period
        kinds = ["full" if (i + 1) % period == 0 else "sliding" for i in range(layers)]
    else:
        kinds = ["full"] * layers
    if "sliding" in kinds and architecture in ("llama", "qwen2", "qwen3", "qwen3moe", "phi3", "starcoder2", "mistral3"):
        kinds = ["full"] * layers  # llama.cpp applies no window for these
    return kinds, (window or config.number("sliding_window")) if "sliding" in kinds else None


def _latent(config: _Config) -> dict[str, int | None]:
    return {
        "q_lora_rank": config.optional("q_lora_rank"), "kv_lora_rank": config.number("kv_lora_rank"),
        "qk_nope": config.number("qk_nope_head_dim"), "qk_rope": config.number("qk_rope_head_dim"),
        "v_head": config.number("v_head_dim"),
    }  # fmt: skip


def _linear(config: _Config) -> dict[str, int]:
    state, rank = config.number("linear_value_head_dim"), config.number("linear_num_value_heads")
    return {
        "conv_kernel": config.number("linear_conv_kernel_dim"), "state_size": state, "inner_size": state * rank,
        "group_count": config.number("linear_num_key_heads"), "time_step_rank": rank,
    }  # fmt: skip


def _check_total(found: ModelDescription, info: Any) -> list[str]:
    """Compare with the weights the Hub counted; towers and MTP copies make the repository larger."""
    counted = getattr(getattr(info, "safetensors", None), "total", None)
    if not isinstance(counted, int) or counted <= 0:
        return []
    ours = found.total_parameters
    if abs(ours / counted - 1) <= 0.02:
        return []
    return [
        f"{ours / 1e9:.3g} B weights counted from the config, {counted / 1e9:.3g} B in the repository "
        "(vision or audio parts, quantised storage, or an unknown part)"
    ]
