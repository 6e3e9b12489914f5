"""A training script as the ranks of a job under the probe, ended when its time is over."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshscope.probe.schema.message import message

_OF_LAUNCHERS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_SHOWN_OUTPUT = 4000
"""Characters: a traceback, and a page of a log before it."""
_END_S = 10.0
"""After SIGTERM: ranks write their last records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """How a job is launched."""

    runs_dir: Path
    """Folder of the recorded runs."""
    ranks: int
    timeout_s: float
    margin: float | None = None
    """Accepted loss of ``assert_no_slower_than``; None for that of the baseline's noise."""


def launch(
    command: Sequence[str | Path], options: LaunchOptions, name: str, cwd: Path | None = None
) -> Path:
    """Run a training script as the ranks of a job under the probe, and return its run directory.

    Args:
        command: Script and arguments, or ``-m`` and a module; what torchrun starts as each rank.
        options: How many ranks, how long, and where the run is kept.
        name: What the run is called; made unique.
        cwd: Where the job runs; by default here.

    Raises:
        AssertionError: The job fails, does not end in time, or records nothing.
        ConfigError: There is no command.
    """
    __tracebackhide__ = True
    from meshscope.probe.schema.errors import ConfigError

    if not command:
        raise ConfigError(
            message("refused.no_script"), where="mesh_run", remedy=message("advice.mesh_run")
        )
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.")[-60:] or "run"
    run_id = f"{slug}-{secrets.token_hex(4)}"
    options.runs_dir.mkdir(parents=True, exist_ok=True)
    log = options.runs_dir / f"{run_id}.log"
    words = _words(command, options, run_id)
    code = _wait_for(words, log, options.timeout_s, cwd)
    output = log.read_text(encoding="utf-8", errors="replace")[-_SHOWN_OUTPUT:]
    if code is None:
        raise AssertionError(f"the job still ran after {options.timeout_s:g} s:\n{output}")
    if code:
        raise AssertionError(f"the job ended with exit code {code}:\n{output}")
    path = options.runs_dir / run_id
    if not path.is_dir():
        raise AssertionError(f"nothing was recorded:\n{output}")
    return path


def _words(command: Sequence[str | Path], options: LaunchOptions, run_id: str) -> list[str]:
    """Return the command line: torchrun under the probe; it finds a free port itself."""
    python = [sys.executable, "-P", "-m", "meshscope", "run", "--no-agent"]
    place = ["--runs", str(options.runs_dir), "--run-id", run_id, "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*python, *place, *torchrun, f"--nproc-per-node={options.ranks}", *map(str, command)]


def _wait_for(words: list[str], log: Path, timeout_s: float, cwd: Path | None) -> int | None:
    """Return the exit code; None where the time was over, and the job ended by us."""
    environment = {key: text for key, text in os.environ.items() if key not in _OF_LAUNCHERS}
    environment.setdefault("OMP_NUM_THREADS", "1")
    with log.open("wb") as file:
        job = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=cwd,
            start_new_session=True,
        )
        try:
            return job.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(job)


def _end(job: subprocess.Popen[bytes]) -> None:
    """End what is left of a job: torchrun ends its ranks when it is asked to, a rank that hangs is killed."""
    if job.poll() is not None:
        return
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        job.wait(_END_S)
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()
