"""What late steps cost, and what moving or joining them would return."""

import numpy as np
import pytest

from meshscope.analyze.explain.jitter_cost import jitter_cost


def test_the_same_delays_in_the_same_steps_keep_those_of_one_rank():
    """Fails when a remedy is promised all that removing the delays would return."""
    late = np.zeros((8, 4))
    late[np.arange(8), np.arange(8) % 4] = 10.0
    found = jitter_cost(late)
    assert found.lost_ns == 10.0
    assert found.at_the_same_steps_ns == 2.5
    assert found.same_steps_return == pytest.approx(0.75)


def test_delays_that_are_in_the_same_steps_already_return_nothing():
    """Fails when ranks that collect garbage together are told to do so."""
    late = np.zeros((8, 4))
    late[::4] = [10.0, 9.0, 8.0, 7.0]
    assert jitter_cost(late).same_steps_return == 0.0


def test_ranks_that_meet_less_often_make_up_for_one_another():
    """Fails when fewer synchronisation points return more, or less, than the means of blocks say."""
    late = np.array([[4.0, 0.0], [0.0, 4.0], [4.0, 0.0], [4.0, 0.0]])
    found = jitter_cost(late)
    assert found.every_ns == {2: 3.0, 4: 3.0}
    assert found.every_returns(2) == pytest.approx(0.25)


def test_without_delays_nothing_returns():
    """Fails when early ranks count as a loss, or nothing is divided by nothing."""
    found = jitter_cost(-np.ones((4, 2)))
    assert (found.lost_ns, found.same_steps_return) == (0.0, 0.0)
    assert jitter_cost(np.zeros((0, 0))).lost_ns == 0.0
