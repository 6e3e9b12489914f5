"""A capture that is rewritten as if its clock had been wrong."""

from __future__ import annotations

import pytest

from meshscope.probe.reader.rank_records import read_rank
from meshscope.probe.recording.open_recorder import open_recorder
from meshscope.probe.recording.record_heads import collective_head
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.fault_plan import parse_fault, resolve
from meshscope.reference_trainer.faults import clock_fault
from meshscope.reference_trainer.faults.clock_fault import (
    WrongClock,
    falsify_capture,
    falsify_own_clock,
)
from meshscope.reference_trainer.faults.ground_truth import GroundTruth

CLOCK = WrongClock(offset_ns=5_000_000, drift_ppm=100.0, origin_ns=1_000_000_000)


def capture(run):
    """Record a step, a collective that ended and one that did not; return the rank's directory."""
    recorder = open_recorder(run, 3)
    group = recorder.register_group("tp", [2, 3], "tp")
    dtype = recorder.register_dtype("fp32")
    recorder.step = 0
    ended = recorder.issue_collective(collective_head(group, 1, dtype), 0, 64, 1_000_000_000)
    recorder.complete(ended, 2_000_000_000, 1_000_000_000, 2_000_000_000)
    recorder.issue_collective(collective_head(group, 1, dtype), 1, 64, 3_000_000_000)
    recorder.record_step(0, 1_000_000_000, 1_000_000_000, 128)
    recorder.close()
    return recorder.directory


def test_all_times_are_those_of_the_wrong_clock_and_nothing_else_changes(tmp_path):
    """Fails if a time keeps the real clock, so that the skew would contradict itself."""
    directory = capture(tmp_path)
    before = read_rank(directory, 3)
    falsify_capture(directory, 3, CLOCK)
    after = read_rank(directory, 3)
    assert after.limits == before.limits
    for name, table in before.tables.items():
        real, wrong = table.to_pandas(), after.tables[name].to_pandas()
        for column in real.columns:
            expected = real[column]
            if column == "dur_ns":
                expected = expected + 100_000
            elif column.endswith("_ns"):
                gained = (real[column] - CLOCK.origin_ns) // 10_000
                expected = real[column] + CLOCK.offset_ns + gained
            assert wrong[column].tolist() == expected.tolist(), (name, column)


def test_the_rank_seems_to_be_on_a_host_of_its_own(tmp_path):
    """Fails if an analysis may trust that the clock is shared, or the wall clock gives it away."""
    directory = capture(tmp_path)
    before = read_rank(directory, 3).manifest
    falsify_capture(directory, 3, CLOCK)
    after = read_rank(directory, 3).manifest
    assert after["boot_id"] != before["boot_id"]
    assert after["host"] != before["host"]
    for (mono, unix, _), (wrong_mono, wrong_unix, _) in zip(
        before["clock_pairs"], after["clock_pairs"], strict=True
    ):
        assert wrong_mono - mono == wrong_unix - unix == CLOCK.tells(mono) - mono


def test_a_capture_that_cannot_be_rewritten_is_still_there(tmp_path, monkeypatch):
    """Fails if a full disk loses what was recorded before the replacement is written."""
    directory = capture(tmp_path)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}

    def full(_self, _payload):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(clock_fault.SegmentFile, "append", full)
    with pytest.raises(OSError, match="No space"):
        falsify_capture(directory, 3, CLOCK)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before


def test_the_part_that_was_recorded_now_is_rewritten_and_no_other(tmp_path, monkeypatch):
    """Fails if the attempt before a restart, or another run, is told the wrong times."""
    capture(tmp_path / "run")
    other = capture(tmp_path / "run")
    assert other.name == "rank00003.2"
    foreign = capture(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    fault = resolve(parse_fault("clock_skew:rank=3,offset_ms=5"), ParallelLayout(dp=4), seed=0)
    falsify_own_clock([fault], 3, other, GroundTruth(None, 3, [fault]))
    changed = {path.parent for path, content in before.items() if _content(path) != content}
    assert changed == {other} != {foreign}


def _content(path):
    return path.read_bytes() if path.exists() else None
