"""Who this process is in the job, and where its run directory is."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from .clock import unix_ns
from .schema.errors import ConfigError

RUN_DIR_VARIABLE = "MESHSCOPE_RUN_DIR"
DISABLE_VARIABLE = "MESHSCOPE_DISABLE"
OWNER_VARIABLE = "MESHSCOPE_OWNER_PID"
"""Set by a process that is recorded as a rank; by it the processes that it starts, which
inherit the rank's variables, know that they are none."""
DORMANT_VARIABLE = "MESHSCOPE_DORMANT"
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


def launch_name(environment: Mapping[str, str]) -> str:
    """Return what the launcher tells all ranks of one start of the job alike."""
    names = ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return " ".join(environment.get(name, "-") for name in names)


def owner_of(environment: Mapping[str, str]) -> int | None:
    """Return the process that records this one's rank; None if it is this one, or none does."""
    pid = environment.get(OWNER_VARIABLE, "")
    return int(pid) if pid.isdecimal() and int(pid) != os.getpid() else None


_marked_pid = -1


def mark_owner(environment: MutableMapping[str, str]) -> None:
    """Mark this process as the one that is recorded, unless it is marked already."""
    global _marked_pid
    if OWNER_VARIABLE not in environment:
        _marked_pid = os.getpid()
        environment[OWNER_VARIABLE] = str(_marked_pid)


def unmark_owner(environment: MutableMapping[str, str]) -> None:
    """Take away the mark that ``mark_owner`` has set in this process; no other."""
    global _marked_pid
    if _marked_pid == os.getpid() and environment.get(OWNER_VARIABLE) == str(_marked_pid):
        del environment[OWNER_VARIABLE]
    _marked_pid = -1


def default_run_path(environment: Mapping[str, str], world_size: int) -> Path:
    """Return a run directory on which all ranks agree without talking.

    A job that its launcher restarts finds the same one.

    Raises:
        ConfigError: The ranks are on several hosts and share no job name.
    """
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
