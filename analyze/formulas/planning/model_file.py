"""What a file says of a model and of the settings of its training, by our names.

The file holds names and values as frameworks write them: JSON, flat YAML, what Megatron prints at its start, or
the script that starts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model.fields import is_hugging_face, model_fields
from meshscope.probe.schema.model.hugging_face import fields_of_hugging_face
from meshscope.probe.schema.model.litgpt import is_litgpt
from meshscope.probe.schema.model.megatron import fields_of_megatron

from ...tables.toml_file import read_bounded, read_toml, table_of
from ...wording.limits import Limit
from ...wording.message import message
from .launch_script import arguments_of_script
from .megatron_settings import check_arguments, settings_of_megatron
from .settings import SETTINGS

_PRINTED = re.compile(r"^(?:.*[\s:\]])?(\w+) \.{2,} (.*)$")
"""A line of Megatron's list of arguments: ``  num_layers ............ 32``, after a rank, a time or neither."""
_YAML = re.compile(r"^(\s*)(?:--)?([A-Za-z_][\w-]*)\s*:(?:\s+(.*))?$")
_ITEM = re.compile(r"^\s*-\s+(\S.*)$")
_WORDS = {"true": True, "false": False, "null": None, "none": None, "~": None, "": None}


def read_arguments(path: Path) -> dict[str, object]:
    """Return the names and values of a file; those of nested YAML tables by their own names.

    Raises:
        ConfigError: It cannot be read, or holds nothing of this kind.
    """
    raw = read_bounded(path, remedy=message("advice.path_inside_file"))
    text = raw.decode("utf-8-sig", errors="replace")
    if text.lstrip().startswith("{"):
        return _json(text, path)
    lines = text.splitlines()
    matches = [match for line in lines if (match := _PRINTED.match(line))]
    printed = {match[1]: match[2] for match in matches}
    if "num_layers" in printed:
        return {name: read_scalar(value) for name, value in printed.items()}
    script = arguments_of_script(text)
    if script is not None:
        return {k: read_scalar(v) if isinstance(v, str) else v for k, v in script.items()}
    found = _flat_yaml(lines)
    if not found:
        raise ConfigError(
            message("refused.no_named_values"),
            where=str(path),
            remedy=message("advice.argument_files"),
        )
    return found


def _flat_yaml(lines: Iterable[str]) -> dict[str, object]:
    """Return the scalars and lists by their own names, wherever they are nested."""
    found: dict[str, object] = {}
    items: list[object] | None = None
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        named, item = _YAML.match(line), _ITEM.match(line)
        if named is not None:
            # A comment ends the line, and may be all of it.
            name, text = named[2].replace("-", "_"), f" {named[3] or ''}".split(" #", 1)[0].strip()
            found[name], items = read_scalar(text), None
            if not text:
                # A list may follow, an item a line.
                items = []
        elif item is not None and items is not None:
            items.append(read_scalar(item[1]))
            found[name] = items
    return found


def _json(text: str, path: Path) -> dict[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            message("refused.invalid_json", error=str(error)), where=str(path)
        ) from error
    if not isinstance(content, dict):
        raise ConfigError(message("refused.no_json_object"), where=str(path))
    return content


def read_scalar(text: str) -> object:
    """Return the value of a scalar or a list in one line; what is none of these is text."""
    text = text.split(" #", 1)[0].strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    for kind in (int, float):
        try:
            return kind(text.replace("_", "") if kind is int else text)
        except ValueError:
            continue
    if text[:1] in "[(" and text[-1:] in "])" and "*" not in text:
        return [read_scalar(part) for part in text[1:-1].split(",") if part.strip()]
    return text


