"""The fields of our description from Megatron-LM's arguments, by their names.

As ``pretrain_gpt.py`` takes them (megatron/training/arguments.py): without a flag, the MLP has two
matrices, the embedding is tied, positions are learned, norms have a shift and matrices have biases.
Names that only Megatron-DeepSpeed or NeMo has count too. What builds other layers is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...schema.message import message
from ..errors import ConfigError
from .stated import MOST_LAYERS, check_counts, check_switches

_NAMES = {
    "num_layers": "num_layers",
    "hidden_size": "hidden_size",
    "num_heads": "num_attention_heads",
    "seq_len": "seq_length",
    "head_dim": "kv_channels",
    "shared_ffn_size": "moe_shared_expert_intermediate_size",
    "mtp_layers": "mtp_num_layers",
}
_SWITCHES = (
    *("swiglu", "gated_linear_unit", "untie_embeddings_and_output_weights", "add_bias_linear"),
    *("share_embeddings_and_output_weights", "disable_bias_linear", "add_qkv_bias"),
    *("qk_layernorm", "group_query_attention", "multi_latent_attention", "add_position_embedding"),
)
_OF_OTHERS = {
    "encoder_seq_length": "seq_length",
    "bias": "add_bias_linear",
    "num_key_value_heads": "num_query_groups",
    "topk": "moe_router_topk",
}
"""Names in NeMo and in Megatron-DeepSpeed for what Megatron-LM calls otherwise."""
_OTHER_LAYERS = (
    *("hybrid_override_pattern", "hybrid_layer_pattern", "is_hybrid_model"),
    *("hybrid_attention_ratio", "hybrid_mlp_ratio"),
    *("experimental_attention_variant", "linear_attention_freq", "attention_output_gate"),
    *("moe_latent_size", "heterogeneous_layers_config_path", "heterogeneous_block_specs"),
    *("heterogeneous_layers_config_encoded_json", "decoder_num_layers"),
)
"""Arguments of layers that no formula here counts, where they are set."""
_OF_OTHER_PROGRAMS = {
    **dict.fromkeys(("num_hidden_layers", "rms_norm_eps"), "Hugging Face"),
    **dict.fromkeys(("pos_emb", "no_weight_tying", "num_kv_heads"), "GPT-NeoX"),
}
"""Names of programs whose other names are Megatron's too, while their defaults are not."""
_OF_OBJECTS = frozenset({"activation_func", "gated_linear_unit"})
"""Fields that a configuration object has (NeMo, Megatron-Bridge), and no list of arguments or file of one's own."""
_NEEDED_OF_OBJECTS = (
    ("gated_linear_unit", "activation", "swiglu"),
    ("ffn_hidden_size",),
    ("num_query_groups", "num_key_value_heads", "multi_latent_attention"),
)
"""Fields of such an object whose absence is no statement, as that of a flag is; of each, one is needed."""
_NAMES_KIND = ("experimental_attention_variant", "program", "spec")
"""Of these the value says what the layers are."""
_OTHER_PROGRAMS = re.compile(
    r"pretrain_(?:bert|ict|t5|retro|vlm|mamba|hybrid|mm|vision\w*|multimodal\w*)"
)
_GATE = re.compile(r"glu(?:_tanh)?$")
_SWIGLU = 64
"""Megatron rounds two thirds of 4 h down to a multiple of it."""
_PATTERN = re.compile(r"[0-9\s\[\](),+*]{1,400}")


def fields_of_megatron(arguments: Mapping[str, Any], where: str) -> dict[str, object]:
    """Return the fields of a description.

    Args:
        arguments: By name, with underscores or hyphens, such as ``vars(get_args())``.
        where: How errors name it.

    Raises:
        ConfigError: A layer is no transformer layer, or a value cannot be read.
    """
    args = {str(name).lstrip("-").replace("-", "_"): value for name, value in arguments.items()}
    args.setdefault("num_experts", args.get("num_moe_experts"))
    for theirs, known in _OF_OTHERS.items():
        if args.get(theirs) is not None and args.get(known) is None:
            args[known] = args[theirs]
    _refuse_other_layers(args, where)
    _refuse_partial_objects(args, where)
    check_counts(args, ("num_layers",), where, most=MOST_LAYERS)
    check_switches(args, _SWITCHES, where)
    found = {ours: args[theirs] for ours, theirs in _NAMES.items() if args.get(theirs) is not None}
    found["vocab_size"] = _vocabulary(args)
    found["gated"] = _is_gated(args)
    found["tied"] = not _untied(args)
    found["ffn_size"] = _width(args)
    found["norm_shift"] = "layernorm" in str(args.get("normalization", "LayerNorm")).lower()
    biased = args.get("add_bias_linear", not args.get("disable_bias_linear", False))
    found |= dict.fromkeys(("out_bias", "mlp_bias", "qkv_bias"), bool(biased))
    found["qkv_bias"] = bool(biased or args.get("add_qkv_bias"))
    found["qk_norm"] = bool(args.get("qk_layernorm"))
    if args.get("position_embedding_type", "learned_absolute") == "learned_absolute":
        rows = args.get("max_position_embeddings") or args.get("seq_length")
        found["learned_positions"] = 0 if args.get("add_position_embedding") is False else rows
    _attention(args, found, where)
    experts = _experts_of_layers(args, where)
    if experts:
        found["experts"] = experts
        if args.get("expert_interval") or args.get("topk") or args.get("deepspeed"):
            _experts_of_deepspeed(args, found)
        else:
            _experts(args, found, where)
    return {name: value for name, value in found.items() if value is not None}


