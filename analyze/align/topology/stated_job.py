"""What a topology file states about model and training: ``[model]`` and ``[training]``.

A trace of another tool does not hold them, and without them there is no MFU, no ideal bubble and no
what-if of another schedule. Some fields of ``[training]`` decide what memory a rank holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import msgspec

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import ModelDescription, model_fields
from meshscope.probe.schema.model.fields import model_text
from meshscope.probe.schema.model.hugging_face import fields_of_hugging_face
from meshscope.probe.schema.model.megatron import fields_of_megatron
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import ScheduleKind

from ...formulas.planning.model_file import read_arguments
from ...tables.toml_file import only_known, table_of
from ...wording.message import message

_SWITCHES = (
    *("sequence_parallel", "fused_cross_entropy", "fused_attention"),
    *("gradient_fusion", "hidden_dropout"),
)
_NUMBERS = ("zero", "etp", "device_memory_bytes")
_CHOICES = {
    "recompute": ("none", "selective", "full"),
    "weight_dtype": ("bf16", "fp16", "fp32"),
    "gradient_dtype": ("bf16", "fp16", "fp32"),
    "moment_dtype": ("bf16", "fp16", "fp32", "fp8"),
}
_LAYERS = "layers"
MEMORY_FIELDS = (*_SWITCHES, *_NUMBERS, *_CHOICES, _LAYERS)
"""Their names; ``layers`` is a list, one number a stage in model order."""
CAPACITY = "device_memory_bytes"


def memory_field(name: str, value: object, where: str) -> object:
    """Return the value of a field.

    Raises:
        ConfigError: It is none for this field.
    """
    if name in _SWITCHES:
        if not isinstance(value, bool):
            raise ConfigError(
                message("refused.no_switch", value=value),
                where=where,
                remedy=message("advice.switch"),
            )
    elif name in _CHOICES:
        if value not in _CHOICES[name]:
            raise ConfigError(
                message("refused.unknown_value", value=value),
                where=where,
                remedy=message("advice.use", known=list(_CHOICES[name])),
            )
    elif name == _LAYERS:
        is_list = isinstance(value, list) and value and all(_is_count(one) for one in value)
        if not is_list:
            raise ConfigError(
                message("refused.no_list_of_layers", value=value),
                where=where,
                remedy=message("advice.list_of_layers"),
            )
    elif not _is_count(value):
        raise ConfigError(
            message("refused.no_count", value=value),
            where=where,
            remedy=message("advice.write_at_least", least=0),
        )
    return value


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MOST


_FILES = {"hugging_face": fields_of_hugging_face, "megatron": fields_of_megatron}
"""Keys of ``[model]`` that name a file, and its reader; other keys take the place of what it says."""
_COUNTS = ("tokens_per_step", "global_batch_size", "micro_batch_size", "microbatches")
_TRAINING = (
    *_COUNTS,
    "flops_per_token",
    "schedule",
    "peak_flops",
    "peak_source",
    "device_name",
    *MEMORY_FIELDS,
)
MEMORY_SETTINGS, ARGUMENTS = "memory_settings", "training_arguments"
"""Keys of a run that no table holds: fields about memory, and Megatron's arguments."""
_MOST = 1 << 50
_MOST_FLOPS = 1e18
"""A device of more flop/s at peak does not exist, and no token takes as many."""


class StatedJob(msgspec.Struct, frozen=True, kw_only=True):
    """Model and training as the user states them; what is not stated is left as it is."""

    model: ModelDescription | None = None
    training: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Fields of ``[training]``."""
    arguments: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Megatron's arguments, where a file holds them."""
    files: tuple[Path, ...] = ()
    """Files that were read beside the topology file."""

    def run_values(self, layout: ParallelLayout | None) -> dict[str, object]:
        """Return the columns of the run table that this states.

        Args:
            layout: The mesh, by which a batch divides into microbatches.
        """
        columns = set(TABLES["run"].column_names())
        values: dict[str, object] = {}
        if self.model is not None:
            fields = asdict(self.model)
            values = {name: value for name, value in fields.items() if name in columns and value}
            values["model"] = model_text(fields)
        given = dict(self.training)
        values |= {name: value for name, value in given.items() if name in columns}
        memory = {name: given[name] for name in MEMORY_FIELDS if name in given}
        if CAPACITY in memory:
            values[CAPACITY] = memory.pop(CAPACITY)
        if memory:
            values[MEMORY_SETTINGS] = memory
        if self.arguments:
            values[ARGUMENTS] = dict(self.arguments)
        batch, micro = given.get("global_batch_size"), given.get("micro_batch_size")
        if isinstance(batch, int) and self.model is not None:
            values.setdefault("tokens_per_step", batch * self.model.seq_len)
        if isinstance(batch, int) and isinstance(micro, int) and layout is not None:
            count, rest = divmod(batch, micro * layout.dp)
            if count and not rest:
                values.setdefault("microbatches", count)
        return values


