"""The fields of our description from model arguments with Llama's first names: ``dim``, ``n_layers``.

Known are torchtitan's dense models, its Qwen3 and DeepSeek-V3; the ``params.json`` beside the weights of Llama and
Mistral; and the configuration of DeepSeek's own inference code. What has arguments of other names is
refused: a guess would be a wrong MFU.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from math import isfinite
from typing import Any

from ...schema.message import message
from ..errors import ConfigError
from .stated import MOST_LAYERS, check_counts

_SIZES = {
    "dim": "hidden_size",
    "n_layers": "num_layers",
    "n_heads": "num_heads",
    "vocab_size": "vocab_size",
}
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_COUNTS = (
    *(*_SIZES, *_LATENT, "n_kv_heads", "head_dim", "sliding_window"),
    *("hidden_dim", "inter_dim", "multiple_of"),
)


def fields_of_torchtitan(arguments: Mapping[str, Any], where: str) -> dict[str, object]:
    """Return the fields of a description, without ``seq_len``: arguments tell only the longest.

    Args:
        arguments: Of ``TransformerModelArgs``, ``Qwen3ModelArgs`` or ``DeepSeekV3ModelArgs``.
        where: How errors name it.

    Raises:
        ConfigError: The arguments are those of another model, or one is no number.
    """
    if not _SIZES.keys() <= arguments.keys() or _is_other(arguments):
        raise _unknown(where)
    check_counts(arguments, ("n_layers",), where, least=1, most=MOST_LAYERS)
    check_counts(arguments, _COUNTS, where)
    found: dict[str, object] = {ours: int(arguments[its]) for its, ours in _SIZES.items()}
    tied = arguments.get("enable_weight_tying") or arguments.get("tied_embeddings")
    found |= {"gated": True, "tied": bool(tied)}
    found["ffn_size"] = _ffn_size(arguments, where)
    if arguments.get("kv_lora_rank"):
        found |= {name: int(arguments.get(name) or 0) for name in _LATENT}
    else:
        found["kv_heads"] = int(arguments.get("n_kv_heads") or arguments["n_heads"])
        found["head_dim"] = int(arguments.get("head_dim") or 0)
        found["qk_norm"] = bool(arguments.get("qk_norm"))
    if arguments.get("sliding_window"):
        found["window"] = int(arguments["sliding_window"])
    if arguments.get("moe_enabled", True):
        found |= _experts(arguments, where)
    return found


def _unknown(where: str) -> ConfigError:
    """Return the error about arguments of a model that is not known."""
    return ConfigError(
        message("refused.torchtitan_model"), where=where, remedy=message("advice.state_sizes")
    )


def _is_other(arguments: Mapping[str, Any]) -> bool:
    """Return whether layers are built in a way that no field tells: llama4's, gpt_oss's, an encoder of images."""
    names = {"interleave_moe_layer_step", "sliding_window_size", "fixed_attn_block_size"}
    window = arguments.get("sliding_window")
    return (
        bool(names & arguments.keys())
        or bool(arguments.get("vision_encoder") or arguments.get("multimodal"))
        or not isinstance(window, int | None)
    )


def _ffn_size(arguments: Mapping[str, Any], where: str) -> int:
    """Return the width of a dense MLP: stated, or two thirds of 4 x dim, scaled and rounded up.

    The rule of Llama: torchtitan/models/llama3/model/model.py, class FeedForward.
    """
    for name in ("hidden_dim", "inter_dim"):
        if arguments.get(name) is not None:
            return int(arguments[name])
    width = int(2 * 4 * int(arguments["dim"]) / 3)
    multiplier = arguments.get("ffn_dim_multiplier")
    if multiplier is not None:
        if not isinstance(multiplier, int | float) or not isfinite(multiplier):
            raise _unknown(where)
        width = int(multiplier * width)
    multiple = int(arguments.get("multiple_of") or 1)
    return multiple * -(-width // multiple)


_EXPERTS = {
    "experts": ("num_experts", "n_routed_experts"),
    "experts_per_token": ("top_k", "num_experts_per_tok", "n_activated_experts"),
    "expert_ffn_size": ("moe_inter_dim", "expert_hidden_dim", "hidden_dim"),
    "shared": ("num_shared_experts", "n_shared_experts"),
    "dense": ("n_dense_layers", "first_k_dense_replace"),
}
"""Names of torchtitan, Mistral and DeepSeek, in a table of experts or beside it."""


def _experts(arguments: Mapping[str, Any], where: str) -> dict[str, object]:
    """Return the experts of a model, nothing of one that has none."""
    table = arguments.get("moe_args") or arguments.get("moe") or {}
    inside = table if isinstance(table, Mapping) else getattr(table, "__dict__", None)
    if inside is None:
        raise _unknown(where)
    # The width of Mistral's experts is that of its MLP; the table says what it has of its own.
    known = {**arguments, **inside}
    check_counts(known, ("route_every_n", *chain(*_EXPERTS.values())), where)
    sizes = {
        ours: next((int(known[name]) for name in names if known.get(name) is not None), 0)
        for ours, names in _EXPERTS.items()
    }
    if not sizes["experts"] and not inside:
        return {}
    if min(sizes["experts"], sizes["experts_per_token"], sizes["expert_ffn_size"]) < 1:
        raise _unknown(where)
    every = int(known.get("route_every_n") or 1)
    layers = range(int(arguments["n_layers"]))
    return {
        "experts": sizes["experts"],
        "experts_per_token": sizes["experts_per_token"],
        "expert_ffn_size": sizes["expert_ffn_size"],
        "shared_ffn_size": sizes["expert_ffn_size"] * sizes["shared"],
        "dense_layers": tuple(n for n in layers if n < sizes["dense"] or n % every),
    }
