"""Ends of transfers of which one rank was recorded from a later step on."""

import pandas as pd
from tests.texts import texts

from meshscope.analyze.align.communication.moves_by_time import realign_transfers


def positions_of(rows, rank):
    """Return the positions of one rank in the order of its rows."""
    return rows.loc[rows["rank"] == rank, "seq"].tolist()


def sends_of(rank, peer, direction, first_step, ends_ns, per_step=1):
    """Return one end of transfers, so many a step, numbered from 0 where it was first seen."""
    return [
        {
            "rank": rank,
            "peer": peer,
            "direction": direction,
            "step": first_step + place // per_step,
            "seq": place,
            "group_id": "g",
            "size_bytes": 8,
            "end_ns": end,
        }
        for place, end in enumerate(ends_ns)
    ]


ENDS_NS = [1000 * at + at * at * 7919 % 500 for at in range(160)]
"""Ends of 40 transfers in each of four steps."""


def test_a_rank_that_was_recorded_from_a_later_step_on_receives_what_is_sent_to_it():
    """Fails when its transfers are paired with those of the step before: clocks seem to differ by a step."""
    rows = pd.DataFrame(
        [
            *sends_of(0, 1, "send", 5, ENDS_NS, per_step=40),
            *sends_of(1, 0, "recv", 6, ENDS_NS[40:], per_step=40),
        ]
    )
    found, limits = realign_transfers(rows)
    assert positions_of(found, 1) == list(range(40, 160))
    assert positions_of(found, 0) == positions_of(rows, 0)
    assert "rank 1" in texts(limits)[0]
    later = rows.assign(end_ns=rows["end_ns"] + 5_000_000 * rows["rank"])
    assert realign_transfers(later)[0]["seq"].tolist() == found["seq"].tolist()


def test_transfers_that_reach_into_the_next_step_stay():
    """Fails when a stage that receives a step later than the one before sends is moved by a step."""
    rows = pd.DataFrame(
        [*sends_of(0, 1, "send", 5, ENDS_NS[:8]), *sends_of(1, 0, "recv", 6, ENDS_NS[:8])]
    )
    found, limits = realign_transfers(rows)
    assert found is rows
    assert not limits
