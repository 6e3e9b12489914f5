"""Steps with something are compared with the steps without it."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.steps.on_and_off import longer_steps
from meshscope.analyze.steps.windows import StepWindows

RANKS = 3


def windows_of(lengths_ms):
    """Return the windows of steps of some lengths, one after the other, on ranks a little apart."""
    ends = np.cumsum([0, *lengths_ms]) * 1_000_000
    rows = [
        {"rank": rank, "step": step, "start_ns": ends[step] + rank, "end_ns": ends[step + 1] + rank}
        for rank in range(RANKS)
        for step in range(len(lengths_ms))
    ]
    return StepWindows(
        frame=pd.DataFrame(rows).assign(tokens=-1),
        steps=np.arange(len(lengths_ms)),
        ranks=np.arange(RANKS),
        shift_ns={},
        default_shift_ns=0,
        chained=True,
        step_time_ns=float(np.mean(lengths_ms)) * 1e6,
    )


def test_what_comes_and_goes_costs_what_its_steps_are_longer():
    """A user who reads the step times would find another cost than the one told."""
    lengths = [130, 134, 130, 134, 100, 102, 100, 102, 130, 134, 130, 134, 100, 102, 100, 102]
    longer = longer_steps(windows_of(lengths), [(0, 3), (8, 11)])
    assert longer[:2] == (8, 8)
    assert longer.longer_ns == pytest.approx(31e6)
    # Variances 32/7 and 8/7 ms^2 of eight steps each.
    assert longer.error_ns == pytest.approx(np.sqrt(40 / 7 / 8) * 1e6)
    assert longer.of_mean_step() == pytest.approx(31e6 / 2)
    assert longer.of_mean_step(-1.96) == pytest.approx((31e6 - 1.96 * longer.error_ns) / 2)


@pytest.mark.parametrize("runs", [[], [(4, 15)], [(0, 0), (2, 3)], [(0, 5), (7, 15)]])
def test_what_changed_once_or_hardly_ever_tells_nothing(runs):
    """What began with another cause, or three steps, would be taken for a measurement."""
    assert longer_steps(windows_of([100] * 16), runs) is None