def _is_gated(args: Mapping[str, Any]) -> bool:
    """Return whether MLPs have a gate: by a flag such as ``quick_geglu``, or where a function with one is named.

    NeMo names it by ``activation`` (fast-swiglu), older programs by ``glu_activation``.
    """
    if args.get("gated_linear_unit"):
        return True
    named = (str(args.get(name) or "") for name in ("activation", "glu_activation"))
    flags = (value for name, value in args.items() if _GATE.search(name))
    return any(map(_GATE.search, named)) or any(value is True for value in flags)


def _refuse_partial_objects(args: Mapping[str, Any], where: str) -> None:
    """Refuse a part of a configuration object: what is left out has no default of Megatron's arguments."""
    if not _OF_OBJECTS & args.keys():
        return
    missing = [names[0] for names in _NEEDED_OF_OBJECTS if not args.keys() & set(names)]
    if missing:
        raise ConfigError(
            message("refused.fields_missing", names=missing),
            where=where,
            remedy=message("advice.sizes_of_model"),
        )


def _refuse_other_layers(args: Mapping[str, Any], where: str) -> None:
    """Refuse what builds layers without attention, with another attention, or an encoder."""
    for name, program in _OF_OTHER_PROGRAMS.items():
        if args.get(name) is not None:
            raise ConfigError(
                message("refused.name_of_program", program=program),
                where=f"{where}: {name}",
                remedy=message("advice.state_sizes"),
            )
    kinds = {name: args[name] for name in _OTHER_LAYERS if args.get(name)}
    encoder, layers = args.get("encoder_num_layers"), args.get("num_layers")
    # Megatron-LM's own list of arguments repeats the layers of a decoder under this name.
    if encoder and layers and encoder != layers:
        kinds["encoder_num_layers"] = encoder
    if _OTHER_PROGRAMS.fullmatch(str(args.get("program"))):
        kinds["program"] = args["program"]
    if "mamba" in str(args.get("spec")):
        kinds["spec"] = "mamba"
    for name, value in kinds.items():
        raise ConfigError(
            message("refused.kind_of_layers", kind=value if name in _NAMES_KIND else name),
            where=f"{where}: {name}",
            remedy=message("advice.leave_model_out"),
        )


