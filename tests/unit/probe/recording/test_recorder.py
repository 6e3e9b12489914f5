"""The recorder: every event that hooks report ends up in a table."""

import gc
import json
import os
import subprocess
import sys
import threading

import pytest
from tests.texts import texts

from meshscope.probe.reader.run import read_run
from meshscope.probe.recording.record_heads import carried, collective_head, p2p_head, span_head
from meshscope.probe.recording.recorder import (
    COLLECTIVE_CODES,
    DIRECTION_CODES,
    MEMORY_PHASE_CODES,
    SPAN_CODES,
    StorageSettings,
)
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.terms import Axis, CollectiveKind, Direction, MemoryPhase, SpanKind


def rank_manifest(run_path, rank=0):
    """Return the manifest of a rank as it is on disk."""
    return json.loads((run_path / f"rank{rank:05d}" / "manifest.json").read_text())


def test_every_kind_of_event_reaches_its_table(make_recorder, run_path):
    """Fails when a value given to the recorder arrives in another column, or not at all."""
    recorder = make_recorder(1)
    group = recorder.register_group("7", [0, 1], "TP", Axis.TP)
    dtype = recorder.register_dtype("bfloat16")
    recorder.step = 4
    recorder.record_step(4, 100, 50, 2048)
    span = recorder.record_span(span_head(SPAN_CODES[SpanKind.BACKWARD], 1, 0), 101, 20, 15, 3)
    recorder.record_device_time(span, 103, 16)
    event = recorder.issue_collective(
        collective_head(group, COLLECTIVE_CODES[CollectiveKind.BROADCAST], dtype), 9, 64, 105
    )
    sent = recorder.issue_p2p(
        p2p_head(group, DIRECTION_CODES[Direction.SEND], 0, dtype), 2, 32, 106, carried(3, 1)
    )
    recorder.complete(event, 120, 110, 121)
    recorder.record_device_time(sent, -1, 12)
    recorder.record_memory(
        MEMORY_PHASE_CODES[MemoryPhase.AFTER_FORWARD], 1, rss_bytes=7, peak_bytes=None
    )
    recorder.close()

    tables = read_run(run_path).tables
    assert tables["step"].to_pylist() == [
        {"rank": 1, "step": 4, "start_ns": 100, "dur_ns": 50, "tokens": 2048, "detail": None}
    ]
    assert tables["span"].to_pylist() == [
        {
            "rank": 1, "step": 4, "kind": "backward", "stage": 1, "chunk": 0, "microbatch": 3,
            "start_ns": 101, "dur_ns": 20, "cpu_ns": 15,
            "device_start_ns": 103, "device_dur_ns": 16,
        }
    ]  # fmt: skip
    assert tables["collective"].to_pylist() == [
        {
            "rank": 1, "step": 4, "group_id": "7", "axis": "tp", "kind": "broadcast", "seq": 9,
            "size_bytes": 64, "dtype": "bfloat16", "root": None, "issue_ns": 105, "start_ns": 105,
            "end_ns": 120, "wait_start_ns": 110, "wait_end_ns": 121,
            "device_dur_ns": None, "source": "host_blocking", "event_id": event,
        }
    ]  # fmt: skip
    assert tables["p2p"].to_pylist() == [
        {
            "rank": 1, "step": 4, "group_id": "7", "axis": "tp", "peer": 0, "direction": "send",
            "microbatch": 3, "chunk": 1, "seq": 2, "size_bytes": 32, "dtype": "bfloat16",
            "issue_ns": 106, "start_ns": 106, "end_ns": None, "wait_start_ns": None,
            "wait_end_ns": None, "device_dur_ns": 12, "source": "host_issue", "event_id": sent,
        }
    ]  # fmt: skip
    (memory,) = tables["memory"].to_pylist()
    known = {name for name, value in memory.items() if value is not None}
    assert known == {"rank", "step", "phase", "stage", "time_ns", "rss_bytes"}
    assert (memory["phase"], memory["stage"], memory["rss_bytes"]) == ("after_forward", 1, 7)


def test_lengths_that_cannot_be_are_left_out_and_said(make_recorder, run_path):
    """Fails when a damaged record of a microbatch decides what work the others are."""
    recorder = make_recorder()
    for number, (tokens, squares) in enumerate([(7, 25), (7, 6), (7, 50), (-1, 1), (0, 0)]):
        recorder.record_microbatch(number, tokens, squares)
    recorder.close()
    found = read_run(run_path)
    assert found.tables["microbatch"]["microbatch"].to_pylist() == [0, 4]
    assert any(
        "3 microbatch records on rank 0 with impossible lengths" in limit
        for limit in texts(found.limits)
    )


