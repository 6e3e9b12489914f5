"""The step in which a capture broke off: in the list, and drawn up to the last record."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.output.timeline.categories import Category
from meshscope.analyze.output.timeline.slices import step_slices, steps_of
from meshscope.analyze.output.timeline.unfinished import last_step, unfinished_steps


def _wait(rank, seq, at_ns, end_ns=None, step=1):
    return {
        "rank": rank, "step": step, "seq": seq, "axis": "tp", "source": "host_blocking",
        "issue_ns": at_ns, "start_ns": at_ns, "wait_start_ns": at_ns, "end_ns": end_ns,
        "wait_end_ns": end_ns, "event_id": at_ns,
    }  # fmt: skip


@pytest.fixture
def hung():
    """Return a job of three ranks: 2 ends its work of step 1 at 130 and does nothing more."""
    spans = [
        (0, 0, 0, 90),
        (1, 0, 0, 90),
        (2, 0, 0, 90),
        (0, 1, 100, 20),
        (1, 1, 100, 60),
        (2, 1, 100, 30),
    ]
    return trace_of(
        origin="meshscope",
        ranks=(0, 1, 2),
        step=[{"rank": rank, "step": 0, "start_ns": 0, "dur_ns": 100} for rank in (0, 1, 2)],
        span=[
            {"rank": rank, "step": step, "kind": "forward", "start_ns": start, "dur_ns": length}
            for rank, step, start, length in spans
        ],
        collective=[
            *(_wait(rank, 1, 90, 100, step=0) for rank in (0, 1, 2)),
            _wait(0, 2, 120),
            _wait(1, 2, 160),
        ],
        group=[{"group_id": "g", "axis": "tp", "ranks": [0, 1, 2]}],
        progress=[
            {"rank": rank, "issued_seq": seq, "completed_seq": 1}
            for rank, seq in ((0, 2), (1, 2), (2, 1))
        ],
    )  # fmt: skip


def test_the_step_of_a_hang_is_in_the_list(hung):
    """Fails when the one step that matters cannot be selected, as no rank ended it."""
    assert unfinished_steps(hung) == (1,)
    assert steps_of(hung) == (0, 1)
    assert last_step(hung, [2]) == 1


def test_it_is_drawn_up_to_the_last_record(hung):
    """Fails when those who wait look idle, or who did not arrive looks as if it waited."""
    step = step_slices(hung, 1)
    assert (step.origin_ns, step.length_ns, step.is_broken_off) == (100, 60, True)
    drawn = step.slices[["rank", "category", "start_ns", "end_ns"]].to_numpy().tolist()
    assert drawn == [
        [0, Category.FORWARD, 0, 20],
        [0, Category.COMM_TP, 20, 60],
        [1, Category.FORWARD, 0, 60],
        [2, Category.FORWARD, 0, 30],
    ]
    assert "had not ended when the records end" in step.slices["text"].iloc[1]
    assert step.undrawn == 0


def test_a_rank_that_was_not_in_it_yet_has_no_row_of_it(hung):
    """Fails when a rank that stood in the step before seems to have begun the next one."""
    tables = {"step": hung.tables["step"].slice(0, 2), "span": hung.tables["span"].slice(0, 5)}
    step = step_slices(hung.with_tables(tables), 1)
    assert set(step.slices["rank"]) == {0, 1}


def test_a_closed_capture_has_no_such_step(hung):
    """Fails when records after the last step of a job that ended well become a step of theirs."""
    closed = hung.with_tables({"progress": hung.tables["progress"].slice(0, 0)})
    assert unfinished_steps(closed) == ()
    assert steps_of(closed) == (0,)
    assert last_step(closed, [2]) is None
