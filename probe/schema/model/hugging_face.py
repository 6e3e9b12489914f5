"""The fields of our description from a Hugging Face ``config.json``.

Families share names of sizes and differ in what their code builds without saying so: gated MLPs,
biases, tied embeddings. What each builds is below by ``model_type``. A family that is not here, or a part that is no
transformer layer, is refused: a guess would be a wrong MFU.

The families are held against the classes of transformers: their parameters, and the matrix products that they run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..message import message
from .hugging_face_windows import add_window
from .stated import MOST_LAYERS, check_counts, check_lists, check_switches

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
    **dict.fromkeys(("bitnet", "minimax_m2", "minicpm3", "deepseek"), LLAMA),
    **dict.fromkeys(("internlm2", "baichuan", "xverse", "orion", "aquila"), LLAMA),
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


_NAMES = {
    "num_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "num_heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocab_size": ("vocab_size", "padded_vocab_size"),
    "ffn_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_dim": ("head_dim",),
    "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "experts_per_token": ("num_experts_per_tok", "moe_k", "moe_topk"),
    "mtp_layers": ("num_nextn_predict_layers",),
}
_SHARED = (
    "n_shared_experts",
    "num_shared_experts",
    "moe_num_shared_experts",
    "num_shared_expert",
)
"""How many experts are shared."""
_COPIED = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")

_COUNTS = (
    *(name for names in _NAMES.values() for name in names),
    *_COPIED,
    *("n_positions", "max_position_embeddings", "intermediate_size_mlp"),
    *_SHARED,
    "shared_expert_intermediate_size",
    *("shared_intermediate_size", "first_k_dense_replace", "decoder_sparse_step"),
    *("interleave_moe_layer_step", "moe_layer_start_index", "moe_layer_interval"),
    *("max_window_layers", "attention_chunk_size", "expansion_ratio"),
)
"""Names that hold whole numbers, in all families."""
_SWITCHES = ("tie_word_embeddings", "attention_bias", "use_qkv_bias", "mlp_bias", "use_qk_norm")
_COUNTS_OR_LISTS = ("moe_intermediate_size", "moe_layer_freq")
_COUNTS_OR_NONE = ("sliding_window", "moe_layer_end_index")
"""Some configs write -1 for none."""
_LISTS = ("no_rope_layers", "mlp_only_layers", "moe_layers", "mlp_layer_types", "layer_types")

_REFUSED = {
    "vision_config": message("refused.vision_tower"),
    "audio_config": message("refused.audio_tower"),
    "is_encoder_decoder": message("refused.encoder_decoder"),
    "ssm_cfg": message("refused.no_attention"),
    "mamba_d_state": message("refused.no_attention"),
    "state_size": message("refused.no_attention"),
    "linear_num_key_heads": message("refused.linear_attention"),
    "hybrid_override_pattern": message("refused.no_attention"),
    "linear_attn_config": message("refused.linear_attention"),
    "cross_attention_layers": message("refused.cross_attention"),
    "add_cross_attention": message("refused.cross_attention"),
    "index_topk": message("refused.sparse_attention"),
    "lambda_std_dev": message("refused.differential_attention"),
    "num_codebooks": message("refused.other_head"),
    "num_code_groups": message("refused.other_head"),
}
OTHER_HEADS = (
    *("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    *("ForMultipleChoice", "RewardModel"),
)
"""How classes end whose head is not over the vocabulary."""
_OTHER_PARTS = re.compile(
    r"recur|loop|ut_steps|mamba|ssm|conv(?!er)|linear_attn|delta|lightning|memor|expert|moe|share_factor|kv_shared"
    r"|cross_layer|block_config|hyper_conn|indexer|ngram|per_layer_(?:input|embed)|altup|laurel|depth"
)
"""Names of parts that llama has not, or of layers that run more than once."""
_OF_CLASS = re.compile(r"(?:ForCausalLM|LMHeadModel)$")
"""How classes end whose head is over the vocabulary."""
_STATE_IT = message("advice.state_sizes_under_model")


def fields_of_hugging_face(config: Mapping[str, Any], where: str) -> dict[str, object]:
    """Return the fields of a description, without ``seq_len``: a config tells only the longest.

    Args:
        config: The content of a ``config.json``, or ``config.to_dict()``.
        where: How errors name it.

    Raises:
        ConfigError: The model is of a family that is not known, or not of transformer layers only.
    """
    for name, what in _REFUSED.items():
        if config.get(name):
            raise ConfigError(what, where=f"{where}: {name}", remedy=_STATE_IT)
    _refuse_other_ends(config, where)
    family = _family(config)
    built = FAMILIES.get(family)
    if built is None:
        if not _is_like_llama(config):
            raise ConfigError(
                message("refused.family_not_known", family=family or "unknown"),
                where=f"{where}: model_type",
                remedy=_STATE_IT,
            )
        built = LLAMA
    config = _one_of_each(config)
    _check(config, where)
    found = {**built, **_sizes(config)}
    tied = config.get("tie_word_embeddings")
    if tied is not None:
        found["tied"] = bool(tied)
    _biases(config, family, found)
    if family in LEARNED_POSITIONS:
        longest = _first(config, ("n_positions", "max_position_embeddings")) or 0
        found["learned_positions"] = int(longest) + (2 if family in ("opt", "biogpt") else 0)
    _attention(config, family, found)
    if found.get("experts"):
        _experts(config, family, found)
    else:
        found.pop("experts_per_token", None)
    add_window(config, family, found, _STATE_IT)
    return found


def _family(config: Mapping[str, Any]) -> str:
    """Return the family that a config names, empty without one: by its type, its class, or as nanotron does."""
    if config.get("model_type"):
        return str(config["model_type"])
    classes = config.get("architectures")
    first = classes[0] if isinstance(classes, list) and classes else classes
    name = _OF_CLASS.sub("", str(first or "")).lower()
    by_class = (family for family in FAMILIES if family.replace("_", "") == name)
    # nanotron: is_llama_config, is_qwen2_config.
    by_mark = (family for family in FAMILIES if config.get(f"is_{family}_config") is True)
    return next(by_class, None) or next(by_mark, "")


def _refuse_other_ends(config: Mapping[str, Any], where: str) -> None:
    """Refuse a head that is not over the vocabulary, and an embedding of a width of its own (OPT 350M)."""
    classes = config.get("architectures")
    for name in classes if isinstance(classes, list) else (classes or "",):
        if str(name).endswith(OTHER_HEADS):
            raise ConfigError(
                message("refused.other_head"), where=f"{where}: architectures", remedy=_STATE_IT
            )
    width = config.get("word_embed_proj_dim")
    if width is not None and width != config.get("hidden_size"):
        raise ConfigError(
            message("refused.embedding_width"),
            where=f"{where}: word_embed_proj_dim",
            remedy=_STATE_IT,
        )


def _one_of_each(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with one count where it states the same for each layer."""
    counts = {name: config[name] for name in _COUNTS if isinstance(config.get(name), list)}
    same = {
        name: of_layers[0]
        for name, of_layers in counts.items()
        if len(set(map(str, of_layers))) == 1
    }
    return {**config, **same}


