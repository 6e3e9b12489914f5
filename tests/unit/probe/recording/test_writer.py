"""The background writer: segments, bounds, failures."""

import resource
import signal
import time
from contextlib import contextmanager
from pathlib import Path

from tests.texts import texts

from meshscope.probe.reader.run import read_run
from meshscope.probe.recording.open_recorder import NullRecorder, open_recorder
from meshscope.probe.schema.segment import read_segment

SMALL = {"segment_bytes": 4096, "max_bytes": 256 * 128 + 6 * 4096}
"""Segments that a few blocks fill, and room for five of them beside the ring."""


def segments(run_path: Path) -> list[str]:
    """Return the names of the segments of rank 0."""
    return sorted(path.name for path in (run_path / "rank00000").glob("seg-*"))


def record(recorder, count: int, *, first: int = 0) -> None:
    """Record steps in blocks of 100, each of which is flushed."""
    for begin in range(first, first + count, 100):
        for step in range(begin, min(begin + 100, first + count)):
            recorder.record_step(step, hash((step, 1)), hash((step, 2)), hash((step, 3)))
        recorder.flush()


def test_thread_drains_without_being_asked(make_recorder, run_path):
    """Fails when records stay in the ring only, so that older ones are lost."""
    recorder = make_recorder(wake_s=0.01, batch_s=0.01)
    for step in range(40):
        recorder.record_step(step, 1, 2)
    deadline = time.monotonic() + 20
    while not segments(run_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert segments(run_path) == ["seg-000001.arrows"]


def test_few_records_wait_for_company(make_recorder, run_path):
    """Fails when an idle job writes a block for every handful of records."""
    recorder = make_recorder(wake_s=0.005, batch_s=3600.0)
    recorder.record_step(0, 1, 2)
    time.sleep(0.1)
    assert segments(run_path) == []
    recorder.flush()
    assert segments(run_path) == ["seg-000001.arrows"]


def test_segments_close_by_size_and_keep_every_record(make_recorder, run_path):
    """Fails when rotation loses records or leaves a segment without its end mark."""
    recorder = make_recorder(segment_bytes=4096, max_bytes=1 << 20)
    record(recorder, 1000)
    recorder.close()
    names = segments(run_path)
    assert len(names) > 2
    assert all(read_segment(run_path / "rank00000" / name).closed for name in names)
    capture = read_run(run_path)
    assert capture.tables["step"]["step"].to_pylist() == list(range(1000))
    assert texts(capture.limits) == ("1 of 2 ranks missing: 1",)


def test_segments_close_by_age(make_recorder, run_path):
    """Fails when a slow job keeps one segment open for ever."""
    recorder = make_recorder(segment_s=0.0)
    record(recorder, 300)
    assert len(segments(run_path)) == 3


def test_bound_drops_the_oldest_but_the_first(make_recorder, run_path):
    """Fails when a long run fills the disk, or drops its first or newest records."""
    recorder = make_recorder(**SMALL)
    record(recorder, 6000)
    recorder.close()
    names = segments(run_path)
    size = sum(path.stat().st_size for path in (run_path / "rank00000").glob("*.arrows"))
    assert names[0] == "seg-000001.arrows"
    assert names[1] != "seg-000002.arrows"
    assert size + 256 * 128 <= SMALL["max_bytes"]
    capture = read_run(run_path)
    steps = capture.tables["step"]["step"].to_pylist()
    counters = capture.rank_manifests[0]["counters"]
    assert steps[0] == 0
    assert steps[-1] == 5999
    assert counters["segments_dropped"] > 0
    assert len(steps) + counters["segment_records_dropped"] >= 6000
    assert any(
        f"{6000 - len(steps):,} of 6,000 records missing on rank 0" in limit
        for limit in texts(capture.limits)
    )


def test_full_disk_stops_segments_and_is_counted(make_recorder, run_path):
    """Fails when the probe takes the last space of a disk that the job needs."""
    recorder = make_recorder(free_floor_frac=0.999999)
    record(recorder, 300)
    recorder.close()
    assert segments(run_path) == []
    capture = read_run(run_path)
    assert capture.rank_manifests[0]["counters"] == {"disk_floor_dropped": 300}
    assert capture.tables["step"]["step"].to_pylist() == list(range(44, 300))
    assert any("44 of 300 records missing on rank 0" in limit for limit in texts(capture.limits))


def test_unwritable_segment_is_counted_and_survived(make_recorder, run_path):
    """Fails when an error of the file system reaches training or ends the capture."""
    recorder = make_recorder()
    (run_path / "rank00000" / "seg-000001.arrows").write_text("in the way")
    record(recorder, 300)
    recorder.close()
    capture = read_run(run_path)
    counters = capture.rank_manifests[0]["counters"]
    assert counters == {"segment_write_errors": 1, "segment_write_dropped": 100}
    assert capture.tables["step"]["step"].to_pylist()[-200:] == list(range(100, 300))
    assert any("seg-000001.arrows" in limit for limit in texts(capture.limits))


@contextmanager
def files_limited_to(size_bytes: int):
    """Let the system refuse to write files beyond a size, as a full disk does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_block_that_was_cut_off_costs_only_itself(make_recorder, run_path):
    """Fails when a disk that fills in the middle of a block costs more than that block."""
    recorder = make_recorder()
    with files_limited_to(4000):
        record(recorder, 600)
    record(recorder, 300, first=600)
    recorder.close()
    capture = read_run(run_path)
    counters = capture.rank_manifests[0]["counters"]
    cut = counters["segment_write_errors"]
    assert cut >= 1
    assert counters["segment_write_dropped"] == cut * 100
    assert capture.tables["step"].num_rows == 900 - cut * 100
    assert any(
        "in seg-000001.arrows, block" in limit and "torn" in limit
        for limit in texts(capture.limits)
    )


def test_ring_that_does_not_fit_leaves_the_job_alone(tmp_path):
    """Fails when a full disk at the start kills the job, or leaves a ring that could."""
    with files_limited_to(1 << 20):
        recorder = open_recorder(tmp_path, 0)
    assert isinstance(recorder, NullRecorder)
    assert "File too large" in recorder.reason
    assert not list(tmp_path.rglob("ring.bin"))


def test_vanished_directory_is_survived(make_recorder, run_path):
    """Fails when deleting a run under a live job breaks the job."""
    recorder = make_recorder()
    for path in (run_path / "rank00000").iterdir():
        path.unlink()
    (run_path / "rank00000").rmdir()
    record(recorder, 300)
    recorder.close()


def test_files_are_private(make_recorder, run_path):
    """Fails when other users of the machine can read a capture."""
    recorder = make_recorder()
    record(recorder, 1)
    modes = {path.name: path.stat().st_mode & 0o777 for path in run_path.rglob("*")}
    assert modes.pop("rank00000") == 0o700
    assert set(modes.values()) == {0o600}
    assert run_path.stat().st_mode & 0o777 == 0o700


def test_flush_within_a_flush_gives_up(make_recorder, run_path, monkeypatch):
    """Fails when a signal handler that flushes in the middle of a flush hangs the job."""
    monkeypatch.setattr("meshscope.probe.recording.writer._LOCK_TIMEOUT_S", 0.05)
    recorder = make_recorder()

    def handler(*_) -> None:
        recorder.flush()

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        with recorder._writer._drain_lock:
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, previous)
    recorder.close()
    assert read_run(run_path).rank_manifests[0]["counters"] == {"writer_errors": 1}
