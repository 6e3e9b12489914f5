"""Exact Shapley values of a set function over few players.

Source: L. S. Shapley, "A value for n-person games" (1953). The value of player j
is its marginal contribution averaged over all orders in which players can join::

    phi(j) = sum over S without j of |S|! (n - |S| - 1)! / n! * (v(S + j) - v(S))

The values sum to v(all) - v(none), exactly up to rounding.
"""

from __future__ import annotations

from math import factorial

import numpy as np

from .replay import FloatArray

MAX_PLAYERS = 10
"""Above this the 2**n coalitions cost more than they tell."""


def coalitions(players: int) -> FloatArray:
    """Return the 0/1 membership of every coalition, ``(players, 2**players)``.

    Coalition ``k`` holds player ``j`` where bit ``j`` of ``k`` is set.
    """
    index = np.arange(2**players)
    return ((index[None, :] >> np.arange(players)[:, None]) & 1).astype(np.float64)


def shapley(values: FloatArray) -> FloatArray:
    """Return the Shapley value of each player.

    Args:
        values: The set function, one value a coalition, in the order of ``coalitions``.
    """
    players = len(values).bit_length() - 1
    index = np.arange(len(values))
    size = coalitions(players).sum(axis=0).astype(int)
    weight = np.array(
        [factorial(s) * factorial(players - s - 1) / factorial(players) for s in range(players)]
    )
    result = np.empty(players)
    for player in range(players):
        without = index[(index >> player) & 1 == 0]
        gain = values[without | (1 << player)] - values[without]
        result[player] = (weight[size[without]] * gain).sum()
    return result
