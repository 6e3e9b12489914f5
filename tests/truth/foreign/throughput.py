"""Published throughputs: TFLOP/s over tokens/s is what a team counts for one token of its model."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.truth.foreign.case import Case, Check, Reply

THROUGHPUT = "published throughputs"
_TABLE = "megatron_bridge_to_26.02.json"
_WITHIN = 0.5
"""Per cent. The team leaves out the routers of experts, 0.2 to 0.5 % of a model that has them."""

_LLAMA = {
    "model_type": "llama", "num_key_value_heads": 8, "vocab_size": 128256,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_layer_freq": 1, "num_hidden_layers": 61, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_QWEN = {
    "model_type": "qwen3_moe", "head_dim": 128, "num_key_value_heads": 4, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "vocab_size": 151936, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
_CONFIGS: dict[str, dict[str, Any]] = {
    "LLAMA3_8B": {
        **_LLAMA, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_hidden_layers": 32,
    },
    "LLAMA3_70B": {
        **_LLAMA, "hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64,
        "num_hidden_layers": 80,
    },
    "LLAMA3.1_405B": {
        **_LLAMA, "hidden_size": 16384, "intermediate_size": 53248, "num_attention_heads": 128,
        "num_hidden_layers": 126,
    },
    "DeepSeekV3": {
        **_DEEPSEEK, "n_routed_experts": 256, "first_k_dense_replace": 3,
        "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
        "num_nextn_predict_layers": 1,
    },
    "Kimi_K2": {
        **_DEEPSEEK, "n_routed_experts": 384, "first_k_dense_replace": 1,
        "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163840,
    },
    "Qwen3_30B_a3B": {
        **_QWEN, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_hidden_layers": 48,
    },
    "Qwen3_235B_a22B": {
        **_QWEN, "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_attention_heads": 64, "num_hidden_layers": 94,
    },
}  # fmt: skip
"""What the published config.json of each model says.

GPT OSS 120B and Nemotron 3 are left out. The figure of the first has two of the three matrices of its
gated experts and no window, so it is no right answer; the second has Mamba layers.
"""


def throughputs(shared: Path) -> list[Case]:
    """Return a case for each model of the table."""
    table = shared / "tables" / _TABLE
    if not table.is_file():
        return []
    tokens: dict[tuple[str, int], float] = defaultdict(float)
    flops: dict[tuple[str, int], float] = defaultdict(float)
    for row in json.loads(table.read_text("utf-8")):
        if "Model" in (row["System"], row["#-GPUs"]):
            continue  # A heading among the rows.
        # Older releases have a column less before the sequence, and no system.
        is_new = row["System"].startswith("DGX")
        model = row["model"] if is_new else row["System"].split(" (")[0]
        key = model, int(row["Sequence Length" if is_new else "MBS"])
        tokens[key] += _first(row["Tokens / sec / GPU"])
        flops[key] += _first(row["Model TFLOP / sec / GPU"]) * 1e12
    # The rows of a model together: each alone is rounded to 0.2 %.
    return [
        _case(model, length, flops[model, length] / count)
        for (model, length), count in tokens.items()
        if model in _CONFIGS
    ]


def _case(model: str, length: int, counted: float) -> Case:
    name = f"throughput-{model.lower()}"
    making = (lambda folder: (folder / "config.json").write_text(json.dumps(_CONFIGS[model])),)
    asked = ("plan", "config.json", "--seq-len", str(length), "--format", "json")

    def read(reply: Reply) -> float:
        return 100 * reply.data["flops_per_token"]["causal"] / counted

    check = Check("FLOPs a token, causal, % of counted", 100.0, read, _WITHIN)
    return Case(name, THROUGHPUT, asked, (check,), making)


def _first(text: str) -> float:
    """Return the first of the numbers that a cell has for one row."""
    found = re.match(r"[\d.]+", text)
    assert found is not None, text
    return float(found[0])
