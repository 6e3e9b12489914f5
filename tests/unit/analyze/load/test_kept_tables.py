"""The kept tables of a closed capture: equal to those from its segments, and never stale."""

import json
import shutil

import pytest
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.load import kept_tables
from meshscope.analyze.load.ingest import Keeping, open_run
from meshscope.analyze.load.kept_tables import capture_key, is_closed, keep, read_kept
from meshscope.analyze.tables.table_folder import FOLDER
from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.recording.record_heads import collective_head
from meshscope.probe.recording.recorder import Recorder, StorageSettings
from meshscope.probe.schema.manifest import rank_directory
from meshscope.probe.schema.rundir import create_run

SETTINGS = StorageSettings(wake_s=3600.0, slot_count=64, free_floor_frac=0.0)


def record(path, rank, *, close=True):
    """Record some steps of one rank; return the recorder."""
    recorder = Recorder(path, rank, settings=SETTINGS)
    group = recorder.register_group("0", [0, 1], "default_pg")
    for step in range(200):
        recorder.step = step
        recorder.record_step(step, step * 1000 + 900, 1)
        recorder.issue_collective(collective_head(group, 0, -1), step, 8, 1)
        if step % 20 == 19:
            recorder.flush()
    if close:
        recorder.close()
    return recorder


@pytest.fixture
def run(tmp_path):
    """Return a run of two ranks that is closed."""
    path = create_run(tmp_path / "runs", "run", {"world_size": 2})
    for rank in range(2):
        record(path, rank)
    return path


def test_kept_tables_equal_those_from_the_segments(run):
    """The second look at a run would differ from the first."""
    first = load_trace(run)
    assert keep(first)
    again = read_kept(run)
    assert again is not None
    assert (again.run, again.layout, again.ranks) == (first.run, first.layout, first.ranks)
    assert (texts(again.limits), again.clocks, again.origin) == (
        texts(first.limits),
        first.clocks,
        first.origin,
    )
    for name in first.tables:
        assert again.tables[name].equals(first.tables[name].combine_chunks()), name
    assert first.row_count("step") == 400


def test_a_part_of_a_large_run_is_kept_as_such(run):
    """Asked for some steps, or given more room, a user would get the thinned-out tables of before."""
    little = Wanted(most_rows=20)
    thin = load_trace(run, wanted=little)
    assert not thin.is_whole
    assert keep(thin, little)
    again = read_kept(run, little)
    assert again is not None
    assert again.row_count("collective") == thin.row_count("collective") < 60
    assert not again.is_whole
    assert read_kept(run) is None
    assert read_kept(run, Wanted(steps=(3, 5), most_rows=20)) is None
    some = Wanted(steps=(3, 5), most_rows=20)
    assert not keep(load_trace(run, wanted=some), some)
    assert keep(load_trace(run))
    assert all(read_kept(run, other) is not None for other in (Wanted(), Wanted(steps=(3, 5))))
    assert all(read_kept(run, other) is None for other in (little, some))


@pytest.mark.parametrize("file", ["seg-000001.arrows", "ring.bin", "manifest.json"])
def test_any_changed_file_makes_them_stale(run, file):
    """What was recorded or repaired later would not be seen."""
    assert keep(load_trace(run))
    path = rank_directory(run, 1) / file
    content = bytearray(path.read_bytes())
    content[-2] ^= 0x01
    path.write_bytes(content)
    assert read_kept(run) is None


def test_other_code_makes_them_stale(run, monkeypatch):
    """Fails when a run shows after an upgrade what the old code made of it."""
    keep(load_trace(run))
    assert read_kept(run) is not None
    monkeypatch.setattr(kept_tables, "tables_version", lambda: "other code")
    assert read_kept(run) is None


def test_a_rank_that_comes_later_makes_them_stale(run):
    """A rank that is copied in from another host would stay invisible."""
    assert keep(load_trace(run))
    shutil.copytree(rank_directory(run, 1), rank_directory(run, 2))
    assert read_kept(run) is None
    assert load_trace(run).ranks == (0, 1, 2)


def test_a_live_run_is_left_alone(tmp_path):
    """A run that is still written would be answered from its past."""
    path = create_run(tmp_path / "runs", "live", {"world_size": 1})
    recorder = record(path, 0, close=False)
    try:
        recorder.flush()
        assert not is_closed(path)
        before = sorted(path.rglob("*"))
        trace = open_run(path, Keeping(runs_dir=tmp_path / "runs"), pytest.fail)
        assert trace.row_count("step") == 200
        assert sorted(path.rglob("*")) == before
    finally:
        recorder.close()


def test_opening_keeps_once_and_again_when_stale(run):
    """Tables would be written at every look, or never again."""
    keeping = Keeping(runs_dir=run.parent)
    open_run(run, keeping, pytest.fail)
    facts = run / FOLDER / "capture.json"
    first = facts.stat().st_mtime_ns
    open_run(run, keeping, pytest.fail)
    assert facts.stat().st_mtime_ns == first
    manifest = rank_directory(run, 0) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"host": "other"}))
    assert open_run(run, keeping, pytest.fail).row_count("step") == 400
    assert json.loads(facts.read_text())["key"] == capture_key(run)


def test_a_damaged_table_is_read_from_the_segments(run):
    """A torn cache would make a whole capture unreadable."""
    keep(load_trace(run))
    file = run / FOLDER / "step" / "rank=00001.parquet"
    file.write_bytes(file.read_bytes()[:-40])
    assert load_trace(run).row_count("step") == 400


def test_a_folder_that_cannot_be_written_is_no_error(run, monkeypatch):
    """Captures on a read-only share could not be opened."""

    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    trace = open_run(run, Keeping(runs_dir=run.parent), pytest.fail)
    assert trace.row_count("step") == 400
    assert not (run / FOLDER).exists()


def test_kept_tables_are_for_their_user_alone(run):
    """Another user could read what the modes of the run directory keep from them."""
    assert keep(load_trace(run))
    kept = run / "tables"
    modes = {path.stat().st_mode & 0o777 for path in (kept, *kept.rglob("*"))}
    assert modes == {0o700, 0o600}
