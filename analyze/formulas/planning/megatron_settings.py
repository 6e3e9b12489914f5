"""The settings of a training from Megatron-LM's arguments, by their names.

Defaults are those of Megatron-LM (megatron/training/arguments.py): gradients in fp32, no
distributed optimizer, dropout 0.1, no sequence parallelism.

``--pipeline-model-parallel-layout`` says which layers each stage has: ``E`` embedding, ``t`` layer, ``m`` layer of multi-token prediction, ``L`` loss, ``|`` border of two
stages, ``x*3`` and ``(xy)*3`` repetitions; commas and blanks mean nothing (Megatron-core,
pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.model.stated import check_counts, check_switches

from ...wording.limits import Limit
from ...wording.message import message

_REPEAT = re.compile(r"\(([^()]*)\)\*(\d{1,4})|\(([^()]*)\)|([EtmL|])\*(\d{1,4})")
_MOST = 1 << 16
"""Characters of an unrolled layout: more layers than any model has."""
_REMEDY = message("advice.megatron_layout")


def layers_of_layout(text: str, where: str) -> tuple[int, ...]:
    """Return the layers of each stage in model order.

    Raises:
        ConfigError: It is no layout, or embedding and loss are not at its ends.
    """
    flat = re.sub(r"[\s,]", "", text)
    for _ in range(len(flat)):
        after = _REPEAT.sub(_repeated, flat)
        if len(after) > _MOST:
            raise ConfigError(message("refused.too_long", text=text), where=where, remedy=_REMEDY)
        if after == flat:
            break
        flat = after
    if not re.fullmatch(r"[EtmL|]+", flat):
        raise ConfigError(
            message("refused.no_pipeline_layout", value=text), where=where, remedy=_REMEDY
        )
    stages = flat.split("|")
    at_ends = stages[0].startswith("E") and stages[-1].endswith("L")
    if flat.count("E") != 1 or flat.count("L") != 1 or not at_ends:
        raise ConfigError(message("refused.ends_of_layout", text=text), where=where, remedy=_REMEDY)
    return tuple(stage.count("t") for stage in stages)


def _repeated(match: re.Match[str]) -> str:
    if match[1] is not None:
        return match[1] * int(match[2])
    return match[3] if match[3] is not None else match[4] * int(match[5])


_COPIED = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "dp": "data_parallel_size",
    "microbatches": "num_microbatches",
    "microbatch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
    "world_size": "world_size",
    "first_layers": "decoder_first_pipeline_num_layers",
    "last_layers": "decoder_last_pipeline_num_layers",
    "embedding_counts": "account_for_embedding_in_pipeline_split",
    "loss_counts": "account_for_loss_in_pipeline_split",
}
_COUNTS = (
    *(name for name in _COPIED.values() if not name.startswith("account_")),
    *("virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage"),
    *("num_virtual_stages_per_pipeline_rank", "num_layers", "hidden_size", "num_attention_heads"),
    *("num_query_groups", "ffn_hidden_size", "kv_channels", "moe_ffn_hidden_size"),
    *("vocab_size", "padded_vocab_size", "make_vocab_size_divisible_by", "seq_length"),
    *("max_position_embeddings", "moe_router_topk", "mtp_num_layers"),
)
_AT_LEAST_ONE = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "make_vocab_size_divisible_by", "world_size"),
)
_SWITCHES = (
    *("sequence_parallel", "cross_entropy_loss_fusion", "gradient_accumulation_fusion"),
    *("no_gradient_accumulation_fusion", "use_flash_attn", "bf16", "fp16"),
    *("use_distributed_optimizer", "use_torch_fsdp2", "use_megatron_fsdp", "use_custom_fsdp"),
    *("recompute_activations", "use_precision_aware_optimizer"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
)
_BACKENDS = ("flash", "fused", "unfused", "local", "auto")
"""Megatron-core's AttnBackend, numbered from 1."""
_SHARDS = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_NOT_MODELLED = {
    "fp8": message("scope.fp8"),
    "cpu_offloading": message("scope.offloading"),
    "optimizer_cpu_offload": message("scope.optimizer_offloading"),
}


def settings_of_megatron(args: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Limit, ...]]:
    """Return our settings by name, and what cannot be taken over.

    Args:
        args: By name with underscores, values as numbers and booleans.

    Raises:
        ConfigError: A stated layout of the pipeline is none, or does not fit its ranks.
    """
    found = {ours: args[theirs] for ours, theirs in _COPIED.items() if args.get(theirs) is not None}
    pp = found.get("pp") or 1
    chunks = _chunks(args, pp)
    if chunks:
        found["vpp"] = chunks
    found |= _own_layout(args, pp)
    found["zero"] = _zero(args)
    found["sequence_parallel"] = bool(args.get("sequence_parallel", False))
    found["recompute"] = args.get("recompute_granularity") or "none"
    if args.get("recompute_activations"):
        found["recompute"] = "selective"
    found["fused_cross_entropy"] = bool(args.get("cross_entropy_loss_fusion", False))
    found["fused_attention"] = _fused_attention(args)
    found["hidden_dropout"] = float(args.get("hidden_dropout", 0.1) or 0) > 0
    fusion = args.get(
        "gradient_accumulation_fusion", not args.get("no_gradient_accumulation_fusion")
    )
    found["gradient_fusion"] = bool(fusion)
    found |= _types(args)
    limits: list[Limit] = [text for name, text in _NOT_MODELLED.items() if args.get(name)]
    if not found["fused_attention"] and args.get("attention_backend") is None:
        limits.append(message("assumed.kept_scores"))
    return found, tuple(limits)


