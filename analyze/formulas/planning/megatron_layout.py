"""Megatron's ``--pipeline-model-parallel-layout``: which layers each stage has.

``E`` embedding, ``t`` layer, ``m`` layer of multi-token prediction, ``L`` loss, ``|`` border of two
stages, ``x*3`` and ``(xy)*3`` repetitions; commas and blanks mean nothing (Megatron-core,
pipeline_parallel_layer_layout.py).
"""

from __future__ import annotations

import re

from meshscope.probe.schema.errors import ConfigError

from ...wording.message import message

_REPEAT = re.compile(r"\(([^()]*)\)\*(\d{1,4})|\(([^()]*)\)|([EtmL|])\*(\d{1,4})")
_MOST = 1 << 16
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
