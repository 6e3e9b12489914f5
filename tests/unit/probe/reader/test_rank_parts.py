"""How much of a large run is read: what is chosen, what stays, and what is said of the rest."""

import numpy as np
import pytest
from tests.texts import texts

from meshscope.probe.reader.rank_parts import bytes_of_run
from meshscope.probe.reader.run import read_run
from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.recording.record_heads import collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.manifest import MANIFEST_NAME, rank_directory, read_json, write_json
from meshscope.probe.schema.records import LEVEL_CODES
from meshscope.probe.schema.rundir import create_run
from meshscope.probe.schema.terms import CaptureLevel

S = 1_000_000_000
ROWS = 4
"""Passes and operations of a step, as ``record`` makes them."""
ALL = FullRecords(first_steps=0, every_steps=1)
SOME = FullRecords(first_steps=40, every_steps=20)
LEVEL = LEVEL_CODES[CaptureLevel.COLLECTIVES]
COMMUNICATION = ("collective", "p2p")


def record(run, rank, steps, *, full=ALL, reach=False, **annotations):
    """Record a part of some steps, and of one more that does not end.

    With ``reach`` the collective of each is waited for in the next one. A small ring, so that of steps that are to be kept as sums no more than the last are there.
    """
    settings = StorageSettings(slot_count=64, wake_s=3600.0, free_floor_frac=0.0, full_records=full)
    recorder = Recorder(run, rank, settings=settings)
    for name, value in annotations.items():
        recorder.annotate(name, value)
    before = None
    group = recorder.register_group("world[0,1]", [0, 1], "default")
    for step in range(steps + 1):
        recorder.step, at = step, step * 1000
        for microbatch in range(2):
            recorder.record_span(span_head(0, 0, 0), at + 10 * microbatch, 5, 5, microbatch)
        events = [
            recorder.issue_collective(collective_head(group, 0, -1), step, 64, at + 30),
            recorder.issue_p2p(p2p_head(group, rank, 1 - rank, -1), step, 64, at + 40),
        ]
        if reach and before is not None:
            recorder.complete(before, at + 20, at + 10, at + 20)
        for event in events[reach:]:
            recorder.complete(event, at + 50, at + 45, at + 50)
        before = events[0]
        recorder.record_memory(0, allocated_bytes=10**9 if step == 77 else 1000 + step)
        if step < steps:
            recorder.record_step(step, at, 1000, 1, LEVEL)
        if step % 4 == 3:
            recorder.flush()
    recorder.close()
    return recorder


@pytest.fixture
def run(tmp_path):
    """Return a new run of two ranks."""
    return create_run(tmp_path, "run", {"world_size": 2})


def steps_of(capture, name, rank=0):
    """Return the steps of which a rank has rows of a table."""
    rows = capture.tables[name].to_pandas()
    return sorted(set(rows.loc[rows["rank"] == rank, "step"]))


def details(capture, rank=0):
    """Return the steps of a rank by what is held of them."""
    rows = capture.tables["step"].to_pandas().query(f"rank == {rank}")
    by_detail = rows.groupby(rows["detail"].astype(str))["step"]
    return {detail: sorted(steps) for detail, steps in by_detail}


def test_what_has_room_is_read_whole(run):
    """Runs of every size would be reported from a part of what was recorded."""
    for rank in range(2):
        record(run, rank, 20)
    read = []
    capture = read_run(run, Wanted(steps=(3, 5), most_rows=2 * 21 * ROWS, on_bytes=read.append))
    assert capture.is_whole
    assert texts(capture.limits) == ()
    assert steps_of(capture, "span") == list(range(21))
    assert sum(read) == bytes_of_run(run) > 0


