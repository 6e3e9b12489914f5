"""From a file that describes a model, and options, to the job to plan.

Three kinds of file are read: our TOML (``[model]`` and ``[layout]``, a configuration of the
reference trainer too), a Hugging Face ``config.json``, and Megatron's arguments as JSON, YAML or
as Megatron prints them. An option takes the place of what the file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model.stated import MOST
from meshscope.probe.schema.terms import ScheduleKind

from ...wording.limits import Limit
from ...wording.message import Message, message
from ..schedules.schedule_records import schedule_names
from .job import PlannedJob, Recompute
from .model_file import DTYPE_BYTES, ModelFile, read_model_file
from .settings import PlanSettings
from .stage_split import split_layers


def planned_job(path: Path, settings: PlanSettings) -> tuple[PlannedJob, tuple[Limit, ...]]:
    """Return the job that a file and options describe, and what had to be assumed.

    Raises:
        ConfigError: The file cannot be read, a setting is missing or wrong, or they do not fit.
    """
    found = read_model_file(path)
    values = settings.over(found.settings)
    said: list[Limit] = []
    model = _model(found, values, said, path)
    tp, pp, cp, ep, vpp = (
        _count(values.get(name), name) for name in ("tp", "pp", "cp", "ep", "vpp")
    )
    dp = _replicas(values, tp * pp * cp, said)
    layout = ParallelLayout(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, vpp=vpp)
    job = PlannedJob(
        model=model,
        layout=layout,
        expert_tp=_count(values.get("etp"), "etp", least=0, default=0),
        schedule=_schedule(values, layout),
        microbatches=_microbatches(values, layout, said),
        microbatch_size=_count(values.get("microbatch_size"), "microbatch_size"),
        layers_per_stage=stated_split(values, model.num_layers, layout),
        zero=_count(values.get("zero"), "zero", least=0, default=1),
        sequence_parallel=_switch(values, "sequence_parallel", default=True) and layout.tp > 1,
        recompute=_recompute(values.get("recompute", "none")),
        fused_cross_entropy=_switch(values, "fused_cross_entropy", default=False),
        fused_attention=_switch(values, "fused_attention", default=True),
        hidden_dropout=_switch(values, "hidden_dropout", default=False),
        gradient_fusion=_switch(values, "gradient_fusion", default=True),
        weight_bytes=_dtype(values.get("weight_dtype", "bf16"), "weight_dtype"),
        master_bytes=0 if values.get("weight_dtype") == "fp32" else 4,
        gradient_bytes=_dtype(values.get("gradient_dtype", "bf16"), "gradient_dtype"),
        moment_bytes=_dtype(values.get("moment_dtype", "fp32"), "moment_dtype"),
    )
    return job, (*found.limits, *said)


def _model(
    found: ModelFile, values: dict[str, Any], said: list[Limit], path: Path
) -> ModelDescription:
    """Return the description, with the layers, the length and the tie that options state."""
    stated = dict(found.model)
    if values.get("seq_len") is not None:
        stated["seq_len"] = _count(values["seq_len"], "seq_len")
    elif "seq_len" not in stated and found.longest:
        stated["seq_len"] = found.longest
        said.append(message("assumed.seq_len", tokens=found.longest))
    if "seq_len" not in stated:
        raise ConfigError(
            message("refused.no_seq_len"), where=str(path), remedy=message("advice.seq_len")
        )
    if values.get("tied") is not None:
        stated["tied"] = _switch(values, "tied", default=False)
    layers = _layer_counts(values.get("layers"))
    if layers:
        whole = stated.get("num_layers")
        if isinstance(whole, int) and len(layers) > 1 and sum(layers) != whole:
            said.append(message("assumed.other_layers", stated=sum(layers), model=whole))
        _cut(stated, sum(layers))
    return ModelDescription.from_fields(stated, str(path))


def _cut(stated: dict[str, Any], layers: int) -> None:
    """Set another number of layers; dense first layers, windows stay with the layers that are left."""
    stated["num_layers"] = layers
    for name in ("dense_layers", "windowed_layers"):
        chosen = stated.get(name)
        if isinstance(chosen, list | tuple):
            stated[name] = [layer for layer in chosen if layer < layers]
        elif isinstance(chosen, int) and not isinstance(chosen, bool):
            stated[name] = min(chosen, layers)
    stated.pop("parameters", None)


def _layer_counts(value: object) -> tuple[int, ...]:
    if value is None or value == "":
        return ()
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    try:
        counts = tuple(int(str(part)) for part in parts)
    except ValueError:
        counts = ()
    if not counts or min(counts) < 0 or sum(counts) < 1:
        raise ConfigError(
            message("refused.no_layer_count", value=value),
            where="layers",
            remedy=message("advice.layer_count"),
        )
    return counts


def _replicas(values: Mapping[str, Any], others: int, said: list[Limit]) -> int:
    """Return the replicas: stated, or what the ranks of the job leave.

    Args:
        values: Settings by name.
        others: tp x pp x cp.
        said: What had to be assumed; added to.
    """
    if values.get("dp") is not None:
        return _count(values["dp"], "dp")
    if values.get("world_size") is None:
        said.append(message("assumed.one_replica"))
        return 1
    world = _count(values["world_size"], "world_size")
    dp, rest = divmod(world, others)
    if rest:
        raise ConfigError(
            message("refused.ranks_over_mesh", ranks=world, others=others),
            where="world_size",
            remedy=message("advice.dp"),
        )
    return dp


def stated_split(
    values: Mapping[str, Any], num_layers: int, layout: ParallelLayout
) -> tuple[int, ...]:
    """Return the layers by stage that are stated, in model order; none where they are equal.

    Args:
        values: Settings by name, such as ``settings_of_megatron`` returns.
        num_layers: Layers of the model.
        layout: The mesh.

    Raises:
        ConfigError: What is stated fits neither model nor mesh.
    """
    counts = _layer_counts(values.get("layers"))
    stages = layout.pp * layout.vpp
    if len(counts) > 1 and len(counts) != stages:
        raise ConfigError(
            message("refused.counts_of_stages", counts=len(counts), stages=stages),
            where="layers",
            remedy=message("advice.counts_of_stages", stages=stages),
        )
    if len(counts) > 1:
        return counts
    stated = values.get("layers_per_stage")
    if stated and not counts:
        return _layer_counts(stated)
    weights = [_weight(values.get(f"{end}_weight"), end) for end in ("embedding", "head")]
    if any(weights) and num_layers >= stages:
        first, last = weights
        return split_layers(num_layers, stages, embedding_weight=first, head_weight=last)
    ends = (values.get("first_layers"), values.get("last_layers"))
    extra = (bool(values.get("embedding_counts")), bool(values.get("loss_counts")))
    if any(extra) and not any(ends):
        whole, rest = divmod(num_layers + sum(extra), stages)
        if rest:
            _refuse_split(
                message("refused.split_with_ends", layers=num_layers + sum(extra), stages=stages)
            )
        split = [whole] * stages
        split[0] -= extra[0]
        split[-1] -= extra[1]
        return tuple(split)
    if not any(ends) or stages < 2:
        return ()
    return _with_ends(num_layers, layout, ends)


def _weight(value: object, end: str) -> float:
    """Return what an end of the model counts, in layers."""
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1 << 20:
        raise ConfigError(
            message("refused.no_weight", value=value),
            where=f"{end}_weight",
            remedy=message("advice.layers_from_0"),
        )
    return float(value)


def _with_ends(
    layers: int, layout: ParallelLayout, ends: tuple[int | None, int | None]
) -> tuple[int, ...]:
    """Return a split whose first and last rank have so many layers, and the others equal ones."""
    pp, vpp = layout.pp, layout.vpp
    fixed = [end for end in ends if end is not None]
    between = pp - len(fixed)
    left = layers - sum(fixed)
    if between == 0 or left % between or left < between:
        _refuse_split(message("refused.split_between", layers=left, stages=between))
    ranks = [left // between] * pp
    for place, end in zip((0, -1), ends, strict=True):
        if end is not None:
            ranks[place] = end
    if any(count % vpp for count in ranks):
        raise ConfigError(
            message("refused.layers_into_chunks", layers=ranks, chunks=vpp),
            where="layers",
            remedy=message("advice.layers_option"),
        )
    return tuple(count // vpp for _ in range(vpp) for count in ranks)


def _refuse_split(what: Message) -> None:
    raise ConfigError(what, where="layers", remedy=message("advice.layers_option"))


def _count(value: object, where: str, *, least: int = 1, default: int = 1) -> int:
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or value < least:
        raise ConfigError(
            message("refused.no_count", value=value),
            where=where,
            remedy=message("advice.set_at_least", least=least),
        )
    if value > MOST:
        raise ConfigError(
            message("refused.value_too_large", value=value),
            where=where,
            remedy=message("advice.set_at_most", most=MOST),
        )
    return value


def _switch(values: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = values.get(name, default)
    if not isinstance(value, bool):
        raise ConfigError(
            message("refused.no_switch", value=value), where=name, remedy=message("advice.switch")
        )
    return value


def _schedule(values: Mapping[str, Any], layout: ParallelLayout) -> ScheduleKind:
    name = values.get("schedule")
    if name is None:
        return ScheduleKind.INTERLEAVED if layout.vpp > 1 else ScheduleKind.ONE_F_ONE_B
    name = {"interleaved": "interleaved-1f1b"}.get(str(name).lower(), str(name).lower())
    try:
        return ScheduleKind(name)
    except ValueError:
        raise ConfigError(
            message("refused.value_no_schedule", value=name),
            where="schedule",
            remedy=message("advice.use_schedule", known=schedule_names()),
        ) from None


def _microbatches(values: Mapping[str, Any], layout: ParallelLayout, said: list[Limit]) -> int:
    """Return the microbatches of a step: stated, by the batch, or enough to fill the pipeline."""
    if values.get("microbatches") is not None:
        return _count(values["microbatches"], "microbatches")
    batch = values.get("global_batch_size")
    if batch is not None:
        total = _count(batch, "global_batch_size")
        size = _count(values.get("microbatch_size"), "microbatch_size")
        count, rest = divmod(total, size * layout.dp)
        if rest or not count:
            raise ConfigError(
                message("refused.batch_over_dp", sequences=total, size=size, dp=layout.dp),
                where="global_batch_size",
                remedy=message("advice.microbatches_or_dp"),
            )
        return count
    if layout.pp > 1:
        said.append(message("assumed.microbatches", count=2 * layout.pp))
        return 2 * layout.pp
    return 1


def _recompute(value: object) -> Recompute:
    try:
        return Recompute(str(value))
    except ValueError:
        raise ConfigError(
            message("refused.unknown_value", value=value),
            where="recompute",
            remedy=message("advice.recompute"),
        ) from None


def _dtype(value: object, where: str) -> int:
    size = DTYPE_BYTES.get(str(value).lower().removeprefix("torch."))
    if size is None:
        raise ConfigError(
            message("refused.no_number_type", value=value),
            where=where,
            remedy=message("advice.use", known=["bf16", "fp16", "fp32"]),
        )
    return size
