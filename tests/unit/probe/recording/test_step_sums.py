"""Sums of communication records, and what a reader makes of them."""

import numpy as np
import pandas as pd
import pytest
from tests.texts import texts

from meshscope.probe.reader.run import read_run
from meshscope.probe.recording import step_sums as fold_module
from meshscope.probe.recording.record_heads import collective_head, p2p_head, span_head
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.records import (
    COLLECTIVE_CODES,
    DIRECTION_CODES,
    LEVEL_CODES,
    SPAN_CODES,
)
from meshscope.probe.schema.terms import CaptureLevel, CollectiveKind, Direction, SpanKind

STEP_NS = 1_000_000
LEVEL = LEVEL_CODES[CaptureLevel.COLLECTIVES]
KEY = ["step", "group_id", "operation", "peer"]


def play(recorder, steps, *, seed=0, filler=0):
    """Record steps of two collectives in a forward span, one after it, and two messages."""
    random = np.random.default_rng(seed)
    group = recorder.register_group("7", [0, 1], "TP")
    reduce, gather = (COLLECTIVE_CODES[CollectiveKind(k)] for k in ("all_reduce", "all_gather"))
    first = recorder.step + 1
    for step in range(first, first + steps):
        recorder.step = step
        begin = (step + 1) * STEP_NS
        for position, kind in enumerate((reduce, reduce, gather)):
            issue = begin + 1000 * (position + 1)
            event = recorder.issue_collective(
                collective_head(group, kind, -1), 3 * step + position, 64, issue
            )
            wait, end = issue + int(random.integers(1, 9)), issue + int(random.integers(20, 90))
            recorder.complete(event, end, wait, end)
        recorder.record_span(span_head(SPAN_CODES[SpanKind.FORWARD]), begin, 2500, 2500)
        for direction in Direction:
            recorder.issue_p2p(
                p2p_head(group, DIRECTION_CODES[direction], 1, -1), step, 1 << 20, begin + 5000
            )
        for count in range(filler):
            if count % 30 == 0:
                recorder.flush()
            recorder.record_span(span_head(SPAN_CODES[SpanKind.GC]), begin, 1, 1)
        recorder.record_step(step, begin, STEP_NS, -1, LEVEL)
        recorder.step = step


def tables_of(run_path, name):
    """Return one table of a run."""
    return read_run(run_path).tables[name].to_pandas().astype({"step": int})


@pytest.fixture
def fresh(make_recorder):
    """Return a function that opens a recorder whose next step is 0."""

    def make(rank=0, **settings):
        recorder = make_recorder(rank, **settings)
        recorder.step = -1
        return recorder

    return make


def summed(rows, operation):
    """Return the sums of whole records by step, group, operation and peer."""
    rows = rows.assign(
        operation=rows[operation].astype(str),
        group_id=rows["group_id"].astype(str),
        peer=rows.get("peer", -1),
        dur_ns=(rows["end_ns"] - rows["start_ns"]).astype(float),
        wait_ns=(rows["wait_end_ns"] - rows["wait_start_ns"]).astype(float),
    )
    return rows.groupby(KEY).agg(
        count=("dur_ns", "size"),
        ended=("dur_ns", "count"),
        size_bytes=("size_bytes", "sum"),
        dur_ns=("dur_ns", "sum"),
        min_dur_ns=("dur_ns", "min"),
        max_dur_ns=("dur_ns", "max"),
        wait_ns=("wait_ns", "sum"),
    )


def test_sums_are_those_of_the_records(fresh, run_path):
    """Fails when a sum differs from what the same operations say one by one."""
    whole = fresh(0, slot_count=1024)
    folded = fresh(1, slot_count=64, full_records=FullRecords(every_steps=0))
    for _ in range(4):
        for recorder in (whole, folded):
            play(recorder, 3, seed=recorder.step + 1)
            recorder.flush()
    for recorder in (whole, folded):
        play(recorder, 1, filler=70)
        recorder.close()
    tables = read_run(run_path).tables
    frames = [tables[name].to_pandas() for name in ("collective", "p2p")]
    expected = pd.concat(
        [
            summed(frames[0].query("rank == 0"), "kind"),
            summed(frames[1].query("rank == 0"), "direction"),
        ]
    ).sort_index()
    sums = tables["communication_sum"].to_pandas().astype({"operation": str, "group_id": str})
    assert set(sums["rank"]) == {1}
    found = sums.groupby(KEY).agg(
        {
            **dict.fromkeys(("count", "ended", "size_bytes", "dur_ns"), "sum"),
            "min_dur_ns": "min", "max_dur_ns": "max", "wait_ns": "sum",
        }
    )  # fmt: skip
    steps = sorted(set(sums["step"]))
    assert steps == list(range(13))
    pd.testing.assert_frame_equal(
        found, expected.loc[steps], check_dtype=False, check_index_type=False
    )
    assert set(sums["within"].dropna()) == {"forward"}
    by_place = sums[sums["operation"] == "all_reduce"]["within"]
    assert (by_place == "forward").all()
    assert sums[sums["operation"] == "all_gather"]["within"].isna().all()


