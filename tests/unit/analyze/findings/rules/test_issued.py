"""Numbers of operations as a person counts them."""

import pytest
from tests.tables import trace_of

from meshscope.analyze.findings.rules.issued import number_message
from meshscope.analyze.tables.capabilities import FLIGHT_RECORDER, OWN

ANEW = 40 << 20


def counted(origin):
    """Return a capture with two operations of step 3, and three that were numbered anew from step 40 on."""
    at = {3: (7, 8), 40: (ANEW, ANEW + 1), 41: (ANEW + 2,)}
    rows = [
        {"rank": rank, "step": step, "seq": seq, "start_ns": 0, "end_ns": 1}
        for rank in (0, 1)
        for step, numbers in at.items()
        for seq in numbers
    ]
    return trace_of(collective=rows, group=[{"group_id": "g"}], origin=origin)


@pytest.mark.parametrize(
    ("origin", "seq", "said"),
    [
        (OWN, 8, "8"),
        (OWN, ANEW + 1, "2 of step 40"),
        (OWN, ANEW + 2, "1 of step 41"),
        (OWN, ANEW + 9, str(ANEW + 9)),
        (FLIGHT_RECORDER, ANEW + 1, str(ANEW + 1)),
    ],
    ids=["counted through", "anew", "a later step", "of a backend", "of the job itself"],
)
def test_a_number_of_the_probe_is_said_as_one_of_its_step(origin, seq, said):
    """Fails when a user reads a number of tens of millions that is in no log of the job."""
    assert str(number_message(counted(origin), "g", seq)) == said