def _own_layout(args: Mapping[str, Any], pp: int) -> dict[str, Any]:
    """Return layers by stage and chunks by a stated layout of the pipeline."""
    text, where = args.get("pipeline_model_parallel_layout"), "pipeline_model_parallel_layout"
    if text is None or text == "":
        return {}
    if not isinstance(text, str):
        raise ConfigError(
            message("refused.no_pipeline_layout", value=text),
            where=where,
            remedy=message("advice.megatron_layout"),
        )
    layers = layers_of_layout(text, where)
    chunks, rest = divmod(len(layers), pp)
    if rest:
        what = message("refused.stages_over_ranks", stages=len(layers), ranks=pp)
        raise ConfigError(what, where=where, remedy=message("advice.multiple_of_ranks"))
    return {"layers_per_stage": list(layers), "vpp": chunks}


def check_arguments(args: Mapping[str, Any], where: str) -> None:
    """Refuse arguments of another type than their names have.

    Raises:
        ConfigError: A count is no whole number of at least 0, a switch neither true nor false.
    """
    check_counts(args, _COUNTS, where)
    for name in _AT_LEAST_ONE:
        if args.get(name) is not False:
            check_counts(args, (name,), where, least=1)
    often = args.get("moe_layer_freq")
    if type(often) is int:
        check_counts(args, ("moe_layer_freq",), where, least=1)
    check_switches(args, _SWITCHES, where)
    dropout = args.get("hidden_dropout")
    if dropout is not None and not isinstance(dropout, int | float):
        raise ConfigError(
            message("refused.value_no_number", value=dropout),
            where=f"{where}: hidden_dropout",
            remedy=message("advice.number_to_1"),
        )


def _chunks(args: Mapping[str, Any], pp: int) -> int | None:
    for name in ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank"):
        if args.get(name):
            return int(args[name])
    where = "num_layers_per_virtual_pipeline_stage"
    each, layers = args.get(where), args.get("num_layers")
    if not each or not isinstance(layers, int):
        return None
    ends = [args.get(f"account_for_{end}_in_pipeline_split") for end in ("embedding", "loss")]
    total = layers + sum(bool(end) for end in ends)
    chunks, rest = divmod(total, pp * int(each))
    if rest:
        what = message("refused.layers_over_chunks", layers=total, each=each, ranks=pp)
        raise ConfigError(what, where=where, remedy=message("advice.divisor_of_layers"))
    return chunks


def _zero(args: Mapping[str, Any]) -> int:
    if args.get("use_torch_fsdp2"):
        return 3
    if args.get("use_megatron_fsdp") or args.get("use_custom_fsdp"):
        return _SHARDS.get(str(args.get("data_parallel_sharding_strategy")), 3)
    return int(bool(args.get("use_distributed_optimizer")))


def _fused_attention(args: Mapping[str, Any]) -> bool:
    """Return whether attention keeps no scores.

    Stated by the backend; else softmax in fp32 is a setting of the path that makes scores, and
    Megatron's own layers make them without flash attention.
    """
    backend = args.get("attention_backend")
    if type(backend) is int and 1 <= backend <= len(_BACKENDS):
        backend = _BACKENDS[backend - 1]
    if backend is not None:
        return str(backend).rsplit(".", 1)[-1] not in ("unfused", "local")
    if args.get("use_flash_attn"):
        return True
    local = args.get("transformer_impl", "transformer_engine") == "local"
    scaled = bool(args.get("apply_query_key_layer_scaling"))
    return not (local or scaled or args.get("attention_softmax_in_fp32"))


def _types(args: Mapping[str, Any]) -> dict[str, Any]:
    half = bool(args.get("bf16") or args.get("fp16"))
    if not half and "bf16" in args:
        return {"weight_dtype": "fp32", "gradient_dtype": "fp32"}
    found: dict[str, Any] = {"gradient_dtype": args.get("main_grads_dtype") or "fp32"}
    if args.get("grad_reduce_in_bf16") or args.get("accumulate_allreduce_grads_in_fp32") is False:
        found["gradient_dtype"] = "bf16"
    if args.get("use_precision_aware_optimizer") and args.get("exp_avg_dtype"):
        found["moment_dtype"] = args["exp_avg_dtype"]
    return found
