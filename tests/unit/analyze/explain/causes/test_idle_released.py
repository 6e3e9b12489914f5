"""Where idle time may hide waiting, a gain is a range."""

import numpy as np
import pytest
from tests.synthetic import MS, Job, capture_of, programs

from meshscope.analyze.explain.causes.idle_released import is_moved
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.layout import ParallelLayout


def slow_job(idle_ms):
    """Return four replicas, rank 1 slow, rank 3 idle before it sums gradients."""
    job = Job(layout=ParallelLayout(dp=4), steps=8)
    random = np.random.default_rng(4)
    own = {key: random.uniform(0.98, 1.02) for key in np.ndindex(4, 8, 4)}

    def work(kind, rank, step, microbatch):
        base = 10 * MS if kind == "forward" else 20 * MS
        return int(base * (1.3 if rank == 1 else 1.0) * own[rank, step, microbatch])

    operations = programs(job, work)
    for rank in range(4):
        place = [n for n, op in enumerate(operations[rank]) if op[0] == "collective"]
        for n in reversed(place):
            operations[rank].insert(n, ("idle", (idle_ms if rank == 3 else 1) * MS))
    return diagnose(capture_of(job, operations))


def gain_of(result):
    """Return the cause of the slow rank."""
    return next(own for own in result.causes if own.kind == "straggler_rank")


def test_idle_time_of_a_peer_widens_the_gain_of_a_slow_rank():
    """A gain would be told to a tenth of a per cent though the peer may have waited for it."""
    narrow, wide = gain_of(slow_job(1)), gain_of(slow_job(30))
    low, high = wide.removal_gain_interval
    assert high - low > 0.05
    assert low <= wide.removal_gain_frac <= high
    low, high = narrow.removal_gain_interval
    assert high - low < 0.03


@pytest.mark.parametrize(
    ("gain", "released", "is_range"), [(10, 10.9, False), (10, 12.5, True), (2, 3.2, True)]
)
def test_a_gain_is_a_range_beyond_a_point_and_a_fifth(gain, released, is_range):
    """Every gain would be a range, or none."""
    assert is_moved(gain, released, 100.0) is is_range
