"""What Megatron's own objects tell of the model and the batch; nothing is imported for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..schema.errors import ConfigError
from ..schema.model import ModelDescription
from ..schema.model.megatron import fields_of_megatron

_OF_MODEL = (
    *("vocab_size", "share_embeddings_and_output_weights", "position_embedding_type"),
    "max_sequence_length",
)
"""Attributes of a GPTModel that its configuration does not hold."""
_MOST_WRAPPERS = 8
"""DDP, half precision, compile and a framework's own; it also ends at wrappers that hold
themselves."""


def model_facts(keywords: Mapping[str, Any], dp: int) -> dict[str, Any]:
    """Return the facts that a call of Megatron's ``forward_backward_func`` tells.

    Args:
        keywords: Those of the call: model, seq_length, micro_batch_size, num_microbatches.
        dp: Data-parallel ranks, without those of context parallelism.

    Returns:
        ``model`` and ``tokens_per_step``, as far as they are stated; nothing of what is no model of
        transformer layers.
    """
    facts: dict[str, Any] = {}
    length, micro, count = (
        keywords.get(name) for name in ("seq_length", "micro_batch_size", "num_microbatches")
    )
    if not isinstance(length, int) or length < 1:
        return {}
    if isinstance(micro, int) and isinstance(count, int) and min(micro, count, dp) > 0:
        facts["tokens_per_step"] = length * micro * count * dp
    arguments = _arguments(keywords.get("model"))
    if arguments:
        try:
            fields = fields_of_megatron({**arguments, "seq_length": length}, "Megatron's config")
            ModelDescription.from_fields(fields)
        except ConfigError:
            return facts
        facts["model"] = fields
    return facts


def _arguments(model: object) -> dict[str, Any]:
    """Return the configuration of a model, which may be wrapped or be a list of chunks."""
    module = model[0] if isinstance(model, list | tuple) and model else model
    for _ in range(_MOST_WRAPPERS):
        inner = getattr(module, "module", None)
        if inner is None:
            break
        module = inner
    config = getattr(module, "config", None)
    values = getattr(config, "__dict__", None)
    described = {name: getattr(module, name, None) for name in _OF_MODEL}
    if not values or not isinstance(described["vocab_size"], int):
        return {}
    arguments = {
        **values,
        **{name: value for name, value in described.items() if value is not None},
    }
    # The model has its final number of rows: nothing is left to pad.
    arguments["padded_vocab_size"] = described["vocab_size"]
    arguments["max_position_embeddings"] = described["max_sequence_length"]
    return arguments
