"""Orders in the run directory of how many windows of steps are recorded, with real files."""

import json

import pytest

from meshscope.probe.session import sample_order
from meshscope.probe.session.sample_order import (
    ALL_STEPS,
    LOCAL_AHEAD_NS,
    QUICK_AHEAD_NS,
    QUICK_STEPS,
    SAMPLING_FILE,
    Sample,
    SampleOrder,
)


@pytest.fixture
def reported():
    """Return what was told of orders."""
    return []


def rank(run_path, reported):
    """Return the order as a new rank of a run knows it."""
    order = SampleOrder(reported.append)
    order.open(run_path)
    return order


def test_what_one_rank_asks_for_all_are_to_do(tmp_path, reported):
    """Messages of ranks that record other steps have no other end in the capture."""
    first, second = rank(tmp_path, reported), rank(tmp_path, reported)
    first.look()
    first.ask(Sample(4, 300))
    assert first.is_coming(ALL_STEPS)
    assert not first.is_coming(Sample(4, 300))
    assert first.newest is None
    first.look()
    second.look()
    assert first.newest == second.newest == Sample(4, 300)
    assert reported == [Sample(4, 300)]


def test_a_wish_that_is_ordered_already_changes_nothing(tmp_path, reported):
    """Each of thousands of ranks would order another step, and say so."""
    first, second = rank(tmp_path, reported), rank(tmp_path, reported)
    for order, wish in ((first, Sample(2, 300)), (second, Sample(2, 350))):
        order.ask(wish)
        order.look()
    assert second.newest == Sample(2, 300)
    assert reported == [Sample(2, 300)]
    assert not second.is_coming(Sample(2, 300))
    assert (first.is_own, second.is_own) == (True, False)


def test_of_two_orders_the_lesser_recording_holds(tmp_path, reported, monkeypatch):
    """Two ranks that ask at once would never agree."""
    monkeypatch.setattr(sample_order, "LOCAL_LOOK_NS", 0)
    first, second = rank(tmp_path, reported), rank(tmp_path, reported)
    first.ask(Sample(8, 400))
    first.look()
    (tmp_path / SAMPLING_FILE).write_text(json.dumps({"one_in": 2, "first_step": 300}))
    first.look()
    second.look()
    assert first.newest == second.newest == Sample(8, 400)


def test_what_was_ordered_for_nothing_is_taken_back(tmp_path, reported, monkeypatch):
    """A run whose first steps were dear would record little for good, or ranks would not agree on it."""
    monkeypatch.setattr(sample_order, "LOCAL_LOOK_NS", 0)
    first, second = rank(tmp_path, reported), rank(tmp_path, reported)
    for wish in (Sample(8, 7), Sample(1, 65, 1)):
        first.ask(wish)
        first.look()
        second.look()
        assert first.newest == second.newest == wish
    # A wish of the round before comes too late; one of this round holds.
    for wish, holds in ((Sample(16, 90), False), (Sample(2, 95, 1), True)):
        second.ask(wish)
        second.look()
        first.look()
        assert (first.newest == second.newest == wish) == holds
    assert (first.is_own, second.is_own) == (False, True)


def test_a_rank_looks_at_each_of_its_first_steps(tmp_path, reported, monkeypatch):
    """An order of the first steps would come a second late, or ask for steps that others have recorded."""
    time_ns = [10**12]
    monkeypatch.setattr(sample_order, "now_ns", lambda: time_ns[0])
    first, second = rank(tmp_path, reported), rank(tmp_path, reported)
    step_ns = 100_000_000
    for step in (1, 2, 3, 4):
        assert second.hasten(step)
        second.look()
        assert not second.hasten(step)
        time_ns[0] += step_ns
    first.ask(Sample(4, 7))
    assert first.hasten(4)
    first.look()
    assert second.hasten(5)
    second.look()
    assert second.newest == first.newest
    assert not second.hasten(6)


def test_an_order_comes_as_late_as_others_see_it(tmp_path, reported):
    """Ranks would go on recording at six times their budget, or miss the step on which an order begins."""
    order = rank(tmp_path, reported)
    step_ns = 100_000_000
    assert order.ahead_ns(QUICK_STEPS, step_ns) == 3 * step_ns
    assert order.ahead_ns(4, 1_000_000) == QUICK_AHEAD_NS
    assert order.ahead_ns(QUICK_STEPS + 1, step_ns) == LOCAL_AHEAD_NS
    order.ask(Sample(4, 7))
    order.look()
    assert order.ahead_ns(10, step_ns) == LOCAL_AHEAD_NS


def test_short_steps_are_looked_at_until_a_quick_order_is_seen(tmp_path, reported, monkeypatch):
    """An order of step 20 would not be seen in time where steps take a millisecond."""
    time_ns = [10**12]
    monkeypatch.setattr(sample_order, "now_ns", lambda: time_ns[0])
    order = rank(tmp_path, reported)
    looks_ns = []
    for step in range(1, 1_000):
        time_ns[0] += 1_000_000
        if order.hasten(step):
            order.look()
            looks_ns.append(time_ns[0] - 10**12)
    last_quick_ns = QUICK_STEPS * 1_000_000
    assert last_quick_ns + 0.7 * QUICK_AHEAD_NS < looks_ns[-1] < last_quick_ns + 2 * QUICK_AHEAD_NS
    assert len(looks_ns) < 10


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"one_in": 3, "first_step": 0}',
        b'{"one_in": 1, "first_step": 0}',
        b'{"one_in": true, "first_step": 0}',
        b'{"one_in": 2}',
        b'{"one_in": 2, "first_step": 0, "round": "1"}',
        b'{"one_in": 2, "first_step": 0, "round": 5}',
        b'{"one_in": 2, "first_step": -1}',
        b'{"one_in": 2, "first_step": 1e3}',
        b'{"one_in": 2, "first_step": 99999999999999999999}',
        b"\xff" * 64,
    ],
)
def test_what_makes_no_sense_orders_nothing(tmp_path, reported, content):
    """A torn or hostile file would end the recording, or the thread that writes it."""
    (tmp_path / SAMPLING_FILE).write_bytes(content)
    order = rank(tmp_path, reported)
    order.look()
    assert order.newest is None
    order.ask(Sample(2, 50))
    order.look()
    assert rank_reads(tmp_path, reported) == Sample(2, 50)


def rank_reads(run_path, reported):
    """Return what a rank that comes later is to do."""
    order = rank(run_path, reported)
    order.look()
    return order.newest


def test_where_nothing_can_be_written_the_rank_follows_alone(tmp_path, reported):
    """A rank over its budget would stay so."""
    order = rank(tmp_path / "gone", reported)
    order.ask(Sample(2, 50))
    with pytest.raises(OSError, match="No such file"):
        order.look()
    assert order.newest == Sample(2, 50)


def test_the_file_is_looked_for_now_and_then(tmp_path, reported):
    """Thousands of ranks would keep a file system busy."""
    order = rank(tmp_path, reported)
    order.look()
    (tmp_path / SAMPLING_FILE).write_text(json.dumps({"one_in": 2, "first_step": 300}))
    order.look()
    assert order.newest is None
