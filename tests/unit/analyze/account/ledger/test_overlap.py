"""Overlap of transfers with compute, by algebra."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.account.ledger.overlap import overlaps
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.probe.schema.layout import ParallelLayout

MS = 1_000_000


def overlap_of(begin_ms, wait_ms, end_ms, *, compute_ms=60, ended=True):
    """Return the overlap of a job whose ranks sum gradients from begin to end, waiting from wait_ms."""
    steps, spans, rows = [], [], []
    for rank in (0, 1):
        for step in range(3):
            at = step * 100 * MS
            own = {"rank": rank, "step": step}
            steps.append({**own, "start_ns": at, "dur_ns": 100 * MS})
            spans.append({**own, "kind": "backward", "start_ns": at, "dur_ns": compute_ms * MS})
            times = {"start_ns": at + begin_ms * MS, "end_ns": at + end_ms * MS if ended else None}
            if ended:
                times |= {"wait_start_ns": at + wait_ms * MS, "wait_end_ns": at + end_ms * MS}
            rows.append({**own, **times, "seq": step, "source": "host_issue"})
    trace = trace_of(
        layout=ParallelLayout(dp=2),
        step=steps,
        span=spans,
        collective=rows,
        group=[{"group_id": "g", "axis": "dp", "ranks": [0, 1]}],
    )
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    (found,) = overlaps(events, build_ledger(trace, windows, events))
    return found


def test_part_of_a_transfer_is_hidden():
    """Fails when what compute hides of a transfer is not the time in which both run."""
    found = overlap_of(40, 60, 80)
    assert found.wire_ns == pytest.approx(40 * MS)
    assert found.exposed_ns == pytest.approx(20 * MS)
    assert (found.hidden_frac, found.possible_frac) == (pytest.approx(0.5), pytest.approx(1.0))


def test_no_more_than_compute_hides():
    """Fails when more is possible than a step computes."""
    found = overlap_of(20, 20, 90, compute_ms=20)
    assert (found.hidden_frac, found.possible_frac) == (pytest.approx(0), pytest.approx(20 / 70))


def test_unseen_ends_are_unknown():
    """Fails when an overlap is stated although nobody saw the transfers end."""
    found = overlap_of(40, 60, 80, ended=False)
    assert (found.wire_ns, found.hidden_frac, found.possible_frac) == (None, None, None)
