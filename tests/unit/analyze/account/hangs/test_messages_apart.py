"""In which step one end of a pair of ranks first counted other messages than the other end."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.account.hangs.messages_apart import messages_apart


def job(*, skipped=(), bare=(), shifted=False):
    """Return a job of three stages that pass on one message a step, for six steps.

    Args:
        skipped: Steps in which rank 0 sends nothing to rank 1.
        bare: Steps of which rank 1 recorded the length alone.
        shifted: Whether rank 1 receives each message in the step after.
    """
    sends = [(rank, step) for rank in (0, 1) for step in range(6) if rank or step not in skipped]
    rows = [
        {"rank": rank, "peer": rank + 1, "direction": "send", "step": step} for rank, step in sends
    ] + [
        {"rank": rank, "peer": rank - 1, "direction": "recv", "step": step + shifted}
        for rank in (1, 2)
        for step in range(6)
    ]
    return trace_of(
        step=[
            {"rank": rank, "step": step, "dur_ns": 1,
             "detail": "steps" if rank == 1 and step in bare else "full"}
            for rank in range(3)
            for step in range(6)
        ],
        p2p=[{**row, "seq": row["step"], "start_ns": 0, "end_ns": 1} for row in rows],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, None),
        ({"skipped": (3,)}, (3, 0, 1, 0, 1)),
        ({"skipped": (3,), "bare": (3,)}, None),
        ({"skipped": (2, 4)}, (2, 0, 1, 0, 1)),
        ({"skipped": range(6)}, None),
        ({"shifted": True, "bare": (0,)}, None),
    ],
    ids=["alike", "one skipped", "not recorded", "the first of two", "all", "once, by the border"],
)
def test_the_step_in_which_a_message_was_left_out_is_found(facts, found):
    """Fails when the last in a row that waits for a message is all that is known of one that was never sent."""
    assert messages_apart(job(**facts)) == found
