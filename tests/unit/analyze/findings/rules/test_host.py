"""Host time that delays steps is named, and that of a start delays none."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.findings.measure import measure
from meshscope.analyze.findings.rules.host import host_stalls

MS = 1_000_000


def collecting(*kinds):
    """Return a run of ours without a finished step, in which spans of these kinds take 20 ms each."""
    spans = [
        {
            "rank": rank, "step": 0, "kind": kind, "start_ns": at * 20 * MS, "dur_ns": 20 * MS,
            "source": "host_issue", "event_id": at,
        }
        for rank in (0, 1)
        for at, kind in enumerate(kinds)
    ]  # fmt: skip
    recording = [
        {"rank": rank, "step": 0, "steps": 1, "level": "full", "start_ns": 0, "dur_ns": 100 * MS}
        for rank in (0, 1)
    ]
    return measure(trace_of(ranks=(0, 1), span=spans, recording=recording))


@pytest.mark.parametrize(("kinds", "found"), [(("gc",), []), (("forward", "gc"), ["gc_pause"])])
def test_garbage_that_imports_leave_delays_no_step(kinds, found):
    """Fails when a job that died in its start is told to collect garbage less often."""
    assert [one.kind for one in host_stalls(collecting(*kinds))] == found
