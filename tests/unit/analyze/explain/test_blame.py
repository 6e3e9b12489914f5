"""Waiting is billed to the rank that works meanwhile."""

import pandas as pd
import pytest
from tests.synthetic import MS, Job, capture_of

from meshscope.analyze.findings.measure import measure
from meshscope.probe.schema.layout import ParallelLayout

LAYOUT = ParallelLayout(pp=2, dp=2)
STEPS, WIRE = 3, 100_000
FIRST, SECOND = ("dp-0", (0, 1)), ("dp-2", (2, 3))


def program(rank, late_ms):
    """Return forward on stage 0, then on stage 1, then the sum of gradients of each stage."""
    stage, ops = rank // 2, []
    for step in range(STEPS):
        if stage == 0:
            ops += [("work", (10 + late_ms) * MS, step, "forward", 0, 0)]
            ops += [("send", step, rank + 2, step, 1 << 20)]
        else:
            ops += [("recv", step, rank - 2, step, 1 << 20, WIRE)]
            ops += [("work", 10 * MS, step, "forward", 1, 0)]
        group = SECOND if stage else FIRST
        ops += [("collective", step, group, "dp", "all_reduce", 1 << 20, WIRE)]
        ops += [("work", MS, step, "optimizer", stage, -1), ("end", step, 64)]
    return ops


def caused(late_ms) -> pd.Series:
    """Return the waiting that each rank caused per step, ms; rank 1 of the first stage is late."""
    operations = [program(rank, late_ms if rank == 1 else 0) for rank in range(4)]
    job = Job(layout=LAYOUT, microbatches=1, steps=STEPS)
    waits = measure(capture_of(job, operations)).waits.set_index("rank")["wait_caused_ns"]
    # The first step is one-time work, and not looked at.
    return waits / (STEPS - 1) / MS


def test_the_rank_behind_the_slow_one_is_not_blamed():
    """Who arrives last because it waited would be looked at instead of who made it wait."""
    by_rank = caused(late_ms=8)
    # Both stages wait 8 ms: rank 0 for rank 1 itself, and rank 2 for rank 3, which waits for it.
    assert by_rank[1] == pytest.approx(16, abs=0.5)
    assert by_rank[[0, 2, 3]].max() < 0.5


def test_nobody_is_blamed_where_nobody_waits():
    """Equal ranks would be told to hold each other up."""
    assert caused(late_ms=0).max() < 0.5
