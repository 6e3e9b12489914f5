"""How many blocks each pipeline stage gets: by hand (``4,4,4,2``), by weight, or evenly."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from meshscope.probe.schema.errors import ConfigError

from ...wording.message import message


def split_layers(
    layers: int,
    stages: int,
    *,
    weights: Sequence[float] = (),
    embedding_weight: float = 0.0,
    head_weight: float = 0.0,
) -> tuple[int, ...]:
    """Return the blocks of each stage that make the busiest stage least busy.

    A stage is busy for (its blocks + its edge part) / its weight. Each block in turn
    goes to the stage that it makes least busy, the first of equals, which is optimal
    because all blocks cost the same; every stage gets one block before any gets two.

    >>> split_layers(7, 3)
    (3, 2, 2)
    >>> split_layers(14, 4, embedding_weight=1, head_weight=1)
    (3, 4, 4, 3)
    >>> split_layers(9, 2, weights=(1, 2))
    (3, 6)

    Args:
        layers: Blocks of the model, at least ``stages``.
        stages: Stages in model order.
        weights: Relative speed of each stage; empty: all the same.
        embedding_weight: Cost of the embedding on the first stage, in blocks.
        head_weight: Cost of the output head on the last stage, in blocks.
    """
    speed = list(weights) or [1.0] * stages
    extra = [0.0] * stages
    extra[0] += embedding_weight
    extra[-1] += head_weight
    counts = [1] * stages
    for _ in range(layers - stages):
        busy = [(counts[s] + 1 + extra[s]) / speed[s] for s in range(stages)]
        counts[busy.index(min(busy))] += 1
    return tuple(counts)


def layer_ranges(counts: Sequence[int]) -> tuple[range, ...]:
    """Return the indices of each stage's blocks in the whole model.

    >>> layer_ranges((3, 1))
    (range(0, 3), range(3, 4))
    """
    ends = list(accumulate(counts))
    return tuple(range(end - count, end) for end, count in zip(ends, counts, strict=True))


_COUNTS = re.compile(r"\s*\d{1,6}\s*(,\s*\d{1,6}\s*)*")


def parse_counts(text: str, where: str) -> tuple[int, ...]:
    """Return whole numbers with commas between.

    Raises:
        ConfigError: The text is something else.
    """
    if not _COUNTS.fullmatch(text):
        raise ConfigError(
            message("refused.no_list_of_layers", value=text),
            where=where,
            remedy=message("advice.counts"),
        )
    return tuple(int(part) for part in text.split(","))
