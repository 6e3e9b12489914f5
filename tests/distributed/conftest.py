"""How tests start the ranks of a small job."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import ports
from tests.distributed.forked_ranks import RECORD_ALL

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def run_ranks() -> Callable[..., list[str]]:
    """Return a function that runs a script of this folder as the ranks of a job.

    It returns what each rank printed and fails the test when a rank fails or
    the job does not end in time, in which case all ranks are killed.
    """

    def run(
        script: str,
        *arguments: object,
        world_size: int = 2,
        timeout_s: float = 180,
        environment: dict[str, str] | None = None,
    ) -> list[str]:
        base = {
            **os.environ,
            **RECORD_ALL,
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(ports.free_port()),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            **(environment or {}),
        }
        command = [sys.executable, "-W", "ignore", str(HERE / script), *map(str, arguments)]
        ranks = [
            subprocess.Popen(
                command,
                env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world_size)
        ]
        return _collect(ranks, timeout_s)

    return run


@pytest.fixture(scope="session")
def free_port() -> Callable[[], int]:
    """Return a function that returns a port that is free now."""
    return ports.free_port


def _collect(ranks: list[subprocess.Popen[str]], timeout_s: float) -> list[str]:
    outputs = []
    try:
        for rank, process in enumerate(ranks):
            try:
                output, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                pytest.fail(f"rank {rank} still ran after {timeout_s} s: the job hangs")
            outputs.append(output)
            assert process.returncode == 0, f"rank {rank} failed:\n{output[-4000:]}"
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    return outputs
