"""From a path to tables that are kept: whoever reads, however often, the same."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.load.ingest import Keeping, ingest, open_run, understood
from meshscope.analyze.read.source_files import SourceIndex
from meshscope.analyze.synthetic import SyntheticJob, generate
from meshscope.analyze.tables.stored_tables import STORED
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.layout import ParallelLayout

RANKS = 3


def write_ranks(folder: Path, ranks=range(RANKS), count=40, shift_us=0):
    """Write one Kineto file a rank; rank 1 has a clock that is ahead."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in ranks:
        content = {
            "distributedInfo": {"rank": rank, "world_size": RANKS},
            "traceEvents": list(_events(rank, count, shift_us if rank == 1 else 0)),
        }
        (folder / f"rank{rank}.json").write_text(json.dumps(content))
    return folder


def _events(rank, count, shift_us):
    for n in range(count):
        ts = 1_700_000_000_000_000.25 + 100 * n + shift_us
        place = {"ph": "X", "pid": rank, "tid": 1}
        call = {"External id": n + 1, "correlation": n + 1}
        yield place | {"cat": "cpu_op", "name": f"op{n % 7}", "ts": ts, "dur": 9, "args": call}
        launch = {"cat": "cuda_runtime", "name": "launch", "ts": ts + 1, "dur": 2, "args": call}
        yield place | launch
        ran = call | {"device": 0, "stream": 7}
        if n % 4 == 0:
            ran |= {"Collective name": "allreduce", "Process Group Name": "0", "dtype": "Float",
                    "In msg nelems": 8, "Out msg nelems": 8}  # fmt: skip
        yield place | {"cat": "kernel", "name": f"k{n % 5}", "ts": ts + 20, "dur": 50, "args": ran}


@pytest.fixture
def source(tmp_path):
    """Return a folder with the files of three ranks."""
    return write_ranks(tmp_path / "job")


@pytest.fixture
def keeping(tmp_path):
    """Return where runs are kept."""
    return Keeping(runs_dir=tmp_path / "runs")


def same(one, other):
    """Compare two traces table by table; ``run`` is a table only once it is kept."""
    assert (one.ranks, dict(one.run)) == (other.ranks, dict(other.run))
    assert texts(one.limits) == texts(other.limits)
    assert list(one.tables) == list(other.tables)
    for name in set(one.tables) - {"run"}:
        assert one.tables[name].to_pydict() == other.tables[name].to_pydict(), name


def test_several_processes_give_the_same_tables(source, keeping, tmp_path, monkeypatch):
    """The result would depend on the number of CPUs."""
    monkeypatch.setattr("meshscope.analyze.read.kineto.importer._PAYS_BYTES", 0)
    reported = []
    pool = Keeping(runs_dir=tmp_path / "pool", workers=2, on_bytes=reported.append)
    same(ingest(source, pool).trace, ingest(source, keeping).trace)
    assert sum(reported) == sum(file.stat().st_size for file in source.iterdir())


def test_a_file_that_cannot_be_read_is_left_out_in_any_process(source, tmp_path, monkeypatch):
    """An error in another process would lose the ranks that can be read."""
    monkeypatch.setattr("meshscope.analyze.read.kineto.importer._PAYS_BYTES", 0)
    (source / "rank2.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph": "X"}]}')
    found = [
        ingest(source, Keeping(runs_dir=tmp_path / str(workers), workers=workers)).trace
        for workers in (1, 2)
    ]
    same(*found)
    assert found[0].ranks == (0, 1)
    assert any("rank2.json" in limit for limit in texts(found[0].limits))


def test_what_is_kept_equals_what_was_read(source, keeping):
    """A second look would show other numbers than the first."""
    same(ingest(source, keeping).trace, load_trace(source))


def test_corrected_clocks_are_kept(tmp_path, keeping):
    """The tables on disk would have the times before the correction."""
    source = write_ranks(tmp_path / "job", shift_us=5_000)
    kept, read = ingest(source, keeping).trace, load_trace(source)
    assert kept.row_count("clock_sync") == 1
    starts = kept.frame("kernel").groupby("rank")["start_ns"].min()
    assert starts[1] - starts[0] == pytest.approx(0, abs=1_000)
    same(kept, read)


def test_the_same_content_is_read_once(source, keeping, tmp_path):
    """Every command would parse the traces again."""
    first, second = (ingest(source, keeping) for _ in range(2))
    assert (first.reused, second.reused) == (False, True)
    assert first.path == second.path
    assert first.path.name.startswith("job-")
    source.rename(tmp_path / "moved")
    assert ingest(tmp_path / "moved", keeping).path == first.path


def test_other_content_is_another_run(source, keeping):
    """Tables of old files would be shown for new ones."""
    first = ingest(source, keeping)
    write_ranks(source, count=41)
    second = ingest(source, keeping)
    assert not second.reused
    assert second.path != first.path
    assert second.trace.row_count("kernel") == 41 * RANKS


