"""Exact Shapley values of a set function over players, and Owen values over unions of them.

Source: L. S. Shapley, "A value for n-person games" (1953); G. Owen, "Values of games
with a priori unions" (1977). The value of a player is its marginal contribution
averaged over all orders in which players can join; for the Owen value, over those
orders in which the members of a union join one after the other::

    phi(j) = sum over H without U(j) of |H|! (u - |H| - 1)! / u! *
             sum over S in U(j) without j of |S|! (b - |S| - 1)! / b! *
             (v(H + S + j) - v(H + S))

with u unions, b members in U(j), and H a set of whole unions. Where each player is a
union of its own it is the Shapley value. The values sum to v(all) - v(none), exactly
up to rounding.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import factorial

import numpy as np

from ...tables.arrays import FloatArray, IntArray

MAX_PLAYERS = 10
"""Above this the 2**n coalitions cost more than they tell, and players join by unions."""


def unions_of(labels: Sequence[Hashable]) -> list[list[int]]:
    """Return the unions to take values over: single players, or those of one label if many."""
    if len(labels) <= MAX_PLAYERS:
        return [[player] for player in range(len(labels))]
    return [[p for p, own in enumerate(labels) if own == label] for label in dict.fromkeys(labels)]


def coalitions(unions: Sequence[Sequence[int]]) -> IntArray:
    """Return the coalitions that the values need, as sorted bit masks.

    Bit ``j`` is player ``j``. The first is empty, the last holds everybody.
    """
    masks = [_masks_within(unions, own) for own in range(len(unions))]
    return np.unique(np.concatenate([part.ravel() for part in masks] or [np.zeros(1, np.int64)]))


def membership(masks: IntArray, players: int) -> FloatArray:
    """Return the 0/1 membership of coalitions, ``(players, coalitions)``."""
    return ((masks[None, :] >> np.arange(players)[:, None]) & 1).astype(np.float64)


def shares(unions: Sequence[Sequence[int]], masks: IntArray, values: FloatArray) -> FloatArray:
    """Return the value of each player.

    Args:
        unions: The players of each union.
        masks: The coalitions, as ``coalitions`` gives them.
        values: The set function, one value a coalition.
    """
    result = np.zeros(sum(map(len, unions)))
    for own, members in enumerate(unions):
        table = values[np.searchsorted(masks, _masks_within(unions, own))]
        outer = _weights(len(unions))[_size(np.arange(table.shape[0]))]
        inside = np.arange(table.shape[1])
        inner = _weights(len(members))
        for place, player in enumerate(members):
            without = inside[(inside >> place) & 1 == 0]
            gain = table[:, without | (1 << place)] - table[:, without]
            result[player] = outer @ gain @ inner[_size(without)]
    return result


def _masks_within(unions: Sequence[Sequence[int]], own: int) -> IntArray:
    """Return the masks of every set of other unions with every subset of one union.

    ``(2**(unions - 1), 2**members)``; bit ``k`` of a row or column index says whether
    the k-th other union, or the k-th member, is in it.
    """
    others = [sum(1 << p for p in union) for k, union in enumerate(unions) if k != own]
    rows = _sums_of_subsets(others)
    columns = _sums_of_subsets([1 << player for player in unions[own]])
    return rows[:, None] | columns[None, :]


def _sums_of_subsets(parts: list[int]) -> IntArray:
    sums = np.zeros(1, np.int64)
    for part in parts:
        sums = np.concatenate([sums, sums | part])
    return sums


def _weights(players: int) -> FloatArray:
    """Return the weight of a coalition by its size: |S|! (n - |S| - 1)! / n!."""
    return np.array(
        [factorial(s) * factorial(players - s - 1) / factorial(players) for s in range(players)]
    )


def _size(index: IntArray) -> IntArray:
    """Return how many bits of each index are set."""
    bits = np.arange(max(int(index.max(initial=0)).bit_length(), 1))
    return np.asarray(((index[:, None] >> bits) & 1).sum(axis=1))
