"""Directories of a rank that records more than once."""

import os
import subprocess
import sys

import pytest

from meshscope.probe.job.identity import Identity
from meshscope.probe.job.run_facts import RunFacts
from meshscope.probe.recording.parts import MOST_PARTS, new_part, other_process
from meshscope.probe.schema.manifest import JOB_KEY, read_json, write_json
from meshscope.probe.schema.ring import RING_NAME
from meshscope.probe.schema.rundir import write_run_manifest


def record(run, rank=0, size=100, most_bytes=10_000):
    """Begin a part and leave something in it; return its name and how many were deleted."""
    path, deleted = new_part(run, rank, most_bytes)
    (path / RING_NAME).write_bytes(bytes(size))
    return path.name, deleted


def test_parts_are_numbered_by_rank(tmp_path):
    """Fails when a part takes the place of another one."""
    names = [record(tmp_path)[0] for _ in range(3)]
    assert names == ["rank00000", "rank00000.2", "rank00000.3"]
    assert record(tmp_path, 1)[0] == "rank00001"
    assert (tmp_path / "rank00000").stat().st_mode & 0o777 == 0o700


def test_a_part_without_records_is_used_again(tmp_path):
    """Fails when a start that failed for want of room leaves an empty part each time."""
    record(tmp_path)
    assert new_part(tmp_path, 0, 10_000) == new_part(tmp_path, 0, 10_000)


def test_the_first_and_the_newest_that_fit_are_kept(tmp_path):
    """Fails when a job that restarts over and over fills the disk, or loses how it began."""
    deleted = [record(tmp_path, size=3000)[1] for _ in range(6)]
    assert deleted == [0, 0, 0, 0, 1, 1]
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["rank00000", "rank00000.4", "rank00000.5", "rank00000.6"]


def test_the_number_of_parts_is_bounded(tmp_path):
    """Fails when many short parts make the run slow to read."""
    for _ in range(MOST_PARTS + 5):
        record(tmp_path, size=1)
    assert len(list(tmp_path.iterdir())) == MOST_PARTS
    assert (tmp_path / "rank00000").exists()


def test_a_linked_place_is_not_written_through(tmp_path):
    """Fails when records go where a symbolic link in the run directory leads."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = tmp_path / "run"
    run.mkdir()
    (run / "rank00000").symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a symbolic link"):
        new_part(run, 0, 10_000)
    (tmp_path / "linked").symlink_to(elsewhere)
    with pytest.raises(OSError, match="is a symbolic link"):
        new_part(tmp_path / "linked", 0, 10_000)
    assert not list(elsewhere.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_not_written(tmp_path):
    """Fails when the owner of a directory can steer where we write."""
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, 65534, -1)
    with pytest.raises(PermissionError, match="belongs to user 65534"):
        new_part(run, 0, 10_000)
    assert not list(run.iterdir())


RECORDS = """
import sys
from pathlib import Path
from meshscope.probe.recording.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]), 0)
print("open", flush=True)
sys.stdin.readline()
recorder.close()
print("closed", flush=True)
sys.stdin.readline()
"""
LAUNCHES = """
import subprocess, sys
sys.exit(subprocess.run([sys.executable, "-c", *sys.argv[1:]]).returncode)
"""


@pytest.fixture
def job(tmp_path):
    """Return a job with a launcher of its own, whose rank 0 is recorded."""
    command = [sys.executable, "-c", LAUNCHES, RECORDS, str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as launcher:
        assert launcher.stdout.readline() == b"open\n"
        yield launcher
        launcher.stdin.close()


def changed(part, **facts):
    """State other facts in the manifest of a part."""
    path = part / "manifest.json"
    write_json(path, {**read_json(path), **facts})


def test_a_rank_that_another_job_records_is_left_to_it(job, tmp_path):
    """Two jobs of one name would be read as one job that was restarted."""
    run = tmp_path / "run"
    with pytest.raises(OSError, match="of another job records this rank; give each job a run"):
        new_part(run, 0, 10_000)
    assert new_part(run, 1, 10_000)[0].name == "rank00001"
    job.stdin.write(b"\n")
    job.stdin.flush()
    assert job.stdout.readline() == b"closed\n"
    assert new_part(run, 0, 10_000)[0].name == "rank00000.2"


def test_what_the_first_of_two_jobs_said_of_the_run_stays(job, tmp_path):
    """Fails when a second job of one name clears the layout and the model that the first has described."""
    run = tmp_path / "run"
    stated = {"command": ["first.py"], "microbatches": 3}
    write_run_manifest(run, stated)
    changed(run / "rank00000", annotations={JOB_KEY: stated})
    second = RunFacts()
    second.add({"microbatches": 5})
    second.open(run, Identity(rank=0, world_size=2))
    second.write_due()
    kept = read_json(run / "manifest.json")
    assert {name: kept[name] for name in stated} == stated


def test_a_killed_process_keeps_no_rank(job, tmp_path):
    """A job that its scheduler starts again would not be recorded."""
    part = tmp_path / "run" / "rank00000"
    pid = other_process(part)
    os.kill(pid, 9)
    assert job.wait() != 0
    assert other_process(part) is None
    assert new_part(tmp_path / "run", 0, 10_000)[0].name == "rank00000.2"


def test_a_restart_by_the_same_launcher_is_no_other_job(tmp_path):
    """An elastic restart beside a rank that is slow to end would not be recorded."""
    run = tmp_path / "run"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, "-c", RECORDS, str(run)]
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as again:
        assert {first.stdout.readline(), again.stdout.readline()} == {b"open\n"}
        first.stdin.close()
        again.stdin.close()
    assert {path.name for path in run.iterdir()} >= {"rank00000", "rank00000.2"}


def test_a_restart_that_its_launcher_names_is_no_other_job(job, tmp_path, monkeypatch):
    """A restart would not be recorded where a shell between launcher and rank has left the old one behind."""
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert other_process(tmp_path / "run" / "rank00000") is None


def test_a_launcher_that_bears_a_rank_keeps_none(job, tmp_path):
    """The ranks of a launcher that was given the rank of its node would not be recorded."""
    part = tmp_path / "run" / "rank00000"
    changed(part, pid=os.getppid())
    assert other_process(part) is None


@pytest.mark.parametrize(
    "facts",
    [
        {"host": "elsewhere"},
        {"boot_id": "another"},
        {"pid": None},
        {"pid": 2**40},
        {"pid": "1"},
        {"started_unix_ns": 1},
    ],
)
def test_what_is_no_living_process_of_this_boot_keeps_no_rank(job, tmp_path, facts):
    """A requeued job would not be recorded where a number of a process was given again."""
    part = tmp_path / "run" / "rank00000"
    assert other_process(part) is not None
    changed(part, **facts)
    assert other_process(part) is None


def test_a_damaged_manifest_keeps_no_rank(tmp_path):
    """A torn file would keep a job from being recorded."""
    (tmp_path / "manifest.json").write_bytes(b"{")
    assert other_process(tmp_path) is None
