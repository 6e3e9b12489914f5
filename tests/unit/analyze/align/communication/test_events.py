"""Matching of collectives and sends, wire and waiting time, by hand."""

import numpy as np
import pytest
from tests.tables import host_row, trace_of
from tests.texts import texts

from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows

MS = 1_000_000
STEPS = [{"rank": rank, "dur_ns": 100 * MS} for rank in range(3)]


def events_of(**rows):
    """Return the communication of one step of three ranks."""
    trace = trace_of(step=STEPS, **rows)
    return communication_events(trace, step_windows(trace))


def times(frame, *columns):
    """Return columns as rows of milliseconds from the start of the step."""
    return (frame[list(columns)].to_numpy(np.float64) / MS).tolist()


def test_wire_time_is_the_shortest_member_and_waiting_comes_before_it():
    """Time spent waiting for a late member would be reported as transfer time."""
    frame = events_of(
        collective=[
            {"rank": 0, "start_ns": 0, "end_ns": 10 * MS},
            {"rank": 1, "start_ns": 8 * MS, "end_ns": 10 * MS},
            {"rank": 2, "start_ns": 3 * MS, "end_ns": 10 * MS},
        ]
    ).frame
    assert frame["join"].nunique() == 1
    assert times(frame, "wire_ns", "split_ns") == [[2, 8], [2, 8], [2, 8]]


def test_members_are_matched_by_group_and_position():
    """Two groups, or two operations of one group, would be taken for one."""
    frame = events_of(
        collective=[
            {"rank": rank, "group_id": group, "seq": seq, "start_ns": 0, "end_ns": 5}
            for rank in (0, 1)
            for group in ("a", "b")
            for seq in (0, 1)
        ]
    ).frame
    assert frame["join"].nunique() == 4
    assert frame.groupby("join")["rank"].apply(list).tolist() == [[0, 1]] * 4


def test_a_receive_waits_until_both_ends_began():
    """A stage that waits for a late sender would seem to have a slow link."""
    frame = events_of(
        p2p=[
            host_row(6 * MS, 6 * MS, rank=0, peer=1, direction="send"),
            host_row(1 * MS, 7 * MS, rank=1, peer=0, direction="recv"),
        ]
    ).frame
    receive = frame[~frame["is_send"]]
    assert times(receive, "wire_ns", "split_ns") == [[1, 6]]
    assert times(frame[frame["is_send"]], "split_ns") == [[6]]
    assert frame["join"].nunique() == 1


def test_sends_are_paired_by_direction_of_travel():
    """A rank that sends and receives with one peer would match its own two ends."""
    frame = events_of(
        p2p=[
            {"rank": 0, "peer": 1, "direction": "send", "start_ns": 0, "end_ns": 4},
            {"rank": 1, "peer": 0, "direction": "recv", "start_ns": 0, "end_ns": 4},
            {"rank": 1, "peer": 0, "direction": "send", "start_ns": 5, "end_ns": 9},
            {"rank": 0, "peer": 1, "direction": "recv", "start_ns": 5, "end_ns": 9},
        ]
    ).frame
    assert frame.groupby("join")["kind"].apply(sorted).tolist() == [["recv", "send"]] * 2


def test_a_send_without_its_receive_is_counted():
    """Half of a transfer would be used as if it were whole, silently."""
    found = events_of(p2p=[{"rank": 0, "peer": 9, "direction": "send", "start_ns": 0, "end_ns": 4}])
    assert any("without the other end" in limit for limit in texts(found.limits))


def test_an_end_that_nobody_saw_is_counted_and_claims_no_wire():
    """An unknown duration would be invented."""
    found = events_of(
        collective=[{"rank": 0, "start_ns": 5, "end_ns": None, "source": "host_issue"}]
    )
    assert found.frame["wire_ns"].isna().all()
    assert found.frame["split_ns"].tolist() == found.frame["start_ns"].tolist()
    assert any("1 of 1 communication record " in limit for limit in texts(found.limits))


def test_a_late_look_at_a_finished_operation_is_no_long_transfer():
    """Compute between the issue of an operation and a wait that did not block would be wire time."""
    blocked = [
        host_row(0, 4 * MS, rank=rank, seq=seq, wait_start_ns=MS)
        for rank in (0, 1)
        for seq in (0, 1)
    ]
    late = [host_row(0, 50 * MS, rank=rank, seq=2, wait_start_ns=50 * MS) for rank in (0, 1)]
    frame = events_of(collective=[*blocked, *late]).frame
    assert (frame["wire_ns"] / MS).tolist() == [4.0] * 6


def test_the_last_row_of_an_event_wins():
    """An operation recorded at issue and again at completion would count twice."""
    found = events_of(
        collective=[
            {"rank": 0, "start_ns": 0, "end_ns": None, "event_id": 5},
            {"rank": 0, "start_ns": 0, "end_ns": 8, "event_id": 5},
        ]
    ).frame
    assert found["end_ns"].tolist() == [8]


@pytest.mark.parametrize("shift", [0, 10**9, -(10**6)])
def test_a_clock_offset_of_one_rank_leaves_wire_and_waiting_of_collectives(shift):
    """An unsynchronised clock would turn into transfer or waiting time."""
    frame = events_of(
        collective=[
            {"rank": 0, "start_ns": 2 * MS, "end_ns": 10 * MS},
            {"rank": 1, "start_ns": 8 * MS + shift, "end_ns": 10 * MS + shift},
        ]
    ).frame
    waits = frame["split_ns"] - frame["start_ns"]
    assert (waits / MS).tolist() == [6.0, 0.0]
    assert (frame["wire_ns"] / MS).tolist() == [2.0, 2.0]
