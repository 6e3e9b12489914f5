"""The fields of our description from the model arguments of torchtitan.

Its dense models and those of Qwen3 and DeepSeek-V3 are known. What has arguments of other
names is refused: a guess would be a wrong MFU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...schema.message import message
from ..errors import ConfigError

_SIZES = {
    "dim": "hidden_size",
    "n_layers": "num_layers",
    "n_heads": "num_heads",
    "vocab_size": "vocab_size",
}
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def fields_of_torchtitan(arguments: Mapping[str, Any], where: str) -> dict[str, object]:
    """Return the fields of a description, without ``seq_len``: arguments tell only the longest.

    Args:
        arguments: Of ``TransformerModelArgs``, ``Qwen3ModelArgs`` or ``DeepSeekV3ModelArgs``.
        where: How errors name it.

    Raises:
        ConfigError: The arguments are those of another model.
    """
    if not _SIZES.keys() <= arguments.keys() or _is_other(arguments):
        raise ConfigError(
            message("refused.torchtitan_model"),
            where=where,
            remedy=message("advice.state_sizes"),
        )
    found: dict[str, object] = {ours: int(arguments[its]) for its, ours in _SIZES.items()}
    found |= {"gated": True, "tied": bool(arguments.get("enable_weight_tying"))}
    found["ffn_size"] = _ffn_size(arguments)
    if "kv_lora_rank" in arguments:
        found |= {name: int(arguments[name]) for name in _LATENT}
    else:
        found["kv_heads"] = int(arguments.get("n_kv_heads") or arguments["n_heads"])
        found["head_dim"] = int(arguments.get("head_dim") or 0)
        found["qk_norm"] = bool(arguments.get("qk_norm"))
    if arguments.get("moe_enabled", "n_dense_layers" in arguments):
        found |= _experts(arguments)
    return found


def _is_other(arguments: Mapping[str, Any]) -> bool:
    """Return whether layers are built in a way that no field tells: llama4's, gpt_oss's."""
    names = {"interleave_moe_layer_step", "sliding_window_size", "fixed_attn_block_size"}
    return bool(names & arguments.keys())


def _ffn_size(arguments: Mapping[str, Any]) -> int:
    """Return the width of a dense MLP: stated, or two thirds of 4 x dim, scaled and rounded up.

    The rule of Llama: torchtitan/models/llama3/model/model.py, class FeedForward.
    """
    for name in ("hidden_dim", "inter_dim"):
        if name in arguments:
            return int(arguments[name])
    width = int(2 * 4 * int(arguments["dim"]) / 3)
    if arguments.get("ffn_dim_multiplier") is not None:
        width = int(arguments["ffn_dim_multiplier"] * width)
    multiple = int(arguments.get("multiple_of") or 1)
    return multiple * -(-width // multiple)


def _experts(arguments: Mapping[str, Any]) -> dict[str, object]:
    moe = arguments["moe_args"]
    width = int(arguments["moe_inter_dim"])
    return {
        "experts": int(moe.num_experts),
        "experts_per_token": int(moe.top_k),
        "expert_ffn_size": width,
        "shared_ffn_size": width * int(moe.num_shared_experts),
        "dense_layers": tuple(range(int(arguments.get("n_dense_layers", 0)))),
    }
