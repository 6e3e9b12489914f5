"""What a topology file states about memory: the fields of ``[training]`` that decide what a rank holds."""

from __future__ import annotations

from meshscope.probe.schema.errors import ConfigError

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
_MOST = 1 << 50


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
