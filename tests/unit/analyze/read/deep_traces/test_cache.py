"""Deep traces of a run that is still being recorded, at the second look."""

import json

import pytest
from tests.deep_run import STEPS, add_trace, change_manifest, make_run
from tests.texts import texts

from meshscope.analyze.load.kept_tables import keep
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.read.deep_traces import reading as deep_reading
from meshscope.probe.schema.manifest import rank_directory

DEEP = ("kernel", "op", "runtime_call", "annotation", "name")


@pytest.fixture
def live(tmp_path):
    """Return a run of two ranks with a trace each, of which rank 0 has not ended."""
    run = make_run(tmp_path)
    change_manifest(run, 0, closed_unix_ns=None)
    for rank in (0, 1):
        add_trace(run, rank, [5, 6])
    return run


@pytest.fixture
def reads(monkeypatch):
    """Return the list of the trace files that are read from now on."""
    read, found = deep_reading.read_rank_file, []

    def counted(file, *arguments, **options):
        found.append(file.name)
        return read(file, *arguments, **options)

    monkeypatch.setattr(deep_reading, "read_rank_file", counted)
    return found


def look(run):
    """Return the capture as the command line opens it."""
    return load_trace(run, keeps_traces=True)


def same(one, other):
    """Tell whether two captures have the same rows of deep traces, and say the same."""
    assert (texts(one.limits), one.kernel_steps) == (texts(other.limits), other.kernel_steps)
    for name in DEEP:
        assert one.frame(name).equals(other.frame(name)), name
    return True


def test_a_second_look_reads_no_trace_again(live, reads):
    """Fails when each look at a live run reads all its traces again, or shows something else."""
    first = look(live)
    assert len(reads) == 2
    assert same(look(live), first)
    assert len(reads) == 2
    assert len(first.frame("kernel")) == 8


def test_steps_that_come_later_change_nothing(live, reads):
    """Fails when a trace is read again for each step that the job goes on."""
    before = look(live)
    part = rank_directory(live, 0)
    for path in part.glob("seg-*"):
        path.unlink()
    (part / "ring.bin").rename(part / "away")
    recorded = part / "more"
    make_run(recorded, steps=STEPS + 30)
    for path in (recorded / "run" / "rank00000").glob("*.*"):
        if path.name != "manifest.json":
            path.rename(part / path.name)
    found = look(live)
    assert len(found.frame("step")) == len(before.frame("step")) + 30
    assert len(reads) == 2
    for name in DEEP:
        assert found.frame(name).equals(before.frame(name)), name


def test_another_trace_is_read(live, reads):
    """Fails when a trace that came since the last look is not there."""
    look(live)
    add_trace(live, 0, [9])
    found = look(live)
    assert len(reads) == 3
    assert found.kernel_steps == {0: (5, 6, 9), 1: (5, 6)}


def test_another_clock_is_heard(live, reads):
    """Fails when the steps of a trace are those of an older reading of the clocks."""
    look(live)
    manifest = json.loads((live / "rank00001" / "manifest.json").read_text())
    ((monotonic_ns, time_ns, error_ns),) = manifest["clock_pairs"]
    change_manifest(live, 1, clock_pairs=[[monotonic_ns, time_ns + 1_000_000, error_ns]])
    found = look(live)
    assert len(reads) == 3
    assert found.kernel_steps[0] == (5, 6)
    assert found.kernel_steps[1] != (5, 6)
    entries = list((live / "tables" / "deep").iterdir())
    assert len(entries) == 2, "what nobody needs any more is kept"


def test_a_damaged_entry_is_read_anew(live, reads):
    """Fails when half an entry, of a reader that was killed, hides a trace."""
    first = look(live)
    for file in (live / "tables" / "deep").glob("*/kernel/*.parquet"):
        file.write_bytes(b"")
    assert same(look(live), first)
    assert len(reads) == 4


def test_nothing_is_written_unasked_or_into_a_closed_run(live, reads):
    """Fails when reading a capture changes it."""
    load_trace(live)
    assert not (live / "tables").exists()
    look(live)
    change_manifest(live, 0, closed_unix_ns=1)
    closed = load_trace(live, keeps_traces=True)
    assert len(reads) == 6, "a closed run has tables of its own"
    assert keep(closed)
    assert not (live / "tables" / "deep").exists()


def test_kept_traces_are_for_their_user_alone(live):
    """Fails when a look at a live run opens what its modes keep from other users."""
    look(live)
    kept = live / "tables"
    modes = {path.stat().st_mode & 0o777 for path in (kept, *kept.rglob("*"))}
    assert modes == {0o700, 0o600}
