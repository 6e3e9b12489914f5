"""Which call launched which device activity, and which marks are the steps."""

import numpy as np
import pytest
from tests.kineto_files import launched, step, write
from tests.texts import texts

from meshscope.analyze.read import import_trace
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


def test_marks_with_the_number_of_another_step_are_counted(tmp_path):
    """Fails when four of five steps vanish without a word, because all are called alike."""
    found = []
    for number in range(5):
        at = number * 1000
        found += [step(10, at, 1000), *launched("gemm", at + 5, at + 50, 500, number + 1)]
    said = " ".join(texts(import_trace(write(tmp_path / "rank0.json", found)).limits))
    assert "4 step marks with the number of another step left out" in said


def test_one_mark_that_is_written_twice_is_no_other_step(tmp_path):
    """Fails when a mark of two categories is counted as work that is left out."""
    found = [step(10, 0, 1000), step(10, 0, 990), *launched("gemm", 5, 50, 500, 1)]
    said = " ".join(texts(import_trace(write(tmp_path / "rank0.json", found)).limits))
    assert "number of another step" not in said
