"""What lies between the marks of two steps belongs to the loop of the program."""

import numpy as np
import pytest
from tests.kineto_files import launched, step, write
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.read.kineto.columns import StepWindows
from meshscope.analyze.read.kineto.step_gaps import until_the_next


def windows(*bounds, first=1):
    """Return steps with these bounds, numbered in order."""
    start, end = np.array(bounds, dtype=np.int64).T
    return StepWindows(np.arange(len(start)) + first, start, end, is_whole_file=False)


def test_the_time_between_marks_is_part_of_the_step(tmp_path):
    """Fails when a loop that loads data for a third of its time, outside of the mark, looks busy throughout."""
    events = []
    for number in range(4):
        at = number * 3_000
        events += [step(number, at, 2_000), *launched("gemm", at + 5, at + 10, 1_980, number + 1)]
    trace = load_trace(write(tmp_path / "rank0.json", events))
    found = {one.cause: one.cost_frac for one in diagnose(trace).findings}
    assert found["nothing_launched"] == pytest.approx(3 * 1_000 / 11_000, abs=0.01)
    assert any("27.3 % of the time lies between the marks" in one for one in texts(trace.limits))


def test_short_gaps_stay_and_far_longer_ones_are_in_no_step():
    """Fails when an evaluation of a minute is called a slow step."""
    steps, said = until_the_next(windows((0, 1000), (1001, 2000), (2500, 3500), (90_000, 91_000)))
    assert steps.end.tolist() == [1000, 2500, 3500, 91_000]
    assert [one.code for one in said] == ["assumed.steps_until_the_next", "scope.long_gaps"]


def test_steps_that_are_not_recorded_are_no_gap():
    """Fails when the time of ten steps that were not profiled counts to the one before them."""
    steps = windows((0, 1000), (1500, 2500))
    apart = StepWindows(np.array([1, 12]), steps.start, steps.end, is_whole_file=False)
    assert until_the_next(apart) == (apart, [])
