"""Which call launched which device activity."""

import numpy as np
import pytest

from meshscope.analyze.read.kineto.columns import launching_call
from meshscope.analyze.read.kineto.event_columns import Events


def events(*rows):
    """Return events of (correlation, start, dur)."""
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Events(correlation=columns[:, 0], start=columns[:, 1], dur=columns[:, 2])


@pytest.mark.parametrize(
    ("calls", "device", "expected"),
    [
        ([(1, 0, 5), (2, 10, 5)], [(2, 20, 9), (1, 30, 9), (3, 40, 9)], [1, 0, -1]),
        # Calls that share a number, not in order; the first activity began before all of them.
        ([(1, 100, 5), (1, 0, 5), (2, 50, 5)], [(1, -9, 1), (1, 20, 9), (1, 120, 9), (2, 60, 9)], [1, 1, 0, 2]),
        # Calls of the driver inside that of the runtime.
        ([(1, 2, 3), (1, 0, 10), (1, 6, 3), (1, 50, 5)], [(1, 8, 9), (1, 60, 9)], [1, 3]),
        ([(0, 0, 5), (0, 9, 5), (-1, 0, 5)], [(0, 20, 9), (-1, 20, 9)], [-1, -1]),
        ([], [(1, 20, 9)], [-1]),
    ],
)  # fmt: skip
def test_of_calls_with_one_number_it_is_the_last_before(calls, device, expected):
    """Fails when a file put together from several says that its kernels waited since the first launch."""
    assert launching_call(events(*device), events(*calls)).tolist() == expected
