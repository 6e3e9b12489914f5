"""The manifest of a rank while its disk takes its time."""

import threading

import pytest

from meshscope.probe.clock import ClockPair
from meshscope.probe.recording import rank_manifest
from meshscope.probe.recording.rank_manifest import RankManifest
from meshscope.probe.schema.clock_steps import clock_steps
from meshscope.probe.schema.manifest import read_json, write_json

PATIENCE_S = 30.0


@pytest.fixture
def slow_disk(monkeypatch):
    """Return two events: that a write has begun, and that it may end."""
    begun, may_end = threading.Event(), threading.Event()

    def write(path, content):
        begun.set()
        assert may_end.wait(PATIENCE_S)
        write_json(path, content)

    yield begun, may_end, lambda: monkeypatch.setattr(rank_manifest, "write_json", write)
    may_end.set()


def test_who_counts_does_not_wait_for_a_write(tmp_path, slow_disk):
    """Fails when training waits for a disk because the writer's thread does."""
    begun, may_end, make_slow = slow_disk
    manifest = RankManifest(tmp_path, 0, slow_file_system="nfs4")
    make_slow()
    manifest.count("a", 1)
    writer = threading.Thread(target=manifest.write, daemon=True)
    writer.start()
    assert begun.wait(PATIENCE_S)
    done = threading.Event()

    def train():
        manifest.count("b", 2)
        manifest.annotate("fact", 3)
        manifest.add_group("dp", (0, 1), "", None)
        manifest.add_dtype("float32")
        manifest.publish()
        done.set()

    threading.Thread(target=train, daemon=True).start()
    assert done.wait(PATIENCE_S), "a lock is held while the file is written"
    may_end.set()
    writer.join(PATIENCE_S)
    manifest.write_due()
    written = read_json(tmp_path / "manifest.json")
    assert written["counters"] == {"a": 1, "b": 2}
    assert [group["group_id"] for group in written["groups"]] == ["dp"]
    assert written["dtypes"] == ["float32"]


def test_names_are_on_disk_at_once_where_that_costs_nothing(tmp_path):
    """Fails when a process that is killed leaves records whose group nobody knows."""
    manifest = RankManifest(tmp_path, 0)
    manifest.add_group("dp", (0, 1), "", None)
    assert [g["group_id"] for g in read_json(tmp_path / "manifest.json")["groups"]] == ["dp"]


def test_a_disk_that_hangs_is_waited_for_once(tmp_path, slow_disk, monkeypatch):
    """Fails when a training hangs at a new group or element type because its disk does."""
    _, may_end, make_slow = slow_disk
    monkeypatch.setattr(rank_manifest, "MOST_PUBLISH_S", 0.01)
    manifest = RankManifest(tmp_path, 0)
    make_slow()
    assert manifest.add_group("dp", (0, 1), "", None) == 0
    monkeypatch.setattr(rank_manifest, "MOST_PUBLISH_S", 10 * PATIENCE_S)
    assert manifest.add_dtype("float32") == 0
    may_end.set()
    manifest.write_due()
    written = read_json(tmp_path / "manifest.json")
    assert written["counters"] == {"manifest_write_timeouts": 1}
    assert (len(written["groups"]), written["dtypes"]) == (1, ["float32"])


def test_two_that_write_leave_the_newer(tmp_path, slow_disk):
    """Fails when a slow write of old content replaces what another thread wrote meanwhile."""
    begun, may_end, make_slow = slow_disk
    manifest = RankManifest(tmp_path, 0)
    make_slow()
    manifest.count("a", 1)
    writers = [threading.Thread(target=manifest.write, daemon=True) for _ in range(2)]
    writers[0].start()
    assert begun.wait(PATIENCE_S)
    manifest.count("a", 1)
    writers[1].start()
    may_end.set()
    for writer in writers:
        writer.join(PATIENCE_S)
    assert read_json(tmp_path / "manifest.json")["counters"] == {"a": 2}


def test_a_wall_clock_that_is_put_is_noted_at_once(tmp_path, monkeypatch):
    """Fails when times near the jump are placed by a reading of a minute before it, or after."""
    second, manifest = 1_000_000_000, RankManifest(tmp_path, 0)
    kept = len(manifest._content()["clock_pairs"])
    readings = [(at, at + put) for at, put in enumerate([100, 100, 100, 400, 400, 90])]
    pairs = iter(ClockPair(at * second, unix * second, 10) for at, unix in readings)
    monkeypatch.setattr(rank_manifest, "clock_pair", lambda: next(pairs))
    manifest.sample_clocks()
    for _ in readings[1:]:
        manifest.watch_clocks()
    manifest.write_due()
    reported = read_json(tmp_path / "manifest.json")["clock_pairs"][kept:]
    assert [[at // second, unix // second] for at, unix, _ in reported] == [
        [0, 100],
        [2, 102],
        [3, 403],
        [4, 404],
        [5, 95],
    ]
    assert clock_steps(reported) == [300 * second, -310 * second]
