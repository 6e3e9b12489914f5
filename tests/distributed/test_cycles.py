"""Recordings and deep traces that are begun and called off over and over, in a job of two ranks."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.distributed import cycled_job
from tests.distributed.forked_ranks import run_forked

from meshscope.probe.control.finding import ranks_of_run
from meshscope.probe.control.orders import order
from meshscope.probe.launching.launch import BOOTSTRAP
from meshscope.probe.schema.rundir import create_run

pytestmark = pytest.mark.distributed

JOB = Path(cycled_job.__file__)
MOST_AFTER = 1_000_000
PATIENCE_S = 120
CYCLES, ARMED = 3, 4
"""Recordings, and pairs of deep traces that are called off in each."""


class Job:
    """Two ranks that wait to be attached."""

    def __init__(self, folder, project, port):
        """Start them."""
        self.folder, self.run = folder, create_run(folder, "run-1", {"world_size": 2})
        self.sockets = tempfile.mkdtemp(prefix="ms-")
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(BOOTSTRAP), str(project / "src"), str(project)]),
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": "2",
            "XDG_RUNTIME_DIR": self.sockets,
            "MESHSCOPE_RUN_DIR": str(self.run),
            "MESHSCOPE_DORMANT": "1",
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

    def here(self):
        """Return the sockets of the ranks once both train."""
        until(lambda: all((self.folder / f"trains.{rank}").exists() for rank in range(2)))
        return ranks_of_run(self.run, self.environment).here

    def end(self):
        """Kill what is left of it."""
        for rank in self.ranks:
            rank.kill()
            rank.communicate()
        shutil.rmtree(self.sockets, ignore_errors=True)


def until(condition):
    """Wait for something."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def ask(here, verb, fields, *wanted):
    """Order something of both ranks; return their answers."""
    outcome = order(here, verb, fields, wanted, PATIENCE_S)
    assert len(outcome.done) == 2, (verb, outcome)
    return outcome.done.values()


def step(here):
    """Return the step that both ranks have reached."""
    return min(said["step"] for said in ask(here, "status", {}))


def arm(here, ticket, after):
    """Have both ranks promise a trace that begins so many steps later; return its first step.

    On a busy machine the step may have begun before both have agreed: then it is asked for later.
    """
    while True:
        first_step = max(said["step"] for said in ask(here, "status", {})) + after
        trace = {"ticket": ticket, "first_step": first_step, "steps": 1000, "how": "in-process"}
        for verb, fields in (("prepare", trace), ("commit", {"ticket": ticket})):
            outcome = order(here, verb, fields, (), PATIENCE_S)
            if len(outcome.done) < 2:
                break
        else:
            return first_step
        assert all("has begun already" in why for why in outcome.failed.values()), outcome
        assert after < MOST_AFTER, outcome
        ask(here, "disarm", {})
        after = 4 * after + 20


def arm_and_disarm(here, number):
    """Call a trace off while it is recorded, and another one, right after, before its time."""
    until(lambda: step(here) >= 0)
    first = arm(here, f"a{number}", 20)
    until(lambda: step(here) > first)
    ask(here, "disarm", {"ticket": f"a{number}"})
    arm(here, f"b{number}", 100_000)
    ask(here, "disarm", {})


def taken(here, run):
    """Return threads and descriptors of the ranks, parts of the run, and resident bytes."""
    status = [Path(f"/proc/{rank.pid}/status").read_text() for rank in here]
    resident = [int(text.split("VmRSS:")[1].split()[0]) << 10 for text in status]
    threads = [int(text.split("Threads:")[1].split()[0]) for text in status]
    descriptors = [len(os.listdir(f"/proc/{rank.pid}/fd")) for rank in here]
    return (*threads, *descriptors), len(list(run.glob("rank*"))), max(resident)


@pytest.fixture
def job(tmp_path, project_dir, free_port):
    """Start a job and end it with the test."""
    job = Job(tmp_path, project_dir, free_port())
    yield job
    job.end()


@pytest.mark.sampled(keep=())
def test_a_job_survives_many_recordings_and_traces_that_are_called_off(job):
    """Fails when memory, threads or descriptors grow with each order, or a loss changes by a bit."""
    here = job.here()
    before = None
    for cycle in range(CYCLES):
        ask(here, "attach", {}, "recording")
        for number in range(ARMED):
            arm_and_disarm(here, cycle * ARMED + number)
        ask(here, "detach", {"remove": False}, "off")
        # What is loaded once counts as the beginning.
        before = before or taken(here, job.run)
    until(lambda: all(map(int.__le__, taken(here, job.run)[0], before[0])))
    _, parts, resident = taken(here, job.run)
    assert parts == 2 * CYCLES
    assert resident - before[2] < 40 << 20
    (job.folder / "end").touch()
    watched = [rank.communicate(timeout=PATIENCE_S)[0] for rank in job.ranks]
    steps = int(watched[0].split()[0])
    alone = run_forked(job.folder, cycled_job.main, (job.folder, steps), ranks=2)
    for line, printed in zip(watched, alone, strict=True):
        assert line in printed
