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

Where there are too many players, those that change next to nothing join first, one after the other, and
only the rest in all orders: what is wrong by that is no more than these change.

A player hides another where alone neither returns what both together do.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import factorial
from typing import NamedTuple

import numpy as np

from ...tables.arrays import FloatArray, IntArray
from ...tables.results import Hiding
from .shapley_player import Player

MAX_PLAYERS = 10
"""Above this the 2**n coalitions cost more than they tell: the least ones join first, or all by unions."""
NEXT_TO_NOTHING = 1e-3
"""Share of v(all) that a player of these changes at most, as the only one and as the last one."""


class Joining(NamedTuple):
    """The orders in which players can join; each player is in one of the two."""

    first: tuple[int, ...]
    """Those that always join first, one after the other."""
    unions: list[list[int]]
    """The others, whose members join one after the other."""

    @property
    def players(self) -> int:
        """Return how many there are."""
        return len(self.first) + sum(map(len, self.unions))

    @property
    def before(self) -> int:
        """Return the coalition of those that join first."""
        return sum(1 << player for player in self.first)


def joining(labels: Sequence[Hashable], change_frac: FloatArray) -> Joining:
    """Return in which orders players join: in all of them, if there are few.

    Args:
        labels: Players of one label belong together where there are too many.
        change_frac: Which share of v(all) each changes, as the only one or as the last one.
    """
    count = len(labels)
    is_first = (np.abs(change_frac) <= NEXT_TO_NOTHING) & (count > MAX_PLAYERS)
    first, rest = tuple(np.flatnonzero(is_first).tolist()), np.flatnonzero(~is_first).tolist()
    if len(rest) <= MAX_PLAYERS:
        return Joining(first, [[player] for player in rest])
    names = dict.fromkeys(labels[player] for player in rest)
    unions = [[player for player in rest if labels[player] == name] for name in names]
    return Joining(first, unions)


def coalitions(order: Joining) -> IntArray:
    """Return the coalitions that the values need, as sorted bit masks.

    Bit ``j`` is player ``j``. The first is empty, the last holds everybody.
    """
    masks = [_masks_within(order, own) for own in range(len(order.unions))]
    parts = [part.ravel() for part in masks]
    return np.unique(np.concatenate([_one_by_one(order), *parts]))


def alone_and_last(players: int) -> IntArray:
    """Return nobody, each player alone, everybody but each player, and everybody, as sorted bit masks."""
    bits, everybody = 1 << np.arange(players), (1 << players) - 1
    return np.unique(np.concatenate([[0], bits, everybody ^ bits, [everybody]]))


def changes(masks: IntArray, values: FloatArray, players: int) -> FloatArray:
    """Return what each player changes as the only one or as the last one, whichever is more.

    Args:
        masks: Coalitions with those of ``alone_and_last``.
        values: The set function, one value a coalition.
        players: How many there are.
    """
    bits = 1 << np.arange(players)
    alone = values[np.searchsorted(masks, bits)] - values[0]
    last = values[-1] - values[np.searchsorted(masks, masks[-1] ^ bits)]
    return np.asarray(np.maximum(np.abs(alone), np.abs(last)))


def membership(masks: IntArray, players: int) -> FloatArray:
    """Return the 0/1 membership of coalitions, ``(players, coalitions)``."""
    return ((masks[None, :] >> np.arange(players)[:, None]) & 1).astype(np.float64)


def shares(order: Joining, masks: IntArray, values: FloatArray) -> FloatArray:
    """Return the value of each player.

    Args:
        order: Who joins when.
        masks: Coalitions, with those that ``coalitions`` gives.
        values: The set function, one value a coalition.
    """
    result = np.zeros(order.players)
    result[list(order.first)] = np.diff(values[np.searchsorted(masks, _one_by_one(order))])
    for own, members in enumerate(order.unions):
        table = values[np.searchsorted(masks, _masks_within(order, own))]
        outer = _weights(len(order.unions))[_size(np.arange(table.shape[0]))]
        inside = np.arange(table.shape[1])
        inner = _weights(len(members))
        for place, player in enumerate(members):
            without = inside[(inside >> place) & 1 == 0]
            gain = table[:, without | (1 << place)] - table[:, without]
            result[player] = outer @ gain @ inner[_size(without)]
    return result


def _one_by_one(order: Joining) -> IntArray:
    """Return the coalitions that those who join first make, from nobody on."""
    return np.concatenate([[0], np.cumsum(1 << np.array(order.first, np.int64))])


def _masks_within(order: Joining, own: int) -> IntArray:
    """Return the masks of every set of other unions with every subset of one union.

    ``(2**(unions - 1), 2**members)``; bit ``k`` of a row or column index says whether
    the k-th other union, or the k-th member, is in it.
    """
    others = [sum(1 << p for p in union) for k, union in enumerate(order.unions) if k != own]
    rows = _sums_of_subsets(others)
    columns = _sums_of_subsets([1 << player for player in order.unions[own]])
    return order.before | rows[:, None] | columns[None, :]


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