def _check(config: Mapping[str, Any], where: str) -> None:
    """Refuse values of another type than their names have."""
    check_counts(config, _NAMES["num_layers"], where, least=1, most=MOST_LAYERS)
    check_counts(config, _COUNTS, where)
    check_counts(config, _COUNTS_OR_NONE, where, least=-1)
    if not isinstance(config.get("sliding_window_pattern"), str):
        check_counts(config, ("sliding_window_pattern",), where, least=-1)
    check_switches(config, _SWITCHES, where)
    lists = [name for name in _COUNTS_OR_LISTS if isinstance(config.get(name), list)]
    check_counts(config, set(_COUNTS_OR_LISTS).difference(lists), where)
    check_lists(config, (*_LISTS, *lists), where)


def _is_like_llama(config: Mapping[str, Any]) -> bool:
    """Return whether a family that is not known here states all that llama does.

    One with experts never does: how many are shared, which layers are dense, and what gates
    them has other names in each family. Nor does one that names a part which llama has not.
    """
    if any(value and _OTHER_PARTS.search(name) for name, value in config.items()):
        return False
    stated = ("model_type", "rms_norm_eps", "intermediate_size", "num_key_value_heads", "head_dim")
    gated = str(config.get("hidden_act")) in ("silu", "swish")
    return gated and all(config.get(name) for name in stated) and "tie_word_embeddings" in config


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _sizes(config: Mapping[str, Any]) -> dict[str, object]:
    sizes = {ours: _first(config, names) for ours, names in _NAMES.items()}
    sizes |= {name: config.get(name) for name in _COPIED}
    return {name: value for name, value in sizes.items() if value is not None}


