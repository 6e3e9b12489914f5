"""The fields of our description from the ``model_config.yaml`` of LitGPT, or its configuration object.

The head of its models is never the embedding. The kind of the MLP is named by a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...schema.message import message
from ..errors import ConfigError
from .stated import MOST_LAYERS, check_counts, check_lists

_NAMES = {
    "num_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_heads": "n_head",
    "kv_heads": "n_query_groups",
    "head_dim": "head_size",
    "ffn_size": "intermediate_size",
}
_EXPERTS = {
    "experts": "n_expert",
    "experts_per_token": "n_expert_per_token",
    "expert_ffn_size": "moe_intermediate_size",
}
_GATED = {"GptNeoxMLP": False, "LLaMAMLP": True, "GemmaMLP": True, "LLaMAMoE": True}


def is_litgpt(values: Mapping[str, Any]) -> bool:
    """Return whether names are those of LitGPT."""
    return "n_embd" in values and "mlp_class_name" in values


def fields_of_litgpt(config: Mapping[str, Any], where: str) -> dict[str, object]:
    """Return the fields of a description, without ``seq_len``: a configuration tells only the longest.

    Args:
        config: By name, as LitGPT writes it.
        where: How errors name it.

    Raises:
        ConfigError: A part is of a kind that is not known here, or a value cannot be read.
    """
    kind = str(config["mlp_class_name"])
    other: dict[str, Any] = {"mlp_class_name": kind not in _GATED and kind}
    other |= {name: config.get(name) and name for name in ("latent_attention", "n_shared_expert")}
    for name, value in other.items():
        if value:
            raise ConfigError(
                message("refused.kind_of_layers", kind=value),
                where=f"{where}: {name}",
                remedy=message("advice.state_sizes_under_model"),
            )
    check_counts(config, ("n_layer",), where, least=1, most=MOST_LAYERS)
    counted = (*_NAMES.values(), *_EXPERTS.values(), "vocab_size", "padded_vocab_size")
    check_counts(config, (*counted, "sliding_window_size"), where)
    check_lists(config, ("sliding_window_indices",), where)
    names = _NAMES | (_EXPERTS if kind == "LLaMAMoE" else {})
    found = {ours: config[its] for ours, its in names.items() if config.get(its) is not None}
    found["vocab_size"] = config.get("padded_vocab_size") or config.get("vocab_size")
    bias = bool(config.get("bias", True))
    found |= {"gated": _GATED[kind], "out_bias": bias, "mlp_bias": bias}
    found["qkv_bias"] = bias or bool(config.get("attn_bias"))
    found["qk_norm"] = bool(config.get("norm_qk"))
    found["norm_shift"] = config.get("norm_class_name", "LayerNorm") == "LayerNorm"
    if window := config.get("sliding_window_size"):
        chosen = config.get("sliding_window_indices")
        layers = None if chosen is None else [n for n, has in enumerate(chosen) if has]
        found |= {"window": window, "windowed_layers": layers}
    return {name: value for name, value in found.items() if value is not None}
