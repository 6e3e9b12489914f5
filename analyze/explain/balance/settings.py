"""A layer split in the words of the frameworks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate


def framework_settings(layers: Sequence[int], ranks: int) -> dict[str, str]:
    """Return how each framework is told a split.

    Args:
        layers: Of the stages in model order, ``ranks`` x chunks of them.
        ranks: Pipeline ranks.
    """
    return {
        "megatron": _megatron(layers, ranks),
        "torchtitan": _torchtitan(layers),
        "deepspeed": _deepspeed(layers),
        "meshscope": f"[schedule]\nlayers_per_stage = {list(layers)}",
    }


def _megatron(layers: Sequence[int], ranks: int) -> str:
    """Return the layout string, and the numbers of the ends where they say the same.

    >>> _megatron((4, 5, 5, 2), 4)
    '--pipeline-model-parallel-layout "Et*4|t*5|t*5|t*2L" or --decoder-first-pipeline-num-layers 4 --decoder-last-pipeline-num-layers 2'
    """
    parts = ["t" if count == 1 else f"t*{count}" if count else "" for count in layers]
    parts[0] = f"E{parts[0]}"
    parts[-1] = f"{parts[-1]}L"
    text = f'--pipeline-model-parallel-layout "{"|".join(parts)}"'
    inner = layers[1:-1]
    if len(layers) == ranks and inner and len(set(inner)) == 1 and layers[0] and layers[-1]:
        text += (
            f" or --decoder-first-pipeline-num-layers {layers[0]} "
            f"--decoder-last-pipeline-num-layers {layers[-1]}"
        )
    return text


def _torchtitan(layers: Sequence[int]) -> str:
    """Return the names of the modules of each part.

    >>> _torchtitan((1, 1))
    'module_fqns_per_model_part = [["tok_embeddings", "layers.0"], ["layers.1", "norm", "output"]]'
    """
    ends = list(accumulate(layers))
    parts = [
        [f"layers.{layer}" for layer in range(end - count, end)]
        for count, end in zip(layers, ends, strict=True)
    ]
    parts[0] = ["tok_embeddings", *parts[0]]
    parts[-1] = [*parts[-1], "norm", "output"]
    return f"module_fqns_per_model_part = {json.dumps(parts)}"


def _deepspeed(layers: Sequence[int]) -> str:
    """Return the borders of the parts in a list of embedding, layers, norm and head.

    >>> _deepspeed((4, 2))
    'parts = [0, 5, 9]  # PipelineModule of [embedding, 6 layers, norm, head]'
    """
    borders = [0, *(1 + end for end in accumulate(layers))]
    borders[-1] += 2
    return f"parts = {borders}  # PipelineModule of [embedding, {sum(layers)} layers, norm, head]"
