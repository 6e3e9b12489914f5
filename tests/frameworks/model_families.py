"""Prints, of each family of Hugging Face that we count, our figures over those of its class.

A line of JSON: the family, the ratio of matrix products of a forward pass, that of parameters. The
models are built without memory for their weights, with few layers and fewer keys than queries.
"""

from __future__ import annotations

import json
import sys

import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from meshscope.probe.schema.model import describe_model, flops_per_token
from meshscope.probe.schema.model.counts import total_parameters

TOKENS = 64
SIZES = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 6),
    "vocab_size": 1000,
    "num_experts_per_tok": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
OF_FAMILY = {
    "qwen3_moe": {"decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "qwen2_moe": {"shared_expert_intermediate_size": 700},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "falcon": {
        "new_decoder_architecture": True,
        "num_kv_heads": 8,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "ffn_hidden_size": 16384,
        "bias": True,
    },
    "deepseek_v3": {"first_k_dense_replace": 2},
    "dots1": {"n_routed_experts": 32, "n_shared_experts": 2, "first_k_dense_replace": 1},
    "granitemoeshared": {"shared_intermediate_size": 900},
    "nemotron": {"num_key_value_heads": 8},
    "hunyuan_v1_moe": {"num_experts": 16, "moe_topk": [2] * 6},
    "phimoe": {"num_experts_per_tok": 2},
    "gemma3_text": {"sliding_window": 4096},
}
"""What a config of a family states beside its sizes, where its defaults leave a part out."""


def config_of(family: str) -> transformers.PretrainedConfig:
    """Return the config of a family with few layers, and groups of queries where it can have them."""
    kind = CONFIG_MAPPING[family]
    known = kind().to_dict()
    sizes = {name: value for name, value in SIZES.items() if name in known}
    heads, keys = known.get("num_attention_heads"), known.get("num_key_value_heads")
    if heads and keys == heads and heads % 2 == 0 and not known.get("kv_lora_rank"):
        sizes["num_key_value_heads"] = heads // 2
    if heads and known.get("head_dim", 0) is None:
        sizes["head_dim"] = known["hidden_size"] // heads
    return kind(**{**sizes, **OF_FAMILY.get(family, {})})


def ratios_of(family: str) -> tuple[float, float]:
    """Return our matrix products and parameters over those of the class."""
    config = config_of(family)
    ours = describe_model(config, seq_len=TOKENS, mtp_layers=0)
    how = {"attn_implementation": "eager", "dtype": torch.bfloat16}
    if ours.experts:
        how["experts_implementation"] = "batched_mm"
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, **how).eval()
        ids = torch.zeros((1, TOKENS), dtype=torch.long)
        mask = torch.zeros((1, 1, TOKENS, TOKENS), dtype=torch.bfloat16)
        if family in ("bloom", "opt"):
            mask = torch.ones((1, TOKENS), dtype=torch.long)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=ids, attention_mask=mask, use_cache=False)
    parameters = sum(weights.numel() for weights in model.parameters())
    if family == "llama4_text":  # its class runs all experts, and takes what others give times zero
        return 1.0, total_parameters(ours) / parameters
    forward = flops_per_token(ours, "nonembedding") / 3 * TOKENS
    return forward / counter.get_total_flops(), total_parameters(ours) / parameters


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    for name in sys.argv[1:]:
        print(
            json.dumps([name, *ratios_of(name)] if name in CONFIG_MAPPING else [name, None, None])
        )
