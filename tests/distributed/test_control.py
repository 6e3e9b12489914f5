"""A running job of two ranks: attached and detached by command, hung, killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshscope.analyze import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.cli import app
from meshscope.probe.control.finding import ranks_of_run
from meshscope.probe.control.orders import order
from meshscope.probe.launching.launch import BOOTSTRAP
from meshscope.probe.reader.run import read_run
from meshscope.probe.schema.rundir import create_run

pytestmark = pytest.mark.distributed

JOB = Path(__file__).with_name("controlled_job.py")
PATIENCE_S = 120


class Job:
    """Two ranks under the probe, dormant."""

    def __init__(self, folder, project, port):
        """Start them."""
        self.folder = folder
        self.run = create_run(folder, "run-1", {"world_size": 2})
        self.sockets = tempfile.mkdtemp(prefix="ms-")
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), str(project / "src"), str(project)]),
            "XDG_RUNTIME_DIR": self.sockets,
            "MESHSCOPE_RUN_DIR": str(self.run),
            "MESHSCOPE_DORMANT": "1",
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "2",
        }
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", str(JOB), str(folder)],
                env={**self.environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]

    def wait_for(self, *names):
        """Wait until the ranks have made files."""
        deadline = time.monotonic() + PATIENCE_S
        while not all((self.folder / name).exists() for name in names):
            assert time.monotonic() < deadline, names
            assert all(rank.poll() is None for rank in self.ranks), "a rank has ended"
            time.sleep(0.01)

    def attach(self, *options):
        """Run ``meshscope attach`` on the run; return its exit code and output."""
        ran = CliRunner().invoke(
            app, ["attach", "--run", str(self.run), *options], env=self.environment
        )
        return ran.exit_code, ran.output

    def end(self):
        """Kill what is left of it."""
        for rank in self.ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
        shutil.rmtree(self.sockets, ignore_errors=True)


@pytest.fixture
def job(tmp_path, project_dir, free_port):
    """Start a job and end it with the test."""
    job = Job(tmp_path, project_dir, free_port())
    yield job
    job.end()


def test_a_running_job_is_attached_detached_and_diagnosed(job):
    """Fails when training notices, something stays behind, or a hang is not explained."""
    job.wait_for("ready.0", "ready.1")
    assert job.attach("--status") == (0, _lines(job, "off"))
    assert job.attach() == (0, _lines(job, "recording"))
    (job.folder / "attached").touch()
    job.wait_for("trained.0", "trained.1")
    code, output = job.attach("--detach")
    assert (code, output.count("off")) == (0, 2), output
    (job.folder / "detached").touch()
    job.wait_for("done.0", "done.1")
    for rank in job.ranks:
        result = json.loads(rank.stdout.readline())
        assert result["watched"] == result["alone"]
        assert result["changed"] == []

    assert job.attach()[0] == 0
    (job.folder / "again").touch()
    job.wait_for("hanging")
    _hang_is_seen_and_survived(job)
    for rank in job.ranks:
        rank.send_signal(signal.SIGKILL)
        rank.wait()
    _both_attempts_are_read(job.run)


def _lines(job, state):
    return "".join(
        f"rank {number}  pid {rank.pid}  {state}\n" for number, rank in enumerate(job.ranks)
    )


def _hang_is_seen_and_survived(job):
    """Check that a rank whose main thread is stuck still answers."""
    here = ranks_of_run(job.run, job.environment).here
    deadline = time.monotonic() + PATIENCE_S
    while True:
        status = order(here, "status", {}, (), 10).done
        if {found["step"] for found in status.values()} == {10}:
            break
        assert time.monotonic() < deadline, status
        time.sleep(0.05)
    assert order(here, "flush", {}, (), 10).failed == {}


def _both_attempts_are_read(run):
    """Check the capture of a job that was attached twice and then killed."""
    trace = load_trace(run)
    steps = trace.frame("step")
    per_rank = steps.groupby("rank")["step"].agg(["min", "max", "nunique"])
    assert per_rank.nunique().eq(1).all(), "the ranks disagree about their steps"
    assert per_rank["nunique"].iloc[0] == 18, "two stretches of 10, the first of each not whole"
    rows = read_run(run).tables["collective"].to_pandas()
    matched = rows.groupby(["group_id", "seq"], observed=True)["step"].nunique()
    assert (matched == 1).all()
    hangs = [finding for finding in diagnose(trace).findings if finding.kind == "hang"]
    assert [hang.where["ranks"] for hang in hangs] == [[1]]
    assert "rank 1" in str(hangs[0].claim).lower()
