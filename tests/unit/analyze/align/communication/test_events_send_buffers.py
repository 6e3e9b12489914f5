"""Sends of hosts that wait for their receivers, distinguished from those that are buffered."""

from dataclasses import replace

import numpy as np
import pytest
from tests.tables import trace_of

from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.explain.replay.program import build_program
from meshscope.analyze.explain.replay.scenarios import replay_scenarios

MS = 1_000_000
STEPS = 10


def sending_job(held):
    """Return a job in which rank 0 sends after 1 ms of each step, and rank 1 receives after 5 ms.

    Args:
        held: Whether the sender stands still until the receiver has called, and 1 ms of transfer.
    """
    steps, p2p = [], []
    for at in range(STEPS):
        start = 10 * MS * at
        steps += [
            {"rank": rank, "step": at, "start_ns": start, "dur_ns": 10 * MS} for rank in (0, 1)
        ]
        ends = (6 if held else 2, 6)
        for rank, (begin, end) in enumerate(zip((1, 5), ends, strict=True)):
            p2p.append({
                "rank": rank, "peer": 1 - rank, "direction": ("send", "recv")[rank], "step": at, "seq": at,
                "issue_ns": start + begin * MS, "start_ns": start + begin * MS, "end_ns": start + end * MS,
                "wait_start_ns": start + begin * MS, "wait_end_ns": start + end * MS,
                "source": "host_blocking", "event_id": at,
            })  # fmt: skip
    trace = trace_of(
        origin="meshscope", ranks=(0, 1), step=steps, p2p=p2p, group=[{"ranks": [0, 1]}]
    )
    return replace(trace, clocks={0: "one", 1: "one"})


@pytest.mark.parametrize(("held", "waited_ms"), [(True, 4), (False, 0)], ids=["held", "buffered"])
def test_a_sender_waits_for_a_late_receiver_where_sends_are_held(held, waited_ms):
    """Fails when a sender's wait for a slow receiver is reported as a slow wire, which no repair shortens."""
    trace = sending_job(held)
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    sends = events.frame[events.frame["is_send"]]
    assert (sends["is_buffered"] == (not held)).all()
    assert ((sends["split_ns"] - sends["start_ns"]) / MS).tolist() == [waited_ms] * len(sends)
    program = build_program(windows, events, build_ledger(trace, windows, events))
    late = program.marks["rank"].to_numpy()[program.work_edges] == 1
    late &= program.marks["work_ns"].to_numpy()[program.work_edges] == 5 * MS
    sooner = np.zeros((program.edge_count, 1))
    sooner[: len(late)][late] = 4 * MS
    times, _ = replay_scenarios(program, sooner, np.array([[1.0, 0.0]]))
    # A sender that goes on is not faster with a receiver that comes sooner.
    assert times[0] - times[1] == (pytest.approx(4 * MS) if held else pytest.approx(0, abs=MS / 2))
