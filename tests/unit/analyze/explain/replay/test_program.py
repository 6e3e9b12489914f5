"""The graph that recorded events become: marks, work and waits of two ranks."""

import numpy as np
import pytest
from tests.tables import host_row, trace_of

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.replay.marks import END, ISSUE, WAIT
from meshscope.analyze.explain.replay.program import build_program

MS = 1_000_000


def program_of(**rows):
    """Return the program of a literal capture."""
    trace = trace_of(**rows)
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    return build_program(windows, events, build_ledger(trace, windows, events))


def two_ranks(**changes):
    """Return two ranks that compute 30 and 50 ms, reduce for 10 ms, and end after 5 ms more."""
    rows = {
        "step": [{"rank": rank, "dur_ns": 65 * MS} for rank in (0, 1)],
        "span": [
            {"rank": 0, "kind": "forward", "start_ns": 0, "dur_ns": 30 * MS},
            {"rank": 1, "kind": "forward", "start_ns": 0, "dur_ns": 50 * MS},
            {"rank": 0, "kind": "optimizer", "start_ns": 60 * MS, "dur_ns": 5 * MS},
            {"rank": 1, "kind": "optimizer", "start_ns": 60 * MS, "dur_ns": 5 * MS},
        ],
        "collective": [
            host_row(30 * MS, 60 * MS, rank=0),
            host_row(50 * MS, 60 * MS, rank=1),
        ],
    }
    return program_of(**{**rows, **changes})


def times(program, weight=None):
    """Return the replayed times of all marks."""
    weight = program.base_ns if weight is None else weight
    found = program.graph.replay(weight, np.zeros((len(weight), 1)), np.ones((1, 1)))
    return found[: len(program.marks), 0]


def test_marks_follow_the_program_of_each_rank():
    """Work would be measured between the wrong points."""
    marks = two_ranks().marks
    own = marks[(marks["rank"] == 0) & ~marks["is_root"]]
    assert own["mark"].tolist() == [ISSUE, WAIT, END]
    assert (own["work_ns"] / MS).tolist() == [30, 0, 5]


def test_ranks_that_compute_all_the_time_wait_for_nothing():
    """A job that hides all its communication would end the diagnosis with a traceback."""
    busy = {"category": "compute", "start_ns": 0, "dur_ns": 65 * MS}
    hidden = {"start_ns": 30 * MS, "end_ns": 60 * MS, "source": "device"}
    program = two_ranks(
        span=[],
        kernel=[busy | {"rank": rank} for rank in (0, 1)],
        collective=[hidden | {"rank": rank} for rank in (0, 1)],
    )
    own = program.marks[~program.marks["is_root"]]
    assert own["mark"].tolist() == [ISSUE, END] * 2
    assert times(program).tolist() == program.marks["end_ns"].tolist()


def test_with_nothing_changed_the_recorded_times_come_out():
    """Every counterfactual would start from a run that never happened."""
    program = two_ranks()
    assert times(program).tolist() == program.marks["end_ns"].tolist()


def test_making_the_late_rank_faster_shortens_both():
    """Removing the cause of a wait would not remove the wait."""
    program = two_ranks()
    marks = program.marks
    work = marks["work_ns"].to_numpy()[program.work_edges]
    repaired = program.base_ns.copy()
    repaired[: len(work)][work == 50 * MS] = 30 * MS
    ends = times(program, repaired)[((marks["mark"] == END) & ~marks["is_root"]).to_numpy()]
    assert (ends / MS).tolist() == [45, 45]


def test_making_the_waiting_rank_faster_changes_nothing_else():
    """Slack would be taken for cost."""
    program = two_ranks()
    work = program.marks["work_ns"].to_numpy()[program.work_edges]
    repaired = program.base_ns.copy()
    repaired[: len(work)][work == 30 * MS] = 0
    ends = times(program, repaired)[
        ((program.marks["mark"] == END) & ~program.marks["is_root"]).to_numpy()
    ]
    assert (ends / MS).tolist() == [65, 65]


