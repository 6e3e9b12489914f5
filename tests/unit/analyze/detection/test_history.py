"""A rank against its own past."""

import numpy as np
import pytest

from meshscope.analyze.detection.history import OwnHistory, certain_reference


def test_the_past_is_what_came_before():
    """A constant difference between ranks would be called slow."""
    past = OwnHistory.after(np.array([[0.01, -0.02], [0.03, -0.02]]), delay=2, sizes=1)
    assert past.excess(np.array([0.05, 0.0])) == pytest.approx([0.03, 0.02])


def test_a_slow_down_that_has_just_begun_is_not_the_past():
    """The detection would get used to a slow rank before it is found."""
    past = OwnHistory.after(np.zeros((4, 1)), delay=3, sizes=1)
    for _ in range(3):
        past.learn(np.array([0.1]), np.array([True]), memory=100)
        assert past.mean[0] == 0
    past.learn(np.array([0.1]), np.array([True]), memory=100)
    assert past.mean[0] == pytest.approx(0.02)
    past.learn(np.array([0.1]), np.array([False]), memory=100)
    assert past.mean[0] == pytest.approx(0.02)


def test_a_rank_without_a_past_has_no_excess():
    """A rank that joined late would be compared with nothing, and be found slow or healthy."""
    past = OwnHistory.after(np.array([[0.0, np.nan]]), delay=1, sizes=1)
    assert np.isnan(past.excess(np.zeros(2))).tolist() == [False, True]


def test_a_short_past_raises_the_threshold():
    """An unlucky baseline would be a false alarm that never ends."""
    few, many = certain_reference(np.array([1.0, 1.0]), np.array([20.0, 2000.0]))
    assert few < many < 1.0
    assert certain_reference(np.array([0.1]), np.array([4.0]))[0] == pytest.approx(0.04)
