"""Ranks that were attached in the middle count steps from different moments."""

import pytest
from tests.texts import texts

from meshscope.probe.reader.run import read_run
from meshscope.probe.recording.record_heads import collective_head, p2p_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.rundir import create_run

SETTINGS = StorageSettings(slot_count=1024, wake_s=3600.0, free_floor_frac=0.0)


def record(run, rank, first, last, *, peer=None, group="world", annotate=True):
    """Record true steps first..last, counted from 0 as a late rank counts them.

    The true step is the number of the collective. Messages are counted from 0 too.
    """
    recorder = Recorder(run, rank, settings=SETTINGS)
    if annotate:
        recorder.annotate("attached_while_running", value=True)
    code = recorder.register_group(group, [0, 1, 2], "default")
    for number, true_step in enumerate(range(first, last + 1)):
        recorder.step = number
        event = recorder.issue_collective(
            collective_head(code, 0, -1), true_step, 8, true_step * 10 + 1
        )
        recorder.complete(event, true_step * 10 + 5, true_step * 10 + 1, true_step * 10 + 5)
        if peer is not None:
            recorder.issue_p2p(p2p_head(code, int(rank > peer), peer, -1), number, true_step, 3)
        recorder.record_step(number, true_step * 10, 10)
    recorder.close()


@pytest.fixture
def run(tmp_path):
    """Return a new run of three ranks."""
    return create_run(tmp_path, "run-1", {"world_size": 3})


def test_collectives_tell_which_steps_belong_together(run):
    """Fails when a step of one rank is compared with another step of the next."""
    record(run, 0, 100, 110)
    record(run, 1, 98, 110)
    record(run, 2, 101, 109)
    capture = read_run(run)
    rows = capture.tables["collective"].to_pandas()
    assert (rows["seq"] - rows["step"]).nunique() == 1
    assert set(rows["seq"]) == set(range(102, 111)), "the first step of rank 2 is not whole"
    steps = capture.tables["step"].to_pandas()
    assert set(steps["start_ns"] // 10 - steps["step"]) == {98}
    dropped = 2 * (2 + 4 + 1)
    assert texts(capture.limits) == (
        f"{dropped} records left out: ranks were attached while the job ran, and not all "
        "recorded these steps whole",
    )


def test_messages_are_numbered_from_the_same_step(run):
    """Fails when a send is matched with the receive of another one."""
    record(run, 0, 100, 110, peer=1)
    record(run, 1, 97, 110, peer=0)
    record(run, 2, 97, 110)
    rows = read_run(run).tables["p2p"].to_pandas()
    sent, received = (rows[rows["direction"] == way].set_index("seq") for way in ("send", "recv"))
    assert list(sent.index) == list(range(10))
    assert (sent["size_bytes"] == received["size_bytes"]).all()


def test_a_rank_without_a_common_collective_is_named(run):
    """Fails when step numbers that cannot be compared pass as if they could."""
    record(run, 0, 100, 105)
    record(run, 1, 99, 105)
    record(run, 2, 90, 95, group="other")
    capture = read_run(run)
    assert any("in common with the others: rank 2" in limit for limit in texts(capture.limits))
    steps = capture.tables["step"].to_pandas()
    assert list(steps[steps["rank"] == 2]["step"]) == [0, 1, 2, 3, 4, 5]


def test_a_rank_that_recorded_from_its_start_keeps_its_first_step(run):
    """Fails when whole steps are thrown away."""
    for rank in range(3):
        record(run, rank, 0, 5, annotate=rank == 2)
    rows = read_run(run).tables["step"].to_pandas()
    assert set(rows["step"]) == {1, 2, 3, 4, 5}


def test_ranks_attached_at_launch_are_left_as_they_are(run):
    """Fails when an ordinary capture is renumbered."""
    for rank in range(3):
        record(run, rank, rank, 5 + rank, annotate=False)
    capture = read_run(run)
    assert set(capture.tables["step"].column("step").to_pylist()) == {0, 1, 2, 3, 4, 5}
    assert texts(capture.limits) == ()