def test_unknown_values_become_null(make_recorder, run_path):
    """Fails when the marks for *unknown* are read as real times or counts."""
    recorder = make_recorder()
    recorder.record_step(0, 1, 2)
    recorder.record_span(span_head(0), 1, 2, -1)
    event = recorder.issue_collective(collective_head(0, 0, -1), 0, 1, 5)
    recorder.complete(event, 0, -1, 0)
    recorder.close()
    tables = read_run(run_path).tables
    assert tables["step"]["tokens"].to_pylist() == [None]
    assert tables["span"]["cpu_ns"].to_pylist() == [None]
    (row,) = tables["collective"].to_pylist()
    assert [row[name] for name in ("dtype", "end_ns", "wait_start_ns", "wait_end_ns")] == [None] * 4
    assert row["source"] == "host_issue"


def test_later_completions_add_and_correct(make_recorder, run_path):
    """Fails when a second completion erases what the first one knew."""
    recorder = make_recorder()
    event = recorder.issue_collective(collective_head(0, 0, -1), 0, 1, 5)
    recorder.flush()
    recorder.complete(event, 90, 0, 0)
    recorder.flush()
    recorder.complete(event, 0, 70, 95)
    recorder.complete(event, 91, 0, 0)
    recorder.complete(-1, 1, 1, 1)
    recorder.close()
    (row,) = read_run(run_path).tables["collective"].to_pylist()
    assert (row["end_ns"], row["wait_start_ns"], row["wait_end_ns"]) == (91, 70, 95)


def test_issue_is_known_before_its_end(make_recorder, run_path):
    """Fails when the last collective of a rank that hangs in it is not in the capture."""
    recorder = make_recorder()
    recorder.issue_collective(
        collective_head(recorder.register_group("dp", [0, 1], ""), 0, -1), 41, 1, 5
    )
    live = read_run(run_path)
    assert live.tables["collective"]["seq"].to_pylist() == [41]
    assert live.tables["collective"]["group_id"].to_pylist() == ["dp"]


def test_registration_is_idempotent_and_on_disk(make_recorder, run_path):
    """Fails when a record can refer to a name that a killed process took with it."""
    recorder = make_recorder()
    assert recorder.register_group("a", [0], "first") == 0
    assert recorder.register_group("b", range(2), "second", Axis.DP) == 1
    assert recorder.register_group("a", [0], "first") == 0
    assert [recorder.register_dtype(name) for name in ("f32", "i8", "f32")] == [0, 1, 0]
    manifest = rank_manifest(run_path)
    assert manifest["groups"] == [
        {"group_id": "a", "index": 0, "ranks": [0], "description": "first", "axis": None},
        {"group_id": "b", "index": 1, "ranks": [0, 1], "description": "second", "axis": "dp"},
    ]
    assert manifest["dtypes"] == ["f32", "i8"]


def test_bad_values_are_counted_and_never_raised(make_recorder, run_path):
    """Fails when a value that cannot be stored raises into training or vanishes uncounted."""
    recorder = make_recorder()
    recorder.record_step(0, None, 1)
    recorder.record_step(0, 1, 1, 1, level=999)
    recorder.record_span(None, 1, 1, 1)
    assert recorder.issue_collective(collective_head(0, 0, 0), 0, 1 << 80, 1) == -1
    assert recorder.issue_p2p("head", 0, 0, 1) == -1
    recorder.complete("x", 1, 1, 1)
    recorder.record_memory(0, 0, unheard_of_bytes=1)
    recorder.annotate("thing", object())
    recorder.close()
    assert rank_manifest(run_path)["counters"] == {
        "record_errors": 7,
        "annotation_errors": 1,
        "unfinished_dropped": 6,
    }
    limits = " ".join(texts(read_run(run_path).limits))
    assert "7 of 7 records could not be stored on rank 0" in limits


def test_counters_and_annotations_reach_the_manifest(make_recorder, run_path):
    """Fails when facts that hooks report are not in the capture after an orderly end."""
    recorder = make_recorder()
    recorder.count("collectives_unseen", 3)
    recorder.count("collectives_unseen")
    recorder.annotate("torch", {"redispatch": True})
    recorder.close()
    recorder.count("collectives_unseen")
    manifest = rank_manifest(run_path)
    assert manifest["counters"] == {"collectives_unseen": 4}
    assert manifest["annotations"] == {"torch": {"redispatch": True}}
    assert manifest["closed_unix_ns"] >= manifest["started_unix_ns"]
    assert len(manifest["clock_pairs"]) == 2


