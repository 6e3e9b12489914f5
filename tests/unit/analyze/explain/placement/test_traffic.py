"""The most that is sent in one go."""

import pandas as pd
import pytest

from meshscope.analyze.explain.placement.traffic import longest_trains


def messages(*rows):
    """Return messages of one axis from rank, start, time and bytes."""
    table = pd.DataFrame(rows, columns=["rank", "starts", "wire", "sent"])
    return table.assign(axis="dp", pattern="ring")


def test_messages_without_rest_are_one_train():
    """Fails when many buckets in a row pass for short messages, of which a buffer takes each."""
    sent = messages((0, 0, 4, 10.0), (0, 6, 4, 10.0), (0, 20, 4, 10.0))
    assert longest_trains(sent, 1).to_dict() == {("dp", "ring"): 20.0}


def test_trains_are_those_of_a_rank():
    """Fails when messages of several ranks at one time count as a train of one."""
    sent = messages((1, 1, 4, 30.0), (0, 0, 4, 10.0), (1, 30, 4, 10.0), (0, 5, 4, 10.0))
    assert longest_trains(sent, 2)["dp", "ring"] == pytest.approx((20 + 30) / 2)
