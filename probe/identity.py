"""Who this process is in the job, and where its run directory is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from .clock import unix_ns
from .schema.errors import ConfigError

RUN_DIR_VARIABLE = "MESHSCOPE_RUN_DIR"
DISABLE_VARIABLE = "MESHSCOPE_DISABLE"
OWNER_VARIABLE = "MESHSCOPE_OWNER_PID"
DEFAULT_ROOT = Path("meshscope_runs")
"""Where runs go that nobody gave a place."""


class Identity(NamedTuple):
    """The place of a process in its job."""

    rank: int
    world_size: int


def identify(environment: Mapping[str, str]) -> Identity | None:
    """Return rank and world size, or None when they cannot be known yet.

    An initialised ``torch.distributed`` decides; before that the launcher's
    variables do. Without either the process may still become a rank.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Identity(distributed.get_rank(), distributed.get_world_size())
    try:
        return Identity(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    except (KeyError, ValueError):
        return None


def default_run_path(environment: Mapping[str, str], world_size: int) -> Path:
    """Return a run directory on which all ranks agree without talking.

    A job that its launcher restarts is a new run beside the old one: each rank
    of a run records once.

    Raises:
        ConfigError: The ranks are on several hosts and share no job name.
    """
    path = _run_path(environment, world_size)
    restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return path if restarts == "0" else path.with_name(f"{path.name}-restart{restarts}")


def _run_path(environment: Mapping[str, str], world_size: int) -> Path:
    given = environment.get(RUN_DIR_VARIABLE)
    if given:
        return Path(given)
    if world_size == 1:
        return DEFAULT_ROOT / f"run-{unix_ns() // 1_000_000_000}-{os.getpid()}"
    job = environment.get("TORCHELASTIC_RUN_ID", "none")
    if job not in ("", "none"):
        return DEFAULT_ROOT / f"run-{_file_name(job)}"
    if int(environment.get("LOCAL_WORLD_SIZE", world_size)) < world_size:
        raise ConfigError(
            "the ranks are on several hosts and share no name for the run",
            where=RUN_DIR_VARIABLE,
            remedy="Set it to one directory, or start with `meshscope run`",
        )
    return DEFAULT_ROOT / f"run-{os.getppid()}-{_start_ticks(os.getppid())}"


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in text)[:96]


def _start_ticks(pid: int) -> int:
    """Return when a process started, which with its id is unique for one boot."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
