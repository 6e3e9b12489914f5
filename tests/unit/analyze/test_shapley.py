"""Shapley values of games whose answers are in textbooks."""

import numpy as np
import pytest

from meshscope.analyze.shapley import coalitions, shapley


def game(function, players):
    """Return the values of a set function in the order of ``coalitions``."""
    return np.array([function(set(np.flatnonzero(c))) for c in coalitions(players).T], dtype=float)


def test_coalitions_hold_a_player_where_its_bit_is_set():
    """Shares would be given to the wrong causes."""
    assert coalitions(2).T.tolist() == [[0, 0], [1, 0], [0, 1], [1, 1]]


def test_glove_game():
    """One left glove and two right ones: (2/3, 1/6, 1/6)."""
    values = game(lambda s: float(0 in s and bool(s & {1, 2})), 3)
    assert shapley(values) == pytest.approx([2 / 3, 1 / 6, 1 / 6])


def test_airport_game():
    """Runways of length 1, 2 and 3: each stretch is shared by those who need it."""
    values = game(lambda s: max((player + 1 for player in s), default=0), 3)
    assert shapley(values) == pytest.approx([1 / 3, 1 / 3 + 1 / 2, 1 / 3 + 1 / 2 + 1])


def test_one_player_gets_everything_and_an_empty_game_nothing():
    """The simplest run, with one cause, would be wrong."""
    assert shapley(np.array([3.0, 10.0])).tolist() == [7.0]
    assert shapley(np.array([3.0])).tolist() == []
