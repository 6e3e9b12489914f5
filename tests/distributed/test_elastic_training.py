"""Ranks and whole nodes that are killed, under torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.distributed.trainer_job import mesh_losses

from meshscope.reference_trainer.config.presets import load_config, preset_text

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

STEPS = 12
# A pace, so that there is a middle of the run to be killed in.
SETTINGS = (
    "layout.pp=1",
    "layout.dp=auto",
    f"train.steps={STEPS}",
    "train.optimizer=adamw",
    "train.learning_rate=0.01",
    "pace.layer_ms=40",
    "data_parallel.zero=1",
    "checkpoint.every=2",
)
PATIENCE_S = 150.0


class Agent:
    """One torchrun: a node of the job."""

    def __init__(self, folder: Path, *arguments: str, ranks: int) -> None:
        """Start it."""
        settings = [*SETTINGS, f"checkpoint.dir={folder / 'saved'}"]
        overrides = [word for setting in settings for word in ("--set", setting)]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--max-restarts", "3"),
                *("--nproc-per-node", str(ranks), *arguments, "-m", "meshscope.reference_trainer"),
                *("--preset", "tiny", "--out", str(folder / "out"), *overrides),
            ],
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def ranks(self) -> list[int]:
        """Return the process ids of its ranks."""
        pid = self._process.pid
        threads = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(word) for file in threads for word in file.read_text().split()]

    def kill_rank(self) -> None:
        """Kill one of its ranks."""
        os.kill(self.ranks()[-1], signal.SIGKILL)

    def kill(self) -> None:
        """Kill it and all its ranks."""
        ranks = self.ranks()
        self._process.kill()
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)

    def finish(self) -> tuple[int, str]:
        """Wait for it, and return its exit code and what it and its ranks printed."""
        output, _ = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, output

    def stop(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self.kill()
        self._process.communicate()


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Return what starts an agent, which ends with the test."""
    agents: list[Agent] = []

    def start(*arguments: str, ranks: int) -> Agent:
        agents.append(Agent(tmp_path, *arguments, ranks=ranks))
        return agents[-1]

    yield start
    for agent in agents:
        agent.stop()


def wait_for_checkpoint(folder: Path) -> None:
    """Return when the first checkpoint is there."""
    deadline = time.monotonic() + PATIENCE_S
    while not (folder / "saved" / "latest").exists():
        assert time.monotonic() < deadline, "no checkpoint was saved"
        time.sleep(0.02)


def uninterrupted(folder: Path) -> list[float]:
    """Return the losses of the same run on two ranks that nobody kills."""
    settings = [*SETTINGS, "pace.layer_ms=0", "checkpoint.every=0"]
    config = load_config(preset_text("tiny"), overrides=settings, world_size=2)
    (folder / "plain").mkdir()
    return mesh_losses(config, folder / "plain")


def resumed(folder: Path) -> tuple[int, list[float]]:
    """Return the first step of the last attempt, and its losses.

    On a busy machine an agent may miss the signs of life of another, and start over once more.
    """
    attempts = (folder / "out").glob("attempt*/losses.json")
    last = max(attempts, key=lambda file: int(file.parent.name.removeprefix("attempt")))
    written = json.loads(last.read_text())
    return written["first_step"], written["loss"]


def test_a_job_goes_on_after_a_rank_was_killed(
    start_agent: Callable[..., Agent], tmp_path: Path
) -> None:
    """Fails if a restart repeats the training, loses a step, or learns something else."""
    agent = start_agent("--standalone", ranks=2)
    wait_for_checkpoint(tmp_path)
    agent.kill_rank()
    code, output = agent.finish()
    assert code == 0, output[-4000:]
    first, losses = resumed(tmp_path)
    assert 2 <= first < STEPS
    assert first % 2 == 0
    assert f"resumed from {tmp_path}/saved/step-{first:08d} at step {first}" in output
    assert losses == uninterrupted(tmp_path)[first:]
    # What the killed attempt wrote is still there.
    truth = (tmp_path / "out" / "ground_truth.rank00000.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in truth if '"record": "step"' in line]
    assert steps == list(range(len(steps)))
    assert len(steps) >= first


@pytest.mark.sampled(keep=())
def test_a_job_goes_on_with_fewer_replicas(
    start_agent: Callable[..., Agent], free_port: Callable[[], int], tmp_path: Path
) -> None:
    """Fails if a job that lost a node for good waits for it, or trains on another batch."""
    port = free_port()
    meeting = (
        *("--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-id", "elastic"),
        *("--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf"),
    )
    patience = "last_call_timeout=4,keep_alive_interval=1,keep_alive_max_attempt=3"
    # Both start at once: one that comes late finds the other at work. They meet at the one that stays.
    staying = start_agent(*meeting, f"{patience},is_host=1", ranks=1)
    leaving = start_agent(*meeting, f"{patience},is_host=0", ranks=1)
    wait_for_checkpoint(tmp_path)
    leaving.kill()
    code, output = staying.finish()
    assert code == 0, output[-4000:]
    first, losses = resumed(tmp_path)
    assert 2 <= first < STEPS
    assert "layout.dp is 1, and was 2" in output
    assert losses == pytest.approx(uninterrupted(tmp_path)[first:], abs=1e-5)
