"""From measurements to verdicts."""

import pytest

from meshscope.analyze.explain.slow_ranks import Evidence, Persistence
from meshscope.analyze.explain.slow_ranks.conclude import (
    Measured,
    Stretch,
    calm_verdict,
    slow_verdict,
)

MEASURED = Measured(slowdown=0.05, error=0.005, degrees=1e6)


def test_confidence_is_shared_by_those_that_fit_as_well():
    """One of two would be blamed with certainty."""
    stretch = Stretch(runs=((3, 9),), found_at_step=None, lasting=False)
    alone = slow_verdict(1, MEASURED, stretch, Evidence.PEERS, ranks=8)
    both = slow_verdict(1, MEASURED, stretch, Evidence.PEERS, ranks=8, rivals=(4,))
    assert both.confidence == pytest.approx(alone.confidence / 2)
    assert alone.persistence is Persistence.TRANSIENT
    assert alone.interval == pytest.approx((0.05 - 1.96 * 0.005, 0.05 + 1.96 * 0.005), abs=1e-4)


def test_what_nothing_is_known_of_is_not_called_healthy():
    """A rank without replicas and past would get a clean bill."""
    assert calm_verdict(1, None, Evidence.NOTHING).persistence is Persistence.UNKNOWN
    assert calm_verdict(1, None, Evidence.HISTORY).persistence is Persistence.NONE
