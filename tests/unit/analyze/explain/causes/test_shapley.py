"""Shapley and Owen values of games whose answers are in textbooks or can be enumerated."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.analyze.explain.causes.shapley import (
    MAX_PLAYERS,
    Joining,
    alone_and_last,
    changes,
    coalitions,
    hiding,
    joining,
    membership,
    shares,
)
from meshscope.analyze.explain.causes.shapley_player import Player, Union
from meshscope.analyze.explain.replay.effect_folding import edge_effect


def values_of(function, unions, first=()):
    """Return the shares of a set function."""
    order = Joining(first, unions)
    masks = coalitions(order)
    rows = membership(masks, order.players).T
    values = np.array([function(set(np.flatnonzero(row).tolist())) for row in rows], dtype=float)
    return shares(order, masks, values)


def alone(players):
    """Return every player as a union of its own."""
    return [[player] for player in range(players)]


def by_enumeration(function, unions, first=()):
    """Return the mean marginal contribution over all orders in which unions stay together."""
    rest = [player for own in unions for player in own]
    orders = [
        (*first, *order)
        for order in permutations(rest)
        if all(
            max(order.index(p) for p in own) - min(order.index(p) for p in own) == len(own) - 1
            for own in unions
        )
    ]
    total = np.zeros(len(first) + len(rest))
    for order in orders:
        for place, player in enumerate(order):
            total[player] += function(set(order[: place + 1])) - function(set(order[:place]))
    return total / len(orders)


def test_coalitions_hold_a_player_where_its_bit_is_set():
    """Shares would be given to the wrong causes."""
    masks = coalitions(Joining((), alone(2)))
    assert membership(masks, 2).T.tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]


def test_glove_game():
    """One left glove and two right ones: (2/3, 1/6, 1/6)."""
    found = values_of(lambda s: float(0 in s and bool(s & {1, 2})), alone(3))
    assert found == pytest.approx([2 / 3, 1 / 6, 1 / 6])


def test_airport_game():
    """Runways of length 1, 2 and 3: each stretch is shared by those who need it."""
    found = values_of(lambda s: max((player + 1 for player in s), default=0), alone(3))
    assert found == pytest.approx([1 / 3, 1 / 3 + 1 / 2, 1 / 3 + 1 / 2 + 1])


def test_one_player_gets_everything_and_an_empty_game_nothing():
    """The simplest run, with one cause, would be wrong."""
    assert values_of(lambda s: 10.0 if s else 3.0, alone(1)).tolist() == [7.0]
    assert values_of(lambda s: 3.0, []).tolist() == []


def test_two_gloves_in_one_union_share_less():
    """Owen's value: the two right gloves together are worth what the left one is, a half."""
    found = values_of(lambda s: float(0 in s and bool(s & {1, 2})), [[0], [1, 2]])
    assert found == pytest.approx([1 / 2, 1 / 4, 1 / 4])


@settings(max_examples=30, deadline=None)
@given(
    game=st.sampled_from(
        [
            ((), [[0], [1], [2]]),
            ((), [[0, 1], [2, 3]]),
            ((), [[0, 2], [1], [3, 4]]),
            ((), [[0, 1, 2]]),
            ((3, 1), [[0], [2], [4]]),
            ((0, 4), [[1, 3], [2]]),
            ((1, 0), []),
        ]
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_values_are_the_mean_over_all_orders(game, seed):
    """A cause would be billed by another rule than the one that the report names."""
    first, unions = game
    table = np.random.default_rng(seed).normal(size=2 ** (len(first) + sum(map(len, unions))))

    def function(members):
        return float(table[sum(1 << player for player in members)])

    found = values_of(function, unions, first)
    assert found == pytest.approx(by_enumeration(function, unions, first), abs=1e-12)
    assert found.sum() == pytest.approx(table[-1] - table[0], abs=1e-12)


def test_many_players_join_by_unions():
    """Twenty causes would take a million replays."""
    labels = ["workers"] * 4 + ["stages"] * 3 + ["host"] * 4 + ["wires"] * 4
    order = joining(labels, np.ones(15))
    assert [len(own) for own in order.unions] == [4, 3, 4, 4]
    assert len(coalitions(order)) <= 512
    assert len(joining(labels[:MAX_PLAYERS], np.zeros(MAX_PLAYERS)).unions) == MAX_PLAYERS


def test_of_many_players_those_that_change_nothing_join_first():
    """Two slow ranks would be billed as one for the sake of a dozen links that cost nothing."""
    labels = ["workers"] * 2 + ["stages"] + ["wires"] * 12
    order = joining(labels, np.array([0.1, 0.05, 0.02, 0.01, *[1e-4] * 11]))
    assert order.unions == [[0], [1], [2], [3]]
    assert order.first == tuple(range(4, 15))
    assert len(coalitions(order)) == 12 + 15


def test_what_a_player_changes_alone_or_last():
    """A cause that another one hides would be taken for nothing."""
    masks = alone_and_last(3)
    values = np.array([float(mask == 7) + 2.0 * bool(mask & 2) for mask in masks.tolist()])
    assert changes(masks, values, 3).tolist() == [1.0, 3.0, 1.0]


def players(count):
    """Return slow ranks."""
    nothing = edge_effect(np.zeros(1))
    return [Player("straggler_rank", {"rank": n}, Union.WORKERS, nothing) for n in range(count)]


def times(*gone, base=100.0):
    """Return the step time of every coalition of three: 10 more while any of some are there."""
    masks = np.arange(8)
    extra = [sum(1 << n for n in group) for group in gone]
    return masks, base + 10.0 * sum(((masks & own) != 0).astype(float) for own in extra)


def test_two_that_are_slow_alike_hide_each_other():
    """Repairing one would be told to return nothing, without a word on the other."""
    masks, step = times((0, 1), (2,))
    first, second, third = hiding(players(3), masks, step, 120.0)
    assert first.where == {"rank": 1}
    assert second.where == {"rank": 0}
    assert first.pair_gain_frac == 10 / 120
    assert third is None


def test_causes_that_add_up_hide_nothing():
    """Every cause would be called hidden."""
    masks, step = times((0,), (1,), (2,))
    assert hiding(players(3), masks, step, 130.0) == [None, None, None]


def test_pairs_that_were_not_replayed_hide_nothing():
    """The time of another coalition would be taken for that of the pair."""
    masks, step = times((0, 1), (2,))
    kept = np.array([mask for mask in masks if mask != 0b100])
    assert hiding(players(3), kept, step[kept], 120.0)[0] is None