def test_a_run_that_was_removed_is_made_again(source, keeping):
    """The index would point to nothing, and the source could never be opened again."""
    run = ingest(source, keeping).path
    (run / "manifest.json").unlink()
    for file in sorted(run.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    run.rmdir()
    assert not ingest(source, keeping).reused


def test_files_given_one_by_one_are_one_job(source, keeping):
    """Each rank of a pattern that the shell expands would be a run of its own."""
    found = ingest(sorted(source.iterdir()), keeping)
    assert found.trace.ranks == (0, 1, 2)
    assert found.path.name.startswith("job-")


def test_runs_below_the_source_are_no_part_of_it(source, tmp_path):
    """Ingesting the current folder would read its own results the next time."""
    keeping = Keeping(runs_dir=source / "meshscope_runs")
    first, second = (ingest(source, keeping) for _ in range(2))
    assert second.reused
    assert texts(first.trace.limits) == texts(second.trace.limits)


def test_two_jobs_in_two_folders_are_separated(tmp_path, keeping):
    """The message would not say that one folder too many was given."""
    for job, count in (("first", 40), ("second", 44)):
        write_ranks(tmp_path / "both" / job, count=count)
    with pytest.raises(MeshscopeError, match=r"first and .*second may be two jobs"):
        ingest(tmp_path / "both", keeping)
    assert list(keeping.runs_dir.glob("*")) == []


def test_opening_traces_keeps_them_and_says_so_once(source, keeping):
    """People would not know where the folder came from, or would be told at every look."""
    said = []
    first = open_run(source, keeping, said.append)
    assert len(said) == 1
    assert str(first.path) in said[0]
    same(first, open_run(source, keeping, said.append))
    assert len(said) == 1


def test_traces_are_analysed_where_nothing_can_be_kept(source, tmp_path, monkeypatch):
    """A read-only working folder would make every trace unreadable."""

    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("meshscope.analyze.load.ingest.drafted", refuse)
    said = []
    trace = open_run(source, Keeping(runs_dir=tmp_path / "runs"), said.append)
    assert trace.row_count("kernel") == 40 * RANKS
    assert len(said) == 1
    assert "not kept" in said[0]


@pytest.mark.parametrize("below", ["file", "file/below", "/proc/nothing"])
def test_a_folder_of_runs_that_cannot_be_one_costs_the_keeping_alone(source, tmp_path, below):
    """A slip in the name of the folder of runs would end an analysis before it began."""
    (tmp_path / "file").write_text("")
    said = []
    trace = open_run(source, Keeping(runs_dir=tmp_path / below), said.append)
    assert trace.row_count("kernel") == 40 * RANKS
    (line,) = said
    assert "not kept" in line


def test_a_source_that_may_not_be_read_is_an_error(source, keeping, monkeypatch):
    """It would be said that the folder of runs cannot be written."""

    def refuse(_self, _files, _cycle):
        raise PermissionError(13, "Permission denied", str(source / "rank0.json"))

    monkeypatch.setattr(SourceIndex, "state", refuse)
    with pytest.raises(PermissionError):
        open_run(source, keeping, pytest.fail)


def test_temporary_tables_vanish_with_the_trace(source, monkeypatch, tmp_path):
    """Every look at a trace would leave its kernels on the disk."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = set(tmp_path.iterdir())
    trace = load_trace(source)
    (folder,) = set(tmp_path.iterdir()) - before
    assert trace.row_count("kernel") == 40 * RANKS
    assert len(list(folder.rglob("*.parquet"))) == len(STORED) * RANKS
    del trace
    assert not folder.exists()


def test_a_worker_that_is_killed_costs_no_rank(tmp_path):
    """One process that the system kills would take the job with it, or leave it hanging."""
    source = write_ranks(tmp_path / "job", count=6000)
    program = (
        "import meshscope.analyze.read.kineto.importer as pool\n"
        "from pathlib import Path\n"
        "from meshscope.analyze.load.ingest import Keeping, ingest\n"
        "pool._PAYS_BYTES = 0\n"
        "if __name__ == '__main__':\n"
        f"    found = ingest(Path({str(source)!r}),\n"
        f"        Keeping(runs_dir=Path({str(tmp_path / 'runs')!r}), workers=2))\n"
        "    print(found.trace.ranks, found.trace.row_count('kernel'))\n"
    )
    script = tmp_path / "program.py"
    script.write_text(program)
    running = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    killed = _kill_a_worker(running)
    out, err = running.communicate(timeout=60)
    assert killed
    assert (running.returncode, out.strip()) == (0, f"(0, 1, 2) {6000 * RANKS}"), err


def _kill_a_worker(program):
    """Kill the first process that works for a program's fork server; say whether there was one before it ended."""
    while program.poll() is None:
        workers = [child for server in _children(program.pid) for child in _children(server)]
        if workers:
            os.kill(workers[0], signal.SIGKILL)
            return True
        time.sleep(0.005)
    return False


def _children(pid):
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.traces
def test_a_real_set_is_parsed_once_and_explained(traces_dir: Path, keeping):
    """If this fails, people cannot see what was understood of their traces."""
    source = traces_dir / "amd_hpctraining" / "split"
    first, second = (ingest(source, keeping) for _ in range(2))
    assert (first.reused, second.reused) == (False, True)
    lines = understood(second.trace)
    assert "ranks: 4 of 4" in lines
    assert any("axis dp" in line and "only group" in line for line in lines)
    assert any(line.startswith("rows:") and "kernel 16,287" in line for line in lines)


def test_many_groups_of_one_kind_share_a_line():
    """Fails when what was understood of a large job runs off the screen."""
    job = SyntheticJob(layout=ParallelLayout(tp=2, pp=2, dp=8), steps=2)
    trace, _ = generate(job)
    lines = [line for line in understood(trace) if "axis" in line]
    assert len(lines) < 6
    assert any(line.startswith("16 groups: axis tp, 2 ranks each") for line in lines)


def test_a_note_beside_the_traces_makes_no_new_run(source, keeping):
    """Fails when a text file in the folder costs reading everything again, and a second copy."""
    first = ingest(source, keeping)
    (source / "notes.txt").write_text("the run of Tuesday")
    again = ingest(source, keeping)
    assert again.reused
    assert again.path == first.path
    other = (source / "rank2.json").read_text().replace('"dur": 9', '"dur": 8')
    (source / "rank3.json").write_text(other)
    with pytest.raises(MeshscopeError, match="is rank 2, and so is"):
        ingest(source, keeping)
