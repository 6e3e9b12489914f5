"""Messages that lie behind a collective that their sender has left."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.explain.causes.wires import queued_behind

MS = 1_000_000


def row(rank: int, join: int, start: float, end: float, **other: object) -> dict:
    """Return an event of a host, times in ms; its wire is all of it unless said."""
    wire = other.pop("wire", end - start)
    return {
        "rank": rank,
        "join": join,
        "host": True,
        "is_p2p": False,
        "is_send": False,
        "start_ns": round(start * MS),
        "end_ns": end * MS,
        "wire_ns": wire * MS,
        **other,
    }


def queued(left: float, sent: float, got: float) -> float:
    """Return how many of 30 ms a message lay behind a collective that lasts until 100 ms.

    Args:
        left: When its sender left the collective.
        sent: When it sent the message.
        got: When that had come.
    """
    rows = [
        row(0, 0, 0, 100),
        row(1, 0, 0, left),
        row(1, 1, sent, sent, is_p2p=True, is_send=True, wire=np.nan),
        row(2, 1, got - 30, got, is_p2p=True),
    ]
    frame = pd.DataFrame(rows)
    found = queued_behind(frame, (frame["join"] == 0).to_numpy())
    assert not found[:3].any()
    return found[3] / MS


@pytest.mark.parametrize(
    ("left", "sent", "got", "behind"),
    [(40, 50, 90, 30), (40, 50, 110, 20), (40, 50, 140, 0), (99.5, 99.6, 110, 0), (40, -1, 90, 0)],
)
def test_a_message_waits_until_the_collective_before_it_is_through(left, sent, got, behind):
    """The price of a slow link would be another link's, or a message would be blamed on what came after it."""
    assert queued(left, sent, got) == pytest.approx(behind)


def test_nothing_waits_behind_a_collective_of_devices():
    """Ends of devices that differ would be taken for buffers of a host."""
    frame = pd.DataFrame([row(0, 0, 0, 100, host=False), row(1, 0, 0, 40, host=False)])
    assert not queued_behind(frame, np.ones(2, bool)).any()
