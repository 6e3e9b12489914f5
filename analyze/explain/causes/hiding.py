"""Which cause hides another: alone neither returns what both together do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...tables.arrays import FloatArray, IntArray
from ...tables.results import Hiding
from .shapley_player import Player

MIN_MORE = 0.01
"""Share of the step that a pair must return beyond what its two return alone."""


def hiding(
    players: Sequence[Player], masks: IntArray, times: FloatArray, measured: float
) -> list[Hiding | None]:
    """Return for each player the one that hides it most; None where none does.

    Pairs that were not replayed (of different unions, where there are many players) hide nothing.

    Args:
        players: All causes.
        masks: The coalitions that were replayed, rising.
        times: The step time of each, ns.
        measured: The measured step time, ns.
    """
    count = len(players)
    bits = 1 << np.arange(count)
    pairs = masks[-1] & ~(bits[:, None] | bits[None, :])
    place = np.minimum(np.searchsorted(masks, pairs), len(masks) - 1)
    gain = np.where(masks[place] == pairs, times[-1] - times[place], -np.inf) / measured
    alone = np.diagonal(gain)
    more = gain - np.maximum(alone[:, None], 0.0) - np.maximum(alone[None, :], 0.0)
    np.fill_diagonal(more, -np.inf)
    return [
        Hiding(players[other].kind, players[other].where, float(gain[own, other]))
        if more[own, other] >= MIN_MORE
        else None
        for own, other in enumerate(np.argmax(more, axis=1).tolist())
    ]