def read_job(content: Mapping[str, object], path: Path) -> StatedJob:
    """Return what the tables ``[model]`` and ``[training]`` of a topology file state.

    Raises:
        ConfigError: A field is unknown or wrong, or a file that they name cannot be read.
    """
    model, training = (table_of(content, name, path) for name in ("model", "training"))
    files: list[Path] = []
    arguments: dict[str, object] = {}
    description = None
    if model:
        description, arguments = _model(model, path, files)
    known = {**_of_megatron(arguments), **_checked(training, f"{path}: training")}
    return StatedJob(model=description, training=known, arguments=arguments, files=tuple(files))


def _model(
    table: Mapping[str, object], path: Path, files: list[Path]
) -> tuple[ModelDescription, dict[str, object]]:
    where = f"{path}: model"
    given = [name for name in _FILES if name in table]
    stated = {name: value for name, value in table.items() if name not in _FILES}
    if len(given) > 1:
        raise ConfigError(
            message("refused.same_thing", names=given),
            where=where,
            remedy=message("advice.give_one"),
        )
    arguments: dict[str, object] = {}
    fields = model_fields(stated, where)
    if given:
        file = _file(table[given[0]], path, f"{where}.{given[0]}")
        files.append(file)
        arguments = read_arguments(file)
        fields = {**_FILES[given[0]](arguments, str(file)), **fields}
    description = ModelDescription.from_fields(fields, where)
    return description, arguments if given == ["megatron"] else {}


def _file(name: object, path: Path, where: str) -> Path:
    """Return the file of that name: in the folder of the topology file, where it is kept too."""
    if not isinstance(name, str) or not name:
        raise ConfigError(
            message("refused.value_no_file", value=name),
            where=where,
            remedy=message("advice.write_config_json"),
        )
    kept = path.parent / kept_name(Path(name))
    return kept if kept.is_file() else path.parent / Path(name).expanduser()


def kept_name(file: Path) -> str:
    """Return the name under which a file lies in the run that the topology file is kept for."""
    return f"topology-{file.name}"


def _of_megatron(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return what Megatron's arguments say of the training."""
    found = {name: arguments.get(name) for name in ("global_batch_size", "micro_batch_size")}
    known: dict[str, object] = {k: v for k, v in found.items() if type(v) is int and v > 0}
    virtual = ("virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage")
    stages = arguments.get("pipeline_model_parallel_size")
    if isinstance(stages, int) and stages > 1:
        interleaved = any(arguments.get(name) for name in virtual)
        kind = ScheduleKind.INTERLEAVED if interleaved else ScheduleKind.ONE_F_ONE_B
        known["schedule"] = kind.value
    return known


def _checked(table: Mapping[str, object], where: str) -> dict[str, object]:
    only_known(table, _TRAINING, where)
    return {name: _field(name, value, f"{where}.{name}") for name, value in table.items()}


def _field(name: str, value: object, where: str) -> object:
    if name in MEMORY_FIELDS:
        return memory_field(name, value, where)
    if name in _COUNTS:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not 1 <= value <= _MOST:
            raise ConfigError(
                message("refused.no_count", value=value),
                where=where,
                remedy=message("advice.write_at_least", least=1),
            )
        return value
    if name in ("peak_flops", "flops_per_token"):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 < float(str(value)) <= _MOST_FLOPS:
            what, remedy = message("refused.no_peak", value=value), message("advice.peak")
            if name == "flops_per_token":
                what = message("refused.no_flops", value=value)
                remedy = message("advice.flops_of_token")
            raise ConfigError(what, where=where, remedy=remedy)
        return float(str(value))
    if name == "schedule" and value not in tuple(ScheduleKind):
        raise ConfigError(
            message("refused.value_no_schedule", value=value),
            where=where,
            remedy=message("advice.use", known=list(ScheduleKind)),
        )
    if not isinstance(value, str) or not value:
        raise ConfigError(
            message("refused.value_no_text", value=value),
            where=where,
            remedy=message("advice.write_text", name=name),
        )
    return value