def test_threads_record_side_by_side(make_recorder, run_path):
    """Fails when records of several threads overwrite one another."""
    recorder = make_recorder(slot_count=8192)

    def work(number: int) -> None:
        for seq in range(1500):
            recorder.issue_collective(collective_head(number, 0, -1), seq, 8, 1 + seq)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    capture = read_run(run_path)
    frame = capture.tables["collective"].to_pandas()
    for _, rows in frame.groupby("group_id", observed=True):
        assert rows["seq"].tolist() == list(range(1500))
    assert not [limit for limit in texts(capture.limits) if "records" in limit]


def test_recording_inside_garbage_collection(make_recorder, run_path):
    """Fails when a record made by a gc callback in the middle of another one deadlocks."""
    recorder = make_recorder(slot_count=8192)
    calls = []

    def on_gc(phase: str, _: dict) -> None:
        recorder.record_span(span_head(SPAN_CODES[SpanKind.GC]), 1, 1, -1)
        recorder.count("collections")
        calls.append(phase)

    threshold = gc.get_threshold()
    gc.callbacks.append(on_gc)
    gc.set_threshold(1)
    try:
        for step in range(200):
            recorder.record_step(step, 1, 2)
            recorder.annotate("step", [step])
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(on_gc)
    recorder.close()
    tables = read_run(run_path).tables
    assert calls
    assert tables["span"].num_rows == len(calls)
    assert tables["step"].num_rows == 200


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_records_nothing(make_recorder, run_path):
    """Fails when a DataLoader worker writes into the ring of its parent."""
    recorder = make_recorder()
    issue = recorder.issue_collective
    head = collective_head(0, 0, -1)
    issue(head, 1, 1, 1)
    child = os.fork()
    if child == 0:
        try:
            issue(head, 2, 1, 1)
            recorder.record_step(1, 1, 1)
            recorder.count("from_child")
            recorder.register_group("child", [0], "")
            recorder.flush()
            recorder.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    issue(head, 3, 1, 1)
    recorder.close()
    capture = read_run(run_path)
    assert capture.tables["collective"]["seq"].to_pylist() == [1, 3]
    assert capture.tables["step"].num_rows == 0
    assert capture.rank_manifests[0]["counters"] == {}
    assert capture.rank_manifests[0]["groups"] == []


def test_closed_recorder_ignores_further_events(make_recorder, run_path):
    """Fails when a hook that outlives the recorder changes or damages a finished capture."""
    recorder = make_recorder()
    recorder.record_step(0, 1, 2)
    recorder.close()
    before = (run_path / "rank00000" / "ring.bin").read_bytes()
    recorder.record_step(1, 1, 2)
    recorder.register_group("late", [0], "")
    recorder.flush()
    recorder.close()
    assert (run_path / "rank00000" / "ring.bin").read_bytes() == before
    assert rank_manifest(run_path)["groups"] == []


def test_second_recorder_of_a_rank_begins_a_part(make_recorder, run_path):
    """Fails when a restarted process overwrites what its predecessor recorded."""
    make_recorder(0).record_step(0, 1, 2)
    second = make_recorder(0)
    second.record_step(0, 5, 6)
    assert [path.name for path in sorted(run_path.glob("rank*"))] == ["rank00000", "rank00000.2"]
    assert read_run(run_path).tables["step"].column("dur_ns").to_pylist() == [2, 6]


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"slot_count": 100}, "storage.slot_count"),
        ({"slot_count": 32}, "storage.slot_count"),
        ({"max_bytes": 1 << 20}, "storage.max_bytes"),
        ({"free_floor_frac": 1.0}, "storage.free_floor_frac"),
    ],
)
def test_impossible_settings_name_the_field(settings, where):
    """Fails when a bound that cannot hold is accepted, or its error does not say which."""
    with pytest.raises(ConfigError) as caught:
        StorageSettings(**settings)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("work", "loaded"),
    [
        ("import meshscope.probe.schema.rundir", "set()"),
        ("r = Recorder(Path(sys.argv[1]), 0); r.record_step(0, 1, 2); r.close()", "{'nanoarrow'}"),
    ],
    ids=["import", "record"],
)
def test_training_process_pays_for_no_library_it_does_not_need(tmp_path, work, loaded):
    """Fails when importing the recorder loads Arrow, or recording loads pyarrow (30 to 50 MB)."""
    code = f"""
import sys
from pathlib import Path
from meshscope.probe.recording.recorder import Recorder
from tests.texts import texts
{work}
print({{'nanoarrow', 'pyarrow', 'pandas', 'torch'}} & set(sys.modules))
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == loaded