@pytest.mark.parametrize(
    ("room", "expected"),
    [(101, range(100)), (60, range(2, 100, 2)), (30, range(4, 100, 4)), (9, range(16, 100, 16))],
)
def test_of_a_large_run_steps_spread_over_it_are_read(run, room, expected):
    """An analysis would end for want of memory, or hold what it makes no account of."""
    for rank in range(2):
        record(run, rank, 100)
    whole = read_run(run)
    capture = read_run(run, Wanted(most_rows=2 * ROWS * room))
    kept = sorted({*expected, 98, 99})
    for rank in range(2):
        assert steps_of(capture, "step", rank) == list(range(100))
        for name in ("span", *COMMUNICATION):
            assert steps_of(capture, name, rank) == [*kept, 100]
    if len(kept) == 100:
        assert capture.is_whole
        return
    assert details(capture)["full"] == kept
    assert set(details(capture)) == {"full", "steps"}
    for name in ("span", *COMMUNICATION):
        rows = whole.tables[name].to_pandas()
        same = rows[rows["step"].isin([*kept, 100])].reset_index(drop=True)
        assert capture.tables[name].to_pandas().equals(same)
    limit, *others = texts(capture.limits)
    assert "--steps FIRST:LAST reads more of a part" in limit
    assert all("Memory samples" in other for other in others)


def test_what_was_kept_as_sums_is_left_out_first(run):
    """The passes of steps without an account would take the place of those with one."""
    for rank in range(2):
        record(run, rank, 200, full=SOME)
    assert set(details(read_run(run))) == {"full", "sums"}
    capture = read_run(run, Wanted(most_rows=2 * ROWS * 80))
    held = details(capture)["full"]
    assert held[:40] == list(range(40))
    assert set(range(40, 200, 20)) <= set(held)
    assert set(steps_of(capture, "span")) == {*held, 198, 199, 200}
    assert steps_of(capture, "communication_sum") == []
    # Then the first ones, which lie close, down to the distance of the others.
    thinner = details(read_run(run, Wanted(most_rows=2 * ROWS * 24)))["full"]
    assert set(range(20, 200, 20)) <= set(thinner)
    assert len([step for step in thinner if step < 40]) <= 10


def test_where_nothing_but_sums_was_kept_these_are_read(run):
    """A part of a run without single operations would be known from the length of its steps alone."""
    for rank in range(2):
        record(run, rank, 100, full=FullRecords(first_steps=0, every_steps=0))
    capture = read_run(run, Wanted(steps=(10, 80), most_rows=2 * ROWS * 20))
    held = details(capture)
    assert held["sums"] == list(range(12, 81, 4))
    assert set(held["sums"]) <= set(steps_of(capture, "communication_sum"))


def test_the_highest_memory_is_never_left_out(run):
    """The peak that a job died of would not be seen."""
    for rank in range(2):
        record(run, rank, 100)
    capture = read_run(run, Wanted(most_rows=60))
    assert any("in one of 4 steps" in limit for limit in texts(capture.limits))
    held = capture.tables["memory"].to_pandas()
    assert len(held) < 2 * 40
    assert held.groupby("rank")["allocated_bytes"].max().tolist() == [10**9] * 2


def test_a_few_steps_stay_however_large_they_are(run):
    """The largest jobs would have no step at all."""
    for rank in range(2):
        record(run, rank, 100)
    assert len(details(read_run(run, Wanted(most_rows=1)))["full"]) >= 4


def test_the_ends_of_attempts_are_no_samples(run):
    """A job that was restarted often could not be read at all, or from its first steps alone."""
    in_attempts(run, [60, 40, 1, 1, 40])
    held = details(read_run(run, Wanted(most_rows=1)))["full"]
    assert held[-2:] == [140, 141]
    assert 4 <= len(held) - 2 < 10
    assert not {0, 60, 100, 101, 102} & set(held)


def test_what_reaches_into_a_step_stays_with_it(run):
    """What a step waited for longest would be reported as its own work."""
    for rank in range(2):
        record(run, rank, 100, reach=True)
    whole, thin = (read_run(run, Wanted(most_rows=room)) for room in (10**6, 2 * ROWS * 30))
    steps = {step for step in details(thin)["full"] if step < 98}
    assert steps == set(range(4, 98, 4))
    for name, others in (("collective", {step - 1 for step in steps}), ("p2p", set())):
        held = set(steps_of(thin, name)) - {97, 98, 99, 100}
        assert held == steps | others - {97}
        rows = whole.tables[name].to_pandas()
        rows = rows[rows["step"].isin(steps | others)]
        found = thin.tables[name].to_pandas()
        found = found[found["step"].isin(steps | others)]
        assert found.reset_index(drop=True).equals(rows.reset_index(drop=True))
    assert not any("their beginning" in limit for limit in texts(thin.limits))


