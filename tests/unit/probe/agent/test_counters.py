"""Counters that wrap or start anew."""

import pytest

from meshscope.probe.agent.counters import GrowingCounters


@pytest.mark.parametrize("width", [32, 64])
def test_a_wrapped_counter_grows_on(width):
    """Fails when a busy port seems to have sent less than before."""
    counters = GrowingCounters()
    top = 1 << width
    values = [counters.grown("a", raw) for raw in (top - 10, 5, top - 3, 4)]
    assert values == [top - 10, top + 5, 2 * top - 3, 2 * top + 4]
    assert counters.resets == 0


def test_a_reset_is_no_wrap():
    """Fails when a driver that was loaded again makes a port seem to have sent gigabytes."""
    counters = GrowingCounters()
    assert [counters.grown("a", raw) for raw in (5000, 20, 30)] == [5000, 20, 30]
    assert counters.resets == 1


def test_a_reset_after_a_wrap_starts_anew():
    """Fails when what a wrap added outlives the counter that wrapped."""
    counters = GrowingCounters()
    top = 1 << 32
    assert [counters.grown("a", raw) for raw in (top - 1, 1000, 3)] == [top - 1, top + 1000, 3]


def test_counters_are_separated_and_forgotten():
    """Fails when one port's wrap is added to another, or a port that came back has one."""
    counters = GrowingCounters()
    top = 1 << 32
    for raw in (top - 1, 0):
        counters.grown("mlx5_0/1:x", raw)
    assert counters.grown("mlx5_1/1:x", 7) == 7
    counters.forget("mlx5_0/1:")
    assert counters.grown("mlx5_0/1:x", 7) == 7
    assert counters.resets == 0
