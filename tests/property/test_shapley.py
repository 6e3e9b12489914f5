"""The axioms that define the Shapley value, on random games."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.explain.causes.shapley import Joining, coalitions, membership, shares

PLAYERS = st.integers(1, 6)
VALUES = st.floats(-1e9, 1e9)


@st.composite
def games(draw):
    """Return the values of all coalitions of a few players."""
    players = draw(PLAYERS)
    return np.array(draw(st.lists(VALUES, min_size=2**players, max_size=2**players)))


def shapley(values):
    """Return the value of each player where nobody belongs to a union."""
    order = Joining((), [[player] for player in range(len(values).bit_length() - 1)])
    return shares(order, coalitions(order), values)


def close(left, right):
    """Return whether two values agree up to rounding of numbers of 1e9."""
    return np.allclose(left, right, rtol=1e-9, atol=1e-4)


@given(games())
def test_values_sum_to_the_whole(values):
    """Causes would explain more or less than the loss."""
    assert close(shapley(values).sum(), values[-1] - values[0])


@given(games(), games(), st.floats(-5, 5))
def test_values_are_linear(first, second, factor):
    """Time and waiting could not be split cause by cause."""
    if len(first) != len(second):
        second = np.resize(second, len(first))
    assert close(shapley(first + factor * second), shapley(first) + factor * shapley(second))


@given(games())
def test_equal_players_get_equal_values(values):
    """The order in which causes are listed would favour one of two that do the same."""
    players = len(values).bit_length() - 1
    members = membership(np.arange(len(values)), players)
    by_size = values[members.sum(axis=0).astype(int)]
    assert close(shapley(by_size), (by_size[-1] - by_size[0]) / len(members))


@given(games())
def test_a_player_that_changes_nothing_gets_nothing(values):
    """A cause without effect would get a share of the loss."""
    assert close(shapley(np.concatenate([values, values]))[-1], 0)


@given(games(), st.randoms())
def test_renaming_players_renames_their_values(values, random):
    """A cause's share would depend on its position."""
    players = len(values).bit_length() - 1
    order = list(range(players))
    random.shuffle(order)
    index = np.arange(len(values))
    renamed = sum(((index >> new) & 1) << old for new, old in enumerate(order))
    assert close(shapley(values[renamed]), shapley(values)[order])