def test_a_buffered_send_does_not_wait_for_its_receiver():
    """A sender would be held by a slow receiver that never held it."""
    program = program_of(
        step=[{"rank": rank, "dur_ns": 100 * MS} for rank in (0, 1)],
        p2p=[
            host_row(10 * MS, 10 * MS, rank=0, peer=1, direction="send"),
            host_row(80 * MS, 81 * MS, rank=1, peer=0, direction="recv"),
        ],
    )
    marks = program.marks
    assert times(program).tolist() == marks["end_ns"].tolist()
    late = program.base_ns.copy()
    edge = marks["rank"].to_numpy()[program.work_edges] == 1
    late[: len(edge)][edge] += 50 * MS
    ends = times(program, late)
    assert ends[(marks["rank"] == 0).to_numpy()].max() == 100 * MS


def test_a_device_operation_in_idle_time_is_waited_for():
    """A device capture has no host waits, and would have no dependencies between ranks."""
    rows = {
        "step": [{"rank": rank, "dur_ns": 100 * MS} for rank in (0, 1)],
        "kernel": [
            {"rank": 0, "start_ns": 0, "dur_ns": 20 * MS},
            {"rank": 1, "start_ns": 0, "dur_ns": 50 * MS},
            {"rank": 0, "start_ns": 60 * MS, "dur_ns": 40 * MS},
            {"rank": 1, "start_ns": 60 * MS, "dur_ns": 40 * MS},
        ],
        "collective": [
            {"rank": 0, "start_ns": 20 * MS, "end_ns": 60 * MS},
            {"rank": 1, "start_ns": 50 * MS, "end_ns": 60 * MS},
        ],
    }
    program = program_of(**rows)
    waits = program.marks[program.marks["mark"] == WAIT]
    assert sorted(waits["rank"]) == [0, 1]
    assert times(program).tolist() == program.marks["end_ns"].tolist()


@pytest.mark.parametrize(("late_us", "waits_for"), [(0, 2), (15, 0)], ids=["with it", "as it ends"])
def test_short_operations_are_waited_for(late_us, waits_for):
    """Fails when reductions of 20 us, as of inference engines, are work of the replay: no causes are found."""
    us = 1_000
    first = 1_000 + late_us
    rows = {
        "step": [{"rank": rank, "dur_ns": 2_000 * us} for rank in (0, 1)],
        "kernel": [
            {"rank": rank, "start_ns": start * us, "dur_ns": length * us}
            for rank in (0, 1)
            for start, length in ((0, first), (1_020, 980))
        ],
        "collective": [
            {"rank": rank, "start_ns": 1_000 * us, "end_ns": 1_020 * us} for rank in (0, 1)
        ],
    }
    program = program_of(**rows)
    waits = program.marks[program.marks["mark"] == WAIT]
    assert waits["start_ns"].tolist() == [first * us] * waits_for
    assert waits["end_ns"].tolist() == [1_020 * us] * waits_for


@pytest.mark.parametrize("shift_ns", [7, 123_456_789])
def test_moving_all_clocks_together_moves_all_times(shift_ns):
    """An origin of the clock would enter a duration."""
    rows = {
        "step": [{"rank": rank, "start_ns": shift_ns, "dur_ns": 60 * MS} for rank in (0, 1)],
        "collective": [
            host_row(30 * MS + shift_ns, 60 * MS + shift_ns, rank=0),
            host_row(50 * MS + shift_ns, 60 * MS + shift_ns, rank=1),
        ],
    }
    moved = program_of(**rows)
    assert (np.sort(moved.base_ns) / MS).tolist() == [0, 0, 0, 0, 0, 0, 10, 10, 30, 50]
    assert times(moved).tolist() == moved.marks["end_ns"].tolist()
