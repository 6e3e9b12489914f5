"""The ledger adds up for any capture, however odd its events."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tables import trace_of

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.tables.classes import CLASSES
from meshscope.probe.schema.terms import Axis, CollectiveKind, KernelCategory, SpanKind

LENGTH = 10**6
RANKS = st.integers(0, 2)
STEP = st.integers(0, 2)
TIMES = st.integers(-LENGTH // 2, 4 * LENGTH)


def rows(**columns):
    """Return a strategy for up to eight rows."""
    return st.lists(st.fixed_dictionaries(columns), max_size=8)


def names(kinds):
    """Return a strategy for the values of an enum."""
    return st.sampled_from([kind.value for kind in kinds])


_WHEN = {"rank": RANKS, "step": STEP, "start_ns": TIMES}
_LENGTHS = st.integers(0, 2 * LENGTH)
SPANS = rows(kind=names(SpanKind), dur_ns=_LENGTHS, **_WHEN)
KERNELS = rows(category=names(KernelCategory), dur_ns=_LENGTHS, **_WHEN)
_COMMUNICATION = {
    "end_ns": st.none() | TIMES,
    "wait_start_ns": st.none() | TIMES,
    "wait_end_ns": st.none() | TIMES,
    "axis": names(Axis),
    "seq": st.integers(0, 2),
    "source": st.sampled_from(["device", "imported", "host_blocking", "host_issue"]),
    **_WHEN,
}
COLLECTIVES = rows(kind=names(CollectiveKind), **_COMMUNICATION)
P2P = rows(peer=RANKS, direction=st.sampled_from(["send", "recv"]), **_COMMUNICATION)


def ledger_of(spans, collectives, p2p, kernels):
    """Return the ledger of three ranks and three steps of one length, and the capture."""
    steps = [
        {"rank": rank, "step": step, "start_ns": step * LENGTH, "dur_ns": LENGTH}
        for rank in range(3)
        for step in range(3)
    ]
    trace = trace_of(step=steps, span=spans, collective=collectives, p2p=p2p, kernel=kernels)
    windows = step_windows(trace)
    return build_ledger(trace, windows, communication_events(trace, windows))


@settings(max_examples=25)
@given(SPANS, COLLECTIVES, P2P, st.just([]) | KERNELS)
def test_classes_sum_to_every_step(spans, collectives, p2p, kernels):
    """Some instant would be counted twice or not at all."""
    table = ledger_of(spans, collectives, p2p, kernels).by_step
    # Steps before the first whole cycle of communication are left out.
    analysed = table["step"].nunique()
    assert analysed >= 2
    assert len(table) == 3 * analysed
    assert (table[list(CLASSES)] >= 0).all(axis=None)
    error = (table[list(CLASSES)].sum(axis=1) - table["step_ns"]).abs()
    assert (error <= 1e-9 * table["step_ns"]).all()


@settings(max_examples=12)
@given(SPANS, COLLECTIVES, P2P, st.just([]) | KERNELS)
def test_segments_tile_the_time_line_of_each_rank(spans, collectives, p2p, kernels):
    """The timeline would show holes or overlaps that the sums hide."""
    segments = ledger_of(spans, collectives, p2p, kernels).segments
    for _, own in segments.groupby("rank"):
        start, end = own["start_ns"].to_numpy(), own["end_ns"].to_numpy()
        assert start[0] == 0
        assert end[-1] == own["step"].nunique() * LENGTH
        assert own["step"].nunique() >= 2
        assert (end[:-1] == start[1:]).all()
        assert (end > start).all()