def test_only_the_steps_in_the_ring_are_shown_one_by_one(fresh, run_path):
    """Fails when odd records of a step that was summed are taken for all of it."""
    recorder = fresh(0, slot_count=64, full_records=FullRecords(every_steps=0))
    for _ in range(8):
        play(recorder, 2)
        recorder.flush()
    recorder.close()
    run = read_run(run_path)
    steps = run.tables["step"].to_pandas()
    detail = dict(zip(steps["step"], steps["detail"], strict=True))
    assert detail[0] == "sums"
    assert detail[15] == "full"
    full = {step for step, held in detail.items() if held == "full"}
    assert {detail[step] for step in set(detail) - full} == {"sums"}
    assert set(tables_of(run_path, "collective")["step"]) == full
    assert set(tables_of(run_path, "communication_sum")["step"]) == set(detail) - full
    assert texts(run.limits) == ("1 of 2 ranks missing: 1",)


def test_chosen_steps_are_kept_one_by_one(fresh, run_path):
    """Fails when ranks keep other steps than the settings name, or lose parts of them."""
    recorder = fresh(0, slot_count=64, full_records=FullRecords(first_steps=3, every_steps=5))
    for _ in range(12):
        play(recorder, 1)
        recorder.flush()
    play(recorder, 1, filler=70)
    recorder.close()
    rows = tables_of(run_path, "collective")
    assert rows.groupby("step").size().to_dict() == dict.fromkeys((0, 1, 2, 5, 10), 3)
    assert rows["end_ns"].notna().all()
    details = tables_of(run_path, "step").set_index("step")["detail"]
    assert list(details[details == "full"].index) == [0, 1, 2, 5, 10]


def test_what_reaches_into_a_full_step_is_there(fresh, run_path):
    """Fails when the wait of a full step for an operation of the step before is lost."""
    recorder = fresh(0, slot_count=64, full_records=FullRecords(every_steps=3))
    play(recorder, 2)
    group = recorder.register_group("7", [0, 1], "TP")
    recorder.step = 2
    late = recorder.issue_collective(collective_head(group, 0, -1), 99, 8, 3 * STEP_NS + 5)
    recorder.record_step(2, 3 * STEP_NS, STEP_NS, -1, LEVEL)
    recorder.step = 3
    recorder.complete(late, 4 * STEP_NS + 50, 4 * STEP_NS + 10, 4 * STEP_NS + 50)
    recorder.step = 2
    play(recorder, 2)
    recorder.flush()
    play(recorder, 1, filler=70)
    recorder.close()
    rows = tables_of(run_path, "collective").set_index("seq")
    assert rows.loc[99, "wait_end_ns"] == 4 * STEP_NS + 50
    assert set(rows["step"]) == {0, 2, 3}


def test_the_ring_can_be_kept(fresh, run_path):
    """Fails when a request to keep what just happened leaves only sums of it."""
    recorder = fresh(0, slot_count=64, full_records=FullRecords(every_steps=0))
    play(recorder, 4)
    recorder.flush()
    recorder.keep_ring()
    play(recorder, 1, filler=200)
    recorder.close()
    details = tables_of(run_path, "step").set_index("step")["detail"]
    assert list(details[:3]) == ["full"] * 3
    assert tables_of(run_path, "collective").groupby("step").size()[1] == 3


def test_a_kill_leaves_the_last_steps_in_the_ring(fresh, run_path):
    """Fails when the steps before a kill are neither summed nor there one by one."""
    recorder = fresh(0, slot_count=256, full_records=FullRecords(every_steps=0))
    for _ in range(30):
        play(recorder, 1)
        recorder.flush()
    run = read_run(run_path)
    details = run.tables["step"].to_pandas()["detail"]
    assert set(details) == {"sums", "full"}
    assert details.iloc[-1] == "full"
    assert not [limit for limit in texts(run.limits) if "records missing" in limit]


def test_a_step_without_end_is_not_held_for_ever(fresh, run_path, monkeypatch):
    """Fails when a job that never ends a step fills the memory with its records."""
    monkeypatch.setattr(fold_module, "_MOST_PENDING", 20)
    recorder = fresh(0, slot_count=64, full_records=FullRecords(every_steps=0))
    recorder.step = 0
    for seq in range(200):
        recorder.complete(recorder.issue_collective(collective_head(0, 0, -1), seq, 8, 5), 9, 6, 9)
        if seq % 10 == 9:
            recorder.flush()
    assert recorder._writer._fold._pending <= 20 + 20
    recorder.close()
    assert len(read_run(run_path).tables["collective"]) > 150


def test_an_error_of_the_sums_leaves_the_records(fresh, run_path, monkeypatch):
    """Fails when a fault in summing loses what the ring gave."""

    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(fold_module, "_sums", broken)
    recorder = fresh(0, slot_count=64, full_records=FullRecords(every_steps=0))
    for _ in range(4):
        play(recorder, 3)
        recorder.flush()
    recorder.close()
    run = read_run(run_path)
    assert run.rank_manifests[0]["counters"]["fold_errors"] == 1
    assert len(run.tables["collective"]) >= 27


@pytest.mark.parametrize("values", [{"first_steps": -1}, {"every_steps": -2}])
def test_impossible_choices_are_refused(values):
    """Fails when a negative number keeps or drops steps at random."""
    with pytest.raises(ConfigError, match="at least 0"):
        FullRecords(**values)
