"""Orders in the run directory of how many windows of steps are recorded, with real files."""

import json

import pytest

from meshscope.probe.session import sample_order
from meshscope.probe.session.sample_order import SAMPLING_FILE, Sample, SampleOrder


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
    assert first.is_coming(1)
    assert not first.is_coming(4)
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
    assert not second.is_coming(2)


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
