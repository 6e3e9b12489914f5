"""Orders to all ranks: who follows, who will, who does not."""

import os

import pytest

from meshscope.probe.control.client import Endpoint
from meshscope.probe.control.orders import change_level, order
from meshscope.probe.control.verbs import Choice, Refusal, Verb, Whole
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import message


class Rank:
    """A rank that records after a few looks, at a step that goes on by itself."""

    def __init__(self, rank, looks=0, step=10):
        """Be off."""
        self.rank, self.looks, self.step, self.pace = rank, looks, step, 0
        self.state = "off"
        self.level = None

    def status(self, _):
        """Tell what it does; a start is done after some looks."""
        if self.state == "starting":
            self.looks -= 1
            self.state = "starting" if self.looks >= 0 else "recording"
        self.step += self.pace
        return {"rank": self.rank, "state": self.state, "step": self.step, "error": ""}

    def attach(self, values):
        """Begin to record."""
        self.state = "starting"
        return self.status(values)

    def set_level(self, values):
        """Change the level of a step to come."""
        if values["first_step"] <= self.step + 10 * self.pace:
            raise Refusal(message("reply.step_begun", step=self.step))
        self.level = values["first_step"]
        return self.status(values)

    def verbs(self):
        """Return what it can be asked for."""
        level = {"level": Choice(("steps",)), "first_step": Whole(0, 9**9)}
        return (
            Verb("status", "Tell.", self.status),
            Verb("attach", "Begin.", self.attach),
            Verb("level", "Change.", self.set_level, level),
        )


@pytest.fixture
def start(serve):
    """Return a function that serves ranks and returns their endpoints."""

    def start(*ranks):
        servers = [serve(*rank.verbs(), rank=rank.rank) for rank in ranks]
        return [
            Endpoint(rank.rank, os.getpid(), server.path)
            for rank, server in zip(ranks, servers, strict=True)
        ]

    return start


def test_an_order_waits_until_all_follow(start):
    """Fails when a rank that needs a moment counts as failed or as done."""
    outcome = order(start(Rank(0), Rank(1, looks=2)), "attach", {}, ("recording",), 10)
    assert {rank: found["state"] for rank, found in outcome.done.items()} == {
        0: "recording",
        1: "recording",
    }
    assert (outcome.pending, outcome.failed) == ({}, {})


def test_ranks_that_do_not_follow_are_named(start, tmp_path):
    """Fails when a rank that is stuck, refuses or is gone passes in silence."""
    endpoints = start(Rank(0), Rank(1, looks=10**9))
    endpoints.append(Endpoint(2, 2**22 + 1, tmp_path / "none.sock"))
    outcome = order(endpoints, "attach", {}, ("recording",), 0.3)
    assert (list(outcome.done), list(outcome.pending)) == ([0], [1])
    assert "has closed its socket" in outcome.failed[2]
    assert "unknown verb" in order(endpoints[:1], "exec", {}, (), 1).failed[0]


def test_a_socket_of_a_former_process_does_not_spoil_the_answer(start, tmp_path):
    """Fails when the socket of a killed process makes its successor count as failed."""
    endpoints = [Endpoint(0, 2**22 + 1, tmp_path / "none.sock"), *start(Rank(0))]
    outcome = order(endpoints, "attach", {}, ("recording",), 5)
    assert (list(outcome.done), outcome.failed) == ([0], {})


def test_a_level_begins_at_one_step_on_all_ranks(start):
    """Fails when ranks change their level at different steps."""
    ranks = [Rank(0, step=100), Rank(1, step=103)]
    first_step, outcome = change_level(start(*ranks), "steps", 5)
    assert first_step > 103
    assert [rank.level for rank in ranks] == [first_step, first_step]
    assert outcome.failed == {}


def test_a_level_that_comes_too_late_is_set_further_ahead(start):
    """Fails when short steps outrun the order on some ranks only."""
    ranks = [Rank(0), Rank(1)]
    ranks[1].pace = 15
    first_step, outcome = change_level(start(*ranks), "steps", 5)
    assert [rank.level for rank in ranks] == [first_step, first_step]
    assert outcome.failed == {}


def test_a_level_needs_a_step(start):
    """Fails when a level is set where nothing counts steps."""
    with pytest.raises(ConfigError, match="no rank has finished a step"):
        change_level(start(Rank(0, step=-1)), "steps", 5)
