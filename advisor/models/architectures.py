"""What llama.cpp knows by architecture name and a file does not say: defaults of keys, which kinds of model there are.

Source: ``src/llama-arch.cpp`` and ``src/models/*.cpp`` of llama.cpp b11434.
"""

from __future__ import annotations

from typing import NamedTuple

KNOWN = frozenset(
    {
        "clip", "llama", "llama4", "deci", "falcon", "grok", "gpt2", "gptj", "gptneox", "mpt", "baichuan", "starcoder",
        "refact", "bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3",
        "eurobert", "bloom", "stablelm", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3next",
        "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "clef", "qwen4exp", "phi2", "phi3", "phimoe", "plamo", "plamo2",
        "plamo3", "codeshell", "orion", "internlm2", "minicpm", "minicpm3", "gemma", "gemma2", "gemma3", "gemma3n",
        "gemma4", "gemma4-assistant", "gemma-embedding", "starcoder2", "mamba", "mamba2", "maple", "jamba", "falcon-h1",
        "xverse", "command-r", "cohere2", "cohere2moe", "dbrx", "olmo", "olmo2", "olmoe", "muse-glimmer", "openelm",
        "arctic", "deepseek", "deepseek2", "deepseek2-ocr", "deepseek32", "deepseek4", "chatglm", "glm4", "glm4moe",
        "glm-dsa", "bitnet", "t5", "t5encoder", "jais", "jais2", "nemotron", "nemotron_h", "nemotron_h_moe", "exaone",
        "exaone4", "exaone-moe", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "granite", "granitemoe", "granitehybrid",
        "graniteswitch", "granite_swa", "chameleon", "wavtokenizer-dec", "plm", "bailingmoe", "bailingmoe2",
        "bailingmoe3", "dots1", "dots3note", "arcee", "afmoe", "laguna", "ernie4_5", "ernie4_5-moe", "hunyuan-moe",
        "hunyuan-dense", "hunyuan_vl", "hy_v3", "hy_v4", "smollm3", "gpt-oss", "lfm2", "lfm2moe", "dream",
        "smallthinker", "llada", "llada-moe", "seed_oss", "grovemoe", "apertus", "minimax-01", "hrm_text", "minimax-m2",
        "minimax-m3", "cogvlm", "rnd1", "pangu-embedded", "mistral3", "eagle3", "dflash", "mistral4", "paddleocr",
        "mimo2", "step35", "spark2_5", "llama-embed", "maincoder", "kimi-linear", "kimi-k3", "glm5-next", "talkie",
        "mellum", "nanbeige", "qwen3tts", "pockettts"
    }
)  # fmt: skip
SPELLINGS = {"gemma4_assistant": "gemma4-assistant"}
"""Names in early conversions, which current builds refuse."""

NOT_GENERATIVE = frozenset(
    {"bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3", "eurobert",
     "gemma-embedding", "llama-embed", "t5encoder", "wavtokenizer-dec", "clef", "qwen3tts", "pockettts"}
)  # fmt: skip
"""Encoders, rerankers and audio decoders: nothing to speculate."""
DIFFUSION = frozenset({"dream", "llada", "llada-moe", "rnd1"})
"""Text diffusion: not token by token, so no speculative decoding."""

MTP = frozenset(
    {"deepseek2", "deepseek32", "deepseek4", "glm4moe", "glm-dsa", "hy_v3", "mimo2", "nemotron_h_moe", "qwen3next",
     "qwen35", "qwen35moe", "qwen4exp", "step35", "cohere2moe", "bailingmoe3"}
)  # fmt: skip
"""Architectures with an MTP graph; others may carry the tensors but cannot run them."""

WHOLE_LAST_BLOCK = frozenset(
    {"bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "gemma3n", "gemma4", "glm-dsa", "glm4moe",
     "glm5-next", "gpt-oss", "hy_v3", "hy_v4", "kimi-k3", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35",
     "qwen35moe", "qwen3next", "qwen4exp", "step35", "eagle3", "dflash"}
)  # fmt: skip
"""Architectures that compute the last block for every row. All others pick the rows with outputs behind the last
attention (``inp_out_ids``), so that the last feed-forward part of a prompt or a catch-up pass sees those rows only."""

NOT_MODELLED = {
    "deepseek4": "its compressed cache and hyper-connections",
    "qwen4exp": "its n-gram tables and indexer",
    "glm5-next": "its indexer compression",
    "kimi-k3": "its residual attention",
    "hy_v4": "parts of it",
    "minimax-m3": "its block-sparse index",
}


class Window(NamedTuple):
    """Default sliding window: period of the pattern, its size if the file does not state it, dense layer first."""

    period: int
    size: int | None = None
    dense_first: bool = False


WINDOWS: dict[str, Window] = {
    "gemma2": Window(2, 4096), "gemma3": Window(6), "gemma3n": Window(5), "gemma4": Window(6), "gpt-oss": Window(2),
    "cohere2": Window(4), "cohere2moe": Window(4, dense_first=True), "llama4": Window(4, 8192), "exaone4": Window(4),
    "exaone-moe": Window(4, 128), "olmo2": Window(4), "afmoe": Window(4), "mellum": Window(4), "plamo3": Window(8),
    "muse-glimmer": Window(4), "smallthinker": Window(4, 4096, dense_first=True), "laguna": Window(4, dense_first=True),
    "step35": Window(4), "mimo2": Window(6), "granite_swa": Window(4), "maple": Window(4), "spark2_5": Window(4),
    "dots3note": Window(4), "dflash": Window(1), "gemma4-assistant": Window(6), "lfm2": Window(1), "lfm2moe": Window(1),
}  # fmt: skip
"""Architectures whose window llama.cpp applies. Others may carry the key (Mistral 7B, Phi-3, StarCoder2): ignored."""

ALWAYS_SIZED = frozenset({"gemma2", "llama4", "exaone-moe"})
"""Windowed with the default size even if the file names none."""
FIXED_SIZE = frozenset({"llama4", "smallthinker"})
"""Windowed with the default size whatever the file says."""
OWN_CACHE_LAYERS = {"gemma3n": 20}
"""Only so many first layers own a cache; fixed in the source."""

LAYER_INPUTS = frozenset(
    {"bailingmoe3", "deepseek4", "gemma4", "hunyuan_vl", "lfm2", "lfm2moe", "llama", "mimo2", "minimax-01",
     "minimax-m2", "muse-glimmer", "nanbeige", "nemotron_h", "nemotron_h_moe", "gpt-oss", "qwen3", "qwen35",
     "qwen35moe", "qwen3moe", "qwen3next", "qwen4exp"}
)  # fmt: skip
"""Targets whose graph hands layer inputs to an EAGLE-3 or DFlash drafter; others abort at the first request."""
