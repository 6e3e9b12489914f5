"""Which layers of a Hugging Face model have a window, and how wide it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from ..message import Message, message

_WINDOWED = ("sliding_attention", "chunked_attention")


def add_window(
    config: Mapping[str, Any], family: str, found: dict[str, object], remedy: Message
) -> None:
    """Add the window and the layers that have it, where a model has one.

    Args:
        config: The content of a ``config.json``.
        family: Its ``model_type``.
        found: The fields of the description so far; added to.
        remedy: What to do about layers that no formula counts.

    Raises:
        ConfigError: Layers are of a kind that is not counted, or their list is too short.
    """
    layers = int(str(found.get("num_layers", 0)))
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and 0 < len(kinds) < layers:
        raise ConfigError(
            message("refused.moe_pattern", count=len(kinds), layers=layers),
            where="layer_types",
            remedy=remedy,
        )
    if isinstance(kinds, list) and kinds:
        other = sorted(set(map(str, kinds)) - set(_WINDOWED) - {"full_attention"})
        if other:
            raise ConfigError(
                message("refused.kind_of_layers", kind=other[0]),
                where="layer_types",
                remedy=remedy,
            )
        name = "attention_chunk_size" if "chunked_attention" in kinds else "sliding_window"
        chosen = [layer for layer in range(layers) if kinds[layer] in _WINDOWED]
    elif family == "llama4_text":
        name, is_chunked = "attention_chunk_size", config.get("no_rope_layers") or ()
        chosen = [
            n for n in range(layers) if (is_chunked[n] if n < len(is_chunked) else (n + 1) % 4)
        ]
    else:
        name = "sliding_window"
        chosen = [layer for layer in range(layers) if _slides(config, family, layer)]
    window = config.get(name)
    if isinstance(window, int) and window > 0 and chosen:
        found["window"] = window
        found["windowed_layers"] = chosen
        found["chunked"] = name == "attention_chunk_size"


def _slides(config: Mapping[str, Any], family: str, layer: int) -> bool:
    """Return whether a layer has the window, for configs that list no layer types."""
    if config.get("use_sliding_window") is False:
        return False
    if family.startswith("qwen"):
        return bool(config.get("use_sliding_window")) and layer >= int(
            config.get("max_window_layers") or 0
        )
    every = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(every, str) and every:
        return every[layer % len(every)] == "L"
    if every is None:
        every = {"gemma2": 2, "gpt_oss": 2, "gemma3_text": 6, "cohere2": 4}.get(family)
    return not isinstance(every, int) or every < 1 or bool((layer + 1) % every)
