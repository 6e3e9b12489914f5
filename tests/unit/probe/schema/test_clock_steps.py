"""Steps of the wall clock between readings."""

import pytest

from meshscope.probe.schema.clock_steps import clock_steps

S = 1_000_000_000
DAY = 86_400 * S


@pytest.mark.parametrize(
    ("pairs", "steps"),
    [
        ([[0, 5 * DAY, 100], [60 * S, 5 * DAY + 60 * S + 5_000_000, 100]], []),
        ([[0, 5 * DAY, 100], [60 * S, 5 * DAY + 63 * S, 100]], [3 * S]),
        ([[0, DAY, 1], [S, 0, 1], [2 * S, S, 1]], [-DAY - S]),
        ([[0, 0, 10 * S], [S, 5 * S, 0]], []),
        ([[0, 0, 0], [DAY, DAY + 40 * S, 0]], []),
        ([[0, 0, 0]], []),
        ([[0, 0], "x", [0, 0, True], [0, 0, 0], [S, 3 * S, 0]], [2 * S]),
        (None, []),
    ],
)
def test_steps_are_distinguished_from_drift_and_error(pairs, steps):
    """Fails when a slewed clock counts as stepped, a step passes, or bad pairs raise."""
    assert clock_steps(pairs) == steps
