"""Who waited and who was waited for, on three ranks."""

from tests.tables import trace_of

from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.communication.waiting import traffic_by_group, waits_by_rank
from meshscope.analyze.align.steps.windows import step_windows

STEPS = [
    {"rank": rank, "step": step, "start_ns": 100 * step, "dur_ns": 100}
    for rank in range(3)
    for step in range(2)
]
ARRIVALS = {0: (0, 100), 1: (30, 150), 2: (20, 120)}


def trace_with(kind="all_reduce", arrivals=ARRIVALS):
    """Return two collectives that end 10 after the last member has come."""
    rows = []
    for at in (0, 1):
        end = max(starts[at] for starts in arrivals.values()) + 10
        rows += [
            {"rank": r, "step": at, "seq": at, "kind": kind, "start_ns": s[at], "end_ns": end}
            for r, s in arrivals.items()
        ]
    return trace_of(step=STEPS, collective=rows, group=[{"ranks": [0, 1, 2], "axis": "dp"}])


def waits_of(trace):
    """Return the table of waits by rank."""
    return waits_by_rank(communication_events(trace, step_windows(trace)), [0, 1, 2])


def test_waiting_is_charged_to_the_last_to_arrive():
    """The rank that everyone waits for would look like the one that waits."""
    table = waits_of(trace_with()).set_index("rank")
    assert table["wait_ns"].tolist() == [80, 0, 40]
    assert table["early_ns"].tolist() == [80, 0, 40]
    assert table["wait_caused_ns"].tolist() == [0, 120, 0]
    assert table["arrived_last"].tolist() == [0, 2, 0]
    assert table["collectives"].tolist() == [2, 2, 2]


def test_nobody_is_blamed_for_a_tie():
    """Integer clocks would blame the rank with the lowest number."""
    table = waits_of(trace_with(arrivals={0: (0, 100), 1: (30, 150), 2: (30, 150)}))
    assert table["arrived_last"].tolist() == [0, 0, 0]
    assert table["wait_caused_ns"].sum() == 0
    assert table["wait_ns"].tolist() == [80, 0, 0]


def test_a_broadcast_says_nothing_about_arrivals():
    """A root that leaves at once would be called the last to arrive."""
    table = waits_of(trace_with(kind="broadcast"))
    assert table["wait_ns"].isna().all()
    assert table[["arrived_last", "collectives"]].to_numpy().sum() == 0


def test_a_group_of_one_captured_member_is_not_counted():
    """A collective whose peers are not in the capture would count as a wait of zero."""
    table = waits_of(trace_with(arrivals={1: (30, 150)}))
    assert table["collectives"].tolist() == [0, 0, 0]


def test_traffic_of_a_group_is_per_step():
    """Totals would grow with the length of the capture."""
    trace = trace_with()
    events = communication_events(trace, step_windows(trace))
    row = traffic_by_group(events, trace.frame("group"), 2).iloc[0]
    assert row["operations"] == 1.0
    assert row["wire_ns"] == 10.0
    assert row["wait_ns"] == 60.0
    assert row["size_bytes"] == 1024.0
    assert list(row["ranks"]) == [0, 1, 2]


def test_waits_of_a_rank_whose_collectives_have_no_end_are_unknown():
    """Fails when a rank of which no end was seen is said to have waited 0 ms."""
    trace = trace_of(step=STEPS, collective=[{"start_ns": 1, "end_ns": None}])
    table = waits_of(trace)
    assert table["wait_ns"].isna().tolist() == [True, False, False]
    assert table["collectives"].tolist() == [0, 0, 0]


def test_traffic_of_which_nobody_saw_an_end_took_an_unknown_time():
    """Fails when the wire and the waiting of such a group are said to be 0 ms."""
    trace = trace_of(step=STEPS, collective=[{"start_ns": 1, "end_ns": None}])
    events = communication_events(trace, step_windows(trace))
    table = traffic_by_group(events, trace.frame("group"), 2)
    assert table[["wire_ns", "wait_ns"]].isna().all(axis=None)
    assert len(table) == 1


def test_waits_are_unknown_where_no_communication_was_recorded():
    """Ranks of which only compute was recorded would seem to wait for nobody."""
    table = waits_of(trace_of(step=STEPS))
    assert table[["wait_ns", "early_ns", "wait_caused_ns"]].isna().all(axis=None)
    assert table["collectives"].sum() == 0
