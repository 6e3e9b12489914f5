"""Deep traces of a running job: the same steps on all ranks, whoever asks for them."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.texts import texts

from meshscope.analyze import load_trace
from meshscope.analyze.load.recorded import worded
from meshscope.analyze.wording.limits import limit_texts
from meshscope.probe.control.client import ask
from meshscope.probe.control.finding import ranks_of_run
from meshscope.probe.deep.arming import agent_socket
from meshscope.probe.deep.sealing import SealedTrace, sealed_traces
from meshscope.probe.reader.run import read_run

# Kineto asks one agent of a host, and the clocks are read one after the other.
pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.alone]

JOB = Path(__file__).with_name("deep_job.py")
PATIENCE_S = 90
MOST_OFF_NS = 1_000_000
"""Two clocks are read one after the other, on a machine that may be busy."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def wait_for(condition):
    """Wait until a condition holds; return its value."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)
    return found


class Job:
    """A job of two ranks under ``meshscope run``, with its agent."""

    def __init__(self, folder):
        """Start it and wait for a few steps of both ranks."""
        self.path = folder / "runs" / "job"
        self.stop_file = folder / "stop"
        run = ("run", "--runs", folder / "runs", "--run-id", "job", "--", sys.executable)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "meshscope", *run, *TORCHRUN, JOB, self.stop_file],
            # Without a bound of its cost the probe notes every collective.
            env={**os.environ, "OMP_NUM_THREADS": "1", "MESHSCOPE_COST_BUDGET_PPM": "0"},
            stderr=subprocess.DEVNULL,
        )
        wait_for(self._is_training)

    def _is_training(self):
        assert self.process.poll() is None
        if not (self.path / "manifest.json").exists():
            return False
        here = ranks_of_run(self.path, os.environ).here
        steps = [ask(endpoint.path, "status", {}).result.get("step", -1) for endpoint in here]
        return len(steps) == 2 and min(steps) > 5

    def arm(self, *options):
        """Run ``meshscope arm`` and return what it says."""
        command = [sys.executable, "-m", "meshscope", "arm", "--run", self.path, "--format", "json"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def agent(self):
        """Return what the agent says of itself."""
        found = agent_socket(self.path, os.environ)
        return {} if found is None else ask(found, "status", {}).result


class Recorded(NamedTuple):
    """What three requests to one job gave."""

    path: Path
    armed: dict[str, dict]
    """What ``meshscope arm`` said, by who recorded."""
    signalled: list[SealedTrace]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Ask a job for traces in each way, then let it end."""
    job = Job(tmp_path_factory.mktemp("deep"))
    armed = {"in-process": job.arm("--steps", "2", "--in-process")}
    # Each client of Kineto asks every five seconds.
    ranks = {endpoint.pid for endpoint in ranks_of_run(job.path, os.environ).here}
    wait_for(lambda: ranks <= set(job.agent().get("kineto_clients", ())))
    armed["daemon"] = job.arm("--steps", "2")
    before = {trace.name.ticket for trace in sealed_traces(job.path)}
    os.kill(job.agent()["pid"], signal.SIGUSR2)

    def new_traces():
        found = [trace for trace in sealed_traces(job.path) if trace.name.ticket not in before]
        return found if len(found) == 2 else None

    signalled = wait_for(new_traces)
    job.stop_file.touch()
    assert job.process.wait(PATIENCE_S) == 0
    return Recorded(job.path, armed, signalled)


@pytest.mark.parametrize("how", ["in-process", "daemon"])
def test_all_ranks_record_the_steps_that_were_agreed(recorded, how):
    """Fails if a rank records other steps than it promised, or its trace is lost."""
    said = recorded.armed[how]
    assert said["how"] == how
    wanted = [said["first_step"], said["last_step"]]
    steps = {rank: trace["steps"] for rank, trace in said["traces"].items()}
    assert steps == {"0": wanted, "1": wanted}
    assert all(trace["operators"] > 20 for trace in said["traces"].values())
    assert said["failed"] == {}


def test_a_signal_to_the_agent_records(recorded):
    """Fails if nobody can ask for a trace where there is a shell and nothing else."""
    first, second = recorded.signalled
    assert (first.rank, second.rank) == (0, 1)
    assert first.name == second.name


def test_the_run_is_whole_afterwards(recorded):
    """Fails if a deep trace costs records, or leaves a rank of the job in trouble."""
    capture = read_run(recorded.path)
    assert capture.ranks == (0, 1)
    steps = capture.tables["step"].group_by("rank").aggregate([("step", "count")]).to_pylist()
    assert len({row["step_count"] for row in steps}) == 1
    problems = [
        limit
        for limit in limit_texts(worded(capture.limits))
        if "error" in limit or "lost" in limit
    ]
    assert problems == []


def test_the_run_holds_their_operators_on_its_own_clock(recorded):
    """Fails if what was traced is not part of the run, or lies beside what the probe saw."""
    trace = load_trace(recorded.path)
    tickets = [said["ticket"] for said in recorded.armed.values()]
    wanted = {step for said in recorded.armed.values() for step in _steps(said)}
    wanted |= {step for one in recorded.signalled for step in _steps(one.name._asdict())}
    op, names = trace.frame("op"), trace.frame("name")
    for rank in (0, 1):
        assert set(op[op["rank"] == rank]["step"]) == wanted
    assert any("operators are known" in one and tickets[0] in one for one in texts(trace.limits))
    assert not any("left out:" in one for one in texts(trace.limits))
    named = op.merge(names, on=["rank", "name_id"])
    calls = named[named["name"] == "c10d::broadcast_"]
    assert len(calls) == 2 * len(wanted)
    seen = trace.frame("collective").query("kind == 'broadcast'")[["rank", "step", "issue_ns"]]
    # The probe notes the call while the operator is open.
    both = calls.merge(seen, on=["rank", "step"])
    assert len(both) == len(calls)
    late = both["issue_ns"] - both["start_ns"]
    assert late.between(-MOST_OFF_NS, both["dur_ns"] + MOST_OFF_NS).all()


def test_the_run_says_for_how_long_a_trace_held_ranks_up(recorded):
    """Only who had asked saw that a trace stood in the way of training for a minute."""
    ticket = recorded.armed["in-process"]["ticket"]
    stalls = [limit for limit in texts(load_trace(recorded.path).limits) if "held ranks" in limit]
    assert [stall.split(":")[0] for stall in stalls] == [f"Deep trace {ticket}"]


def _steps(said):
    return range(said["first_step"], said["last_step"] + 1)


def test_a_rank_that_was_detached_and_attached_is_armed(tmp_path):
    """Fails when steps that the run counts on are compared with those of the rank's new part."""
    job = Job(tmp_path)
    attach = [sys.executable, "-m", "meshscope", "attach", "--run", job.path]
    for options in (["--detach"], []):
        subprocess.run([*attach, *options], check=True, capture_output=True)
    wait_for(job._is_training)
    armed = job.arm("--steps", "2", "--in-process")
    job.stop_file.touch()
    assert job.process.wait(PATIENCE_S) == 0
    assert sorted(armed["traces"]) == ["0", "1"]
    assert all(len(trace["steps"]) == 2 for trace in armed["traces"].values())
