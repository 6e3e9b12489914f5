"""Fields of a description from what states a model: ours, Hugging Face, Megatron, torchtitan, LitGPT."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...schema.message import message
from ..errors import ConfigError
from .description import ModelDescription

REFUSED = "refused"
"""The only field of a model that no formula counts: the cell of the message why."""
_SIZES_ALONE = frozenset(
    {"num_layers", "hidden_size", "ffn_size", "num_heads", "seq_len", "vocab_size", "parameters"}
)
"""Columns of the run table; a model with no other field leaves open what it is."""


def describe_model(source: object, where: str = "model", **stated: object) -> ModelDescription:
    """Return the description of a model.

    Args:
        source: Fields of ``ModelDescription`` by name; the content of a Hugging Face
            ``config.json``, or a config object; Megatron's or torchtitan's arguments, as a mapping or an object.
        where: How errors name it.
        stated: Fields that take the place of what the source says, such as ``seq_len``.

    Raises:
        ConfigError: It is none of these, or a size is missing or impossible.
    """
    return ModelDescription.from_fields({**model_fields(source, where), **stated}, where)


def model_fields(source: object, where: str = "model") -> dict[str, object]:
    """Return the fields that a source states, which need not be all of a description.

    Raises:
        ConfigError: It is no model that is known here.
    """
    values = _mapping(source, where)
    if is_hugging_face(values):
        from .hugging_face import fields_of_hugging_face

        return fields_of_hugging_face(values, where)
    if "mlp_class_name" in values:
        from .litgpt import fields_of_litgpt, is_litgpt

        if is_litgpt(values):
            return fields_of_litgpt(values, where)
    if "num_attention_heads" in values or "padded_vocab_size" in values:
        from .megatron import fields_of_megatron

        return fields_of_megatron(values, where)
    if "n_layers" in values and "dim" in values:
        from .torchtitan import fields_of_torchtitan

        return fields_of_torchtitan(values, where)
    return dict(values)


def is_hugging_face(values: Mapping[str, Any]) -> bool:
    """Return whether names are those of a Hugging Face config: a family, or how it alone calls its layers."""
    return any(name in values for name in ("model_type", "architectures", "num_hidden_layers"))


def _mapping(source: object, where: str) -> Mapping[str, Any]:
    if isinstance(source, Mapping):
        return source
    to_dict = getattr(source, "to_dict", None)
    found = to_dict() if callable(to_dict) else getattr(source, "__dict__", None)
    if not isinstance(found, Mapping):
        raise ConfigError(
            message("refused.kind_no_model", kind=type(source).__name__),
            where=where,
            remedy=message("advice.sizes_or_config"),
        )
    return found


def model_text(model: object, observed: object = None, refused: object = None) -> str | None:
    """Return what a manifest says of a model as JSON, None where it says sizes alone.

    Args:
        model: Fields of a description.
        observed: Those that tell what ran of it.
        refused: The cell of the message why no model was described.
    """
    ran = observed if isinstance(observed, Mapping) else {}
    if not isinstance(model, Mapping) or not set(model) - _SIZES_ALONE:
        told = {REFUSED: refused} if isinstance(refused, str) else {}
        return None if model or not {**ran, **told} else json.dumps({**ran, **told}, sort_keys=True)
    return json.dumps({**model, **ran}, sort_keys=True)
