"""What each family of Hugging Face builds without saying so in its ``config.json``.

Held against the classes of transformers: their parameters, and the matrix products that they run.
"""

from __future__ import annotations

LLAMA: dict[str, object] = {"gated": True}
_QWEN2: dict[str, object] = {"gated": True, "qkv_bias": True}
_QWEN3: dict[str, object] = {"gated": True, "qk_norm": True}
_GEMMA: dict[str, object] = {"gated": True, "tied": True}
_BIASED: dict[str, object] = {
    "norm_shift": True,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
}
FAMILIES: dict[str, dict[str, object]] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "mixtral", "phi3", "granite", "helium"), LLAMA
    ),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "kimi_k2", "granitemoe", "smollm3"), LLAMA),
    **dict.fromkeys(("aria_text", "axk1", "glm4_moe_lite", "granitemoeshared"), LLAMA),
    **dict.fromkeys(("granite_swa", "granitemoe_swa", "solar_open", "exaone4"), LLAMA),
    **dict.fromkeys(("bitnet", "minimax_m2"), LLAMA),
    **dict.fromkeys(("internlm3", "seed_oss", "exaone", "minicpm", "llama4_text"), LLAMA),
    **dict.fromkeys(("qwen2", "qwen2_moe"), _QWEN2),
    **dict.fromkeys(("exaone_moe", "flex_olmo", "hy_v3", "mellum"), _QWEN3),
    **dict.fromkeys(("qwen3", "qwen3_moe", "dots1", "hunyuan_v1_dense", "hunyuan_v1_moe"), _QWEN3),
    "glm4_moe": _QWEN2,
    "ernie4_5": {"gated": True, "tied": True},
    "ernie4_5_moe": {"gated": True, "tied": True},
    "gemma": _GEMMA,
    "gemma2": {**_GEMMA, "norms_per_layer": 4},
    "gemma3_text": {**_GEMMA, "norms_per_layer": 4, "qk_norm": True},
    "glm": {**_QWEN2},
    "glm4": {**_QWEN2, "norms_per_layer": 4},
    "cohere": {"gated": True, "tied": True, "norms_per_layer": 1},
    "cohere2": {"gated": True, "tied": True, "norms_per_layer": 1},
    "olmo": {"gated": True, "norms_per_layer": 0},
    "olmo2": LLAMA,
    "olmo3": LLAMA,
    "olmoe": LLAMA,
    "stablelm": {"gated": True, "norm_shift": True},
    "gpt_oss": {"gated": True, "qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "phimoe": {"gated": True, "norm_shift": True, "qkv_bias": False},
    "gpt2": {**_BIASED, "tied": True},
    "gpt_bigcode": {**_BIASED, "tied": True},
    "gpt_neox": _BIASED,
    "opt": {**_BIASED, "tied": True},
    "bloom": {**_BIASED, "tied": True},
    "phi": {**_BIASED, "norms_per_layer": 1},
    "gptj": {"norm_shift": True, "mlp_bias": True, "norms_per_layer": 1},
    "codegen": {"norm_shift": True, "mlp_bias": True, "norms_per_layer": 1},
    "starcoder2": {**_BIASED, "tied": True},
    "falcon": {"norm_shift": True, "tied": True},
    "mpt": {"tied": True},
    "nemotron": {"norm_shift": True},
    "arcee": {},
    "apertus": {"qk_norm": True},
    "nanochat": {},
    "jais2": {"norm_shift": True},
    "vaultgemma": _GEMMA,
    "biogpt": {**_BIASED, "tied": True},
    "persimmon": {**_BIASED, "qk_norm": True},
}
"""What each family builds; ``tied`` is what it does where its config does not say."""
LEARNED_POSITIONS = frozenset({"gpt2", "gpt_bigcode", "opt", "biogpt"})