def test_a_rank_with_more_than_it_seemed_is_no_danger(run):
    """The largest files would be damaged, and all others be read whole, beyond all room."""
    for rank in range(2):
        record(run, rank, 100)
    for path in rank_directory(run, 0).iterdir():
        if path.name != MANIFEST_NAME:
            path.write_bytes(bytes(2 * path.stat().st_size))
    capture = read_run(run, Wanted(most_rows=ROWS * 40))
    assert not capture.is_whole
    assert details(capture, 1)["full"] == [*range(8, 100, 8), 98, 99]
    part = read_run(run, Wanted(steps=(30, 39), most_rows=ROWS * 40))
    assert set(steps_of(part, "span", 1)) == {*range(30, 40), 100}


def test_steps_that_were_traced_in_depth_keep_their_passes(run):
    """Kernels would belong to no pass, and not even the limits would say so."""
    for rank in range(2):
        record(run, rank, 100)
        folder = rank_directory(run, rank) / "traces"
        folder.mkdir()
        (folder / f"step000033-000034.t1.rank{rank:05d}.json.gz").write_bytes(b"")
    capture = read_run(run, Wanted(most_rows=2 * ROWS * 20))
    assert {33, 34} <= set(steps_of(capture, "span"))
    assert 35 not in steps_of(capture, "span")


def in_attempts(run, lengths):
    """Record attempts of so many steps one after the other, on two ranks."""
    for number, steps in enumerate(lengths, 1):
        for rank in range(2):
            record(run, rank, steps, launch=str(number))
            path = rank_directory(run, rank, number) / MANIFEST_NAME
            times = {"started_unix_ns": 10 * number * S, "closed_unix_ns": (10 * number + 5) * S}
            write_json(path, {**read_json(path), **times})


@pytest.mark.parametrize("attempts", [(100,), (60, 40), (30, 50, 20)])
def test_steps_that_are_asked_for_are_read_one_and_all(run, attempts):
    """Of a long run that was restarted no part could be looked at."""
    in_attempts(run, attempts)
    borders = np.cumsum(attempts)[:-1].tolist()
    capture = read_run(run, Wanted(steps=(55, 70), most_rows=2 * ROWS * 20))
    assert not capture.is_whole
    assert not any("rows of passes" in limit for limit in texts(capture.limits))
    for rank in range(2):
        for name in ("span", *COMMUNICATION):
            # What never ended is of the first step of the next attempt by its number.
            found = set(steps_of(capture, name, rank)) - {100}
            assert found - {*borders} == set(range(55, 71)) - {*borders}
    assert steps_of(capture, "step") == list(range(100))


def test_steps_that_are_asked_for_may_have_no_room_either(run):
    """--steps with the whole run would end for want of memory."""
    in_attempts(run, (100,))
    capture = read_run(run, Wanted(steps=(20, 99), most_rows=2 * ROWS * 25))
    assert details(capture)["full"] == sorted({*range(20, 100, 4), 98, 99})
    limit, *_ = texts(capture.limits)
    assert "spread over those asked for" in limit
    assert not any("--steps" in limit for limit in texts(capture.limits))


def test_ranks_that_number_their_steps_apart_keep_them_all(run):
    """Ranks that were attached while they ran would have no step in common."""
    for rank in range(2):
        record(run, rank, 100, full=SOME, attached_while_running=rank == 1)
    capture = read_run(run, Wanted(steps=(50, 60), most_rows=8))
    assert set(range(1, 40)) <= set(details(capture)["full"])


def test_a_rank_without_anything_is_no_reason_to_stop(run):
    """A torn directory would end the reading of a large run."""
    record(run, 0, 100)
    rank_directory(run, 1).mkdir()
    capture = read_run(run, Wanted(steps=(50, 60), most_rows=ROWS * 25))
    assert set(range(50, 61)) <= set(steps_of(capture, "span"))
    assert any("rank 1" in limit for limit in texts(capture.limits))