DTYPE_BYTES = {
    "bf16": 2,
    "bfloat16": 2,
    "fp16": 2,
    "float16": 2,
    "half": 2,
    "fp32": 4,
    "float32": 4,
    "float": 4,
    "fp8": 1,
}
_TRAINER_MODEL = {
    "layers": "num_layers",
    "hidden": "hidden_size",
    "heads": "num_heads",
    "ffn": "ffn_size",
    "vocab": "vocab_size",
}
"""Names of the reference trainer's ``[model]``."""
_TRAINER_TABLES = {
    "schedule": {
        "kind": "schedule",
        "embedding_weight": "embedding_weight",
        "head_weight": "head_weight",
        "microbatches": "microbatches",
        "layers_per_stage": "layers_per_stage",
    },
    "train": {"global_batch": "global_batch_size"},
    "memory": {
        "recompute": "recompute",
        "gradients": "gradient_dtype",
        "precision": "weight_dtype",
    },
    "data_parallel": {"zero": "zero"},
    "tensor": {"sequence_parallel": "sequence_parallel"},
    "training": {
        "schedule": "schedule",
        "microbatches": "microbatches",
        "global_batch_size": "global_batch_size",
        "micro_batch_size": "microbatch_size",
    },
}
"""Tables beside ``[model]`` and ``[layout]``, with our name of each setting."""
_LAYOUT_WORDS = {"micro_batch_size": "microbatch_size", "num_microbatches": "microbatches"}
_NESTED = ("args", "MODEL_ARGS", "model_args", "text_config", "language_config")
"""Keys under which a file may hold the map of names alone."""


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model and settings as a file states them."""

    model: Mapping[str, Any]
    """Fields of ``ModelDescription``."""
    settings: Mapping[str, Any]
    """Fields of ``PlanSettings``, and how layers are split at the ends."""
    longest: int = 0
    """The longest sequence that the model is made for; 0: not stated."""
    limits: tuple[Limit, ...] = ()


def read_model_file(path: Path) -> ModelFile:
    """Return what a file says.

    Raises:
        ConfigError: It cannot be read, or describes no model that is known here.
    """
    if not path.exists():
        raise ConfigError(
            message("refused.no_such_file"), where=str(path), remedy=message("advice.path")
        )
    if path.is_dir():
        inside = path / "config.json"
        if not inside.is_file():
            raise ConfigError(
                message("refused.no_config_json"),
                where=str(path),
                remedy=message("advice.name_file"),
            )
        path = inside
    if path.suffix.lower() == ".toml":
        return _toml(path)
    return _named(read_arguments(path), path)


def _named(content: Mapping[str, Any], path: Path) -> ModelFile:
    """Return what a map of names says: a Hugging Face config, Megatron's arguments or our names."""
    where = str(path)
    if isinstance(content.get("model"), dict):
        return _ours(content, path)
    values = _unwrapped(content)
    if is_hugging_face(values):
        longest = next(
            (values[n] for n in ("max_position_embeddings", "n_positions") if values.get(n)), 0
        )
        longest = longest if isinstance(longest, int) else 0
        return ModelFile(model=fields_of_hugging_face(values, where), settings={}, longest=longest)
    if ("dim" in values and "n_layers" in values) or is_litgpt(values):
        return ModelFile(model=model_fields(values, where), settings={})
    plain = {_plain_name(name): _plain_value(value) for name, value in values.items()}
    if "num_attention_heads" in plain or "padded_vocab_size" in plain:
        check_arguments(plain, where)
        settings, limits = settings_of_megatron(plain)
        found = {k: v for k, v in fields_of_megatron(plain, where).items() if v is not None}
        if "vocab_size" not in found:
            raise ConfigError(
                message("refused.no_vocabulary"),
                where=where,
                remedy=message("advice.vocabulary"),
            )
        return ModelFile(model=found, settings=settings, limits=limits)
    known = {field.name for field in fields(ModelDescription)}
    if known & set(plain):
        return _ours({"model": {k: v for k, v in plain.items() if k in known}}, path)
    raise ConfigError(
        message("refused.no_model"),
        where=where,
        remedy=message("advice.model_files"),
    )


def _plain_name(name: object) -> str:
    return str(name).lstrip("-").replace("-", "_")


def _plain_value(value: object) -> object:
    """Return a value of Megatron's arguments, which files also hold as text."""
    return read_scalar(value) if isinstance(value, str) else value


def _unwrapped(content: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in _NESTED:
        inside = content.get(name)
        if isinstance(inside, dict) and inside and not content.get("vision_config"):
            rest = {k: v for k, v in content.items() if k != name}
            keep = {k: v for k, v in rest.items() if not isinstance(v, dict | list)}
            return {**keep, **inside} if name == "text_config" else inside
    return content


def _toml(path: Path) -> ModelFile:
    content, _ = read_toml(path, remedy=message("advice.toml_with_model"))
    return _ours(content, path)


def _ours(content: Mapping[str, Any], path: Path) -> ModelFile:
    table = content.get("model")
    if not isinstance(table, dict) or not table:
        raise ConfigError(
            message("refused.no_model_table"),
            where=str(path),
            remedy=message("advice.model_table"),
        )
    stated = dict(table)
    below = ModelFile(model={}, settings={})
    for kind in ("hugging_face", "megatron"):
        if kind in stated:
            below = _named(read_arguments(path.parent / str(stated.pop(kind))), path)
    family = stated.pop("family", None)
    model = {_TRAINER_MODEL.get(name, name): value for name, value in stated.items()}
    if family is not None:
        model = {**_family(family, path, model), **model}
    if isinstance(content.get("moe"), dict):
        model |= {k: v for k, v in content["moe"].items() if k in ("experts", "experts_per_token")}
        if not model.get("experts"):
            model = {k: v for k, v in model.items() if not k.startswith("experts")}
    settings: dict[str, Any] = dict(below.settings)
    if "num_attention_heads" in model and "model_type" not in model:
        check_arguments(model, f"{path}: model")
        settings |= settings_of_megatron(model)[0]
    model = model_fields(model, f"{path}: model")
    return ModelFile(
        model={**below.model, **model},
        settings={**settings, **_toml_settings(content, path)},
        longest=below.longest,
        limits=below.limits,
    )


def _family(family: object, path: Path, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the reference trainer's families build beside their sizes."""
    if family not in ("gpt", "llama"):
        raise ConfigError(
            message("refused.family", value=family),
            where=f"{path}: model.family",
            remedy=message("advice.family"),
        )
    if family == "llama":
        return {"gated": True}
    biased = dict.fromkeys(("norm_shift", "qkv_bias", "out_bias", "mlp_bias"), True)
    return {**biased, "learned_positions": model.get("seq_len", 0)}


def _toml_settings(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for table, names in _TRAINER_TABLES.items():
        values = content.get(table)
        if isinstance(values, dict):
            found |= {names[name]: value for name, value in values.items() if name in names}
    layout = table_of(content, "layout", path)
    for name, value in layout.items():
        known = _LAYOUT_WORDS.get(name, name)
        if known not in (*SETTINGS, "layers_per_stage", "order"):
            raise ConfigError(
                message("refused.unknown_field", name=name),
                where=f"{path}: layout",
                remedy=message("advice.use", known=list(SETTINGS)),
            )
        if known != "order":
            found[known] = value
    return found