def _biases(config: Mapping[str, Any], family: str, found: dict[str, object]) -> None:
    """Take the biases that a config states; the families above have them where it is silent."""
    if config.get("attention_bias") is not None and family != "gpt_oss":
        stated = bool(config["attention_bias"])
        found["qkv_bias"] = stated
        found["out_bias"] = stated and family not in ("glm4_moe", "glm", "glm4")
    if config.get("qkv_bias") is not None:
        found["qkv_bias"] = bool(config["qkv_bias"])
    if config.get("use_qkv_bias") is not None:
        found["qkv_bias"] = bool(config["use_qkv_bias"])
    if config.get("mlp_bias") is not None:
        found["mlp_bias"] = bool(config["mlp_bias"])
    for name in ("bias", "use_bias"):
        if isinstance(config.get(name), bool):
            biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), config[name])
            found.update(biases)
    if config.get("use_qk_norm") is not None and family not in ("llama4_text",):
        found["qk_norm"] = bool(config["use_qk_norm"])


def _attention(config: Mapping[str, Any], family: str, found: dict[str, object]) -> None:
    if found.get("kv_lora_rank"):
        found.pop("head_dim", None)
        found.pop("kv_heads", None)
    else:
        for name in _COPIED:
            found.pop(name, None)
        heads, hidden = found.get("num_heads"), found.get("hidden_size")
        if "head_dim" not in found and isinstance(heads, int) and isinstance(hidden, int) and heads:
            found["head_dim"] = hidden // heads
    if family == "falcon":
        new = bool(config.get("new_decoder_architecture"))
        if config.get("multi_query") and not new:
            found["kv_heads"] = 1
        found["norms_per_layer"] = 2 if new or not config.get("parallel_attn", True) else 1
    if family == "gpt_bigcode" and config.get("multi_query", True):
        found["kv_heads"] = 1
    if family == "mpt":
        ratio = int(config.get("expansion_ratio") or 4)
        found["ffn_size"] = ratio * int(config.get("d_model") or 0)
        inside, mlp = (config.get(name) or {} for name in ("attn_config", "ffn_config"))
        kind = inside.get("attn_type") if isinstance(inside, Mapping) else None
        if kind == "multiquery_attention":
            found["kv_heads"] = 1
        elif kind == "grouped_query_attention":
            found["kv_heads"] = inside.get("kv_n_heads")
        found["gated"] = isinstance(mlp, Mapping) and "glu" in str(mlp.get("ffn_type"))


def _experts(config: Mapping[str, Any], family: str, found: dict[str, object]) -> None:
    """Add the experts: their widths, the shared ones, and which layers have none."""
    layers = int(str(found.get("num_layers", 0)))
    ffn = found.get("ffn_size")
    width = config.get("moe_intermediate_size") or ffn
    if isinstance(width, list):
        of_layers = set(map(str, width))
        width = width[0] if len(of_layers) == 1 else width
        check_counts({"moe_intermediate_size": width}, ("moe_intermediate_size",), "model")
    found["expert_ffn_size"] = width
    count = _first(config, _SHARED)
    shared = _first(config, ("shared_expert_intermediate_size", "shared_intermediate_size"))
    if family == "hunyuan_v1_moe" and count is None:
        count = 1
    if family == "llama4_text":
        count, found["ffn_size"] = 1, config.get("intermediate_size_mlp", ffn)
    if isinstance(count, int) and isinstance(width, int):
        shared = count * width
    found["shared_ffn_size"] = shared or 0
    dense = [layer for layer in range(layers) if not _is_sparse(config, layer, layers)]
    if len(dense) == layers:
        for name in ("experts", "experts_per_token", "expert_ffn_size", "shared_ffn_size"):
            found.pop(name, None)
        return
    found["dense_layers"] = dense


def _is_sparse(config: Mapping[str, Any], layer: int, layers: int) -> bool:
    """Return whether a layer has experts: the rules of the families that mix."""
    kinds = config.get("mlp_layer_types")
    if isinstance(kinds, list) and len(kinds) >= layers:
        return bool(kinds[layer] == "sparse")
    chosen = config.get("moe_layers")
    if isinstance(chosen, list) and chosen:
        return layer in chosen
    if layer < int(config.get("first_k_dense_replace") or 0):
        return False
    if layer in (config.get("mlp_only_layers") or ()):
        return False
    step = config.get("decoder_sparse_step") or config.get("interleave_moe_layer_step")
    if step and (layer + 1) % int(step):
        return False
    start, every = config.get("moe_layer_start_index"), config.get("moe_layer_interval")
    if start is not None:
        last = config.get("moe_layer_end_index")
        inside = int(start) <= layer <= (layers - 1 if last in (None, -1) else int(str(last)))
        return inside and (layer + 1) % int(every or 1) == 0
    often = config.get("moe_layer_freq")
    if isinstance(often, list) and len(often) >= layers:
        return bool(often[layer])
    return not (isinstance(often, int) and often > 1 and layer % often)