def _vocabulary(args: Mapping[str, Any]) -> object:
    """Return the rows of the embedding: padded to a multiple for each tensor-parallel rank."""
    if args.get("padded_vocab_size"):
        return args["padded_vocab_size"]
    vocab, divisor = args.get("vocab_size"), args.get("make_vocab_size_divisible_by", 128)
    if not isinstance(vocab, int) or not isinstance(divisor, int) or divisor < 1:
        return vocab
    multiple = divisor * int(args.get("tensor_model_parallel_size") or 1)
    return -(-vocab // multiple) * multiple


def _untied(args: Mapping[str, Any]) -> bool:
    shares = args.get("share_embeddings_and_output_weights")
    if shares is not None:
        return not shares
    return bool(args.get("untie_embeddings_and_output_weights"))


def _width(args: Mapping[str, Any]) -> object:
    """Return the width of an MLP; of the gated ones, ``--swiglu`` alone makes it smaller."""
    hidden = args.get("hidden_size")
    if args.get("ffn_hidden_size") or not isinstance(hidden, int):
        return args.get("ffn_hidden_size")
    return int(4 * hidden * 2 / 3 / _SWIGLU) * _SWIGLU if args.get("swiglu") else 4 * hidden


def _attention(args: Mapping[str, Any], found: dict[str, object], where: str) -> None:
    groups = args.get("num_query_groups")
    # Without the flag, Megatron ignores the number of groups; a config object has no such flag.
    if groups and (args.get("group_query_attention", True) or args.get("num_key_value_heads")):
        found["kv_heads"] = groups
    if args.get("multi_latent_attention"):
        found.pop("head_dim", None)
        found.pop("kv_heads", None)
        found |= {
            "q_lora_rank": args.get("q_lora_rank") or 0,
            "kv_lora_rank": args.get("kv_lora_rank", 32),
            "qk_nope_head_dim": args.get("qk_head_dim", 128),
            "qk_rope_head_dim": args.get("qk_pos_emb_head_dim", 64),
            "v_head_dim": args.get("v_head_dim", 128),
            "qk_norm": False,
        }
    before = _keys_before(args.get("window_size"), where)
    if before is not None:
        # (left, right): so many keys before a token, and itself.
        found["window"] = before + 1
        found["windowed_layers"] = _windowed(args)


def _keys_before(window: object, where: str) -> int | None:
    """Return the keys before a token in its window: of a pair, ``127,0`` as text too; None without one."""
    if window in (None, False, ""):
        return None
    pair = window.strip("()[] ").split(",") if isinstance(window, str) else window
    before = pair[0] if isinstance(pair, list | tuple) and len(pair) == 2 else pair
    try:
        keys = int(str(before))
    except ValueError:
        raise ConfigError(
            message("refused.value_no_list", value=window),
            where=f"{where}: window_size",
            remedy=message("advice.write_list"),
        ) from None
    return keys if keys >= 0 else None


def _windowed(args: Mapping[str, Any]) -> object:
    """Return the layers with the window: all but each N-th, or as a list says."""
    often, layers = args.get("window_attn_skip_freq"), args.get("num_layers")
    if isinstance(often, int) and isinstance(layers, int) and often > 0:
        return [layer for layer in range(layers) if (layer + 1) % often]
    if isinstance(often, list):
        return [layer for layer, has in enumerate(often) if has]
    return None


def _experts_of_layers(args: Mapping[str, Any], where: str) -> object:
    """Return the experts of a layer, None without any: Megatron-DeepSpeed lists them, and has one in a dense model."""
    count = args.get("num_experts")
    if not isinstance(count, list | tuple):
        check_counts(args, ("num_experts",), where)
        return count or None
    if len(set(map(str, count))) > 1:
        raise ConfigError(
            message("refused.no_count", value=count),
            where=f"{where}: num_experts",
            remedy=message("advice.state_sizes"),
        )
    return count[0] if count and count[0] != 1 else None


def _experts(args: Mapping[str, Any], found: dict[str, object], where: str) -> None:
    found["experts_per_token"] = args.get("moe_router_topk", 2)
    found["expert_ffn_size"] = args.get("moe_ffn_hidden_size") or found["ffn_size"]
    often, layers = args.get("moe_layer_freq", 1), args.get("num_layers")
    if isinstance(often, str):
        often = _pattern(often, where)
    if isinstance(layers, int) and isinstance(often, int) and often > 1:
        # One layer of every N has experts, the first of them.
        found["dense_layers"] = [layer for layer in range(layers) if layer % often]
    elif isinstance(often, list | tuple):
        if isinstance(layers, int) and len(often) != layers:
            raise ConfigError(
                message("refused.moe_pattern", count=len(often), layers=layers),
                where=f"{where}: moe_layer_freq",
                remedy=message("advice.one_for_each_layer"),
            )
        found["dense_layers"] = [layer for layer, has in enumerate(often) if not has]


def _experts_of_deepspeed(args: Mapping[str, Any], found: dict[str, object]) -> None:
    """Add the experts as Megatron-DeepSpeed places them: in each N-th layer, the last of N."""
    found["experts_per_token"] = args.get("topk") or 1
    found["expert_ffn_size"] = found["ffn_size"]
    if args.get("mlp_type") == "residual":
        found["shared_ffn_size"] = found["ffn_size"]
    layers, every = args.get("num_layers"), args.get("expert_interval") or 2
    if isinstance(layers, int) and isinstance(every, int):
        found["dense_layers"] = [layer for layer in range(layers) if (layer + 1) % every]


def _pattern(text: str, where: str) -> object:
    """Return a number, or a list as Megatron takes it: ``([0]*3+[1]*58)``."""
    problem = ConfigError(
        message("refused.no_pattern_of_layers", text=text),
        where=f"{where}: moe_layer_freq",
        remedy=message("advice.pattern_of_layers"),
    )
    if not _PATTERN.fullmatch(text):
        raise problem
    if text.strip().isdigit():
        return int(text)
    found: list[int] = []
    for part in re.sub(r"[\s()]", "", text).split("+"):
        match = re.fullmatch(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?", part)
        if match is None:
            raise problem
        found += [int(flag) for flag in match[1].split(",")] * int(match[2] or 1)
    return found
