"""Who this process is in the job: its rank, its world, its run directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..clock import unix_ns
from ..schema.errors import ConfigError
from ..schema.message import message

RUN_DIR_VARIABLE = "MESHSCOPE_RUN_DIR"
DISABLE_VARIABLE = "MESHSCOPE_DISABLE"
OWNER_VARIABLE = "MESHSCOPE_OWNER_PID"
"""Set while a process is recorded as a rank; by it the processes that it starts, which
inherit the rank's variables, know that they are none (``process_mark``)."""
ATTACHED_VARIABLE = "MESHSCOPE_ATTACHED_PID"
"""Set for good by the process to which ``meshscope run`` has attached itself; by it those that
it starts are left alone also when it is detached. Their own ``attach()`` is obeyed then."""
DORMANT_VARIABLE = "MESHSCOPE_DORMANT"
COMMAND_VARIABLE = "MESHSCOPE_COMMAND"
"""What ``meshscope run`` was given to start, as a list in JSON."""
DEFAULT_ROOT = Path("meshscope_runs")
"""Where runs go that nobody gave a place."""


class Identity(NamedTuple):
    """The place of a process in its job."""

    rank: int
    world_size: int


_OF_A_SCHEDULER = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Place and number of what was started together. The tasks of the step, not of the allocation:
a batch script that starts one process has many of the latter."""
_LOCAL_RANKS = (
    ("LOCAL_RANK", "RANK"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_RANK"),
    ("MPI_LOCALRANKID", "PMI_RANK"),
    ("PALS_LOCAL_RANKID", "PALS_RANKID"),
    ("SLURM_LOCALID", "SLURM_PROCID"),
)
"""A place among the processes of the host, and the one in the job that was given with it."""

_alone: Identity | None = None


def as_single_process(environment: Mapping[str, str]) -> Identity:
    """Return who a process is that trains though nobody told it; ``identify`` says so from now on.

    Rank 0 of 1, unless its scheduler has started several of them.
    """
    global _alone
    if (known := identify(environment)) is not None:
        return known
    _alone = Identity(0, 1)
    for rank, size in _OF_A_SCHEDULER:
        found = _number(environment.get(rank)), _number(environment.get(size))
        if found[0] is not None and found[1] is not None and found[0] < found[1]:
            _alone = Identity(found[0], found[1])
            break
    return _alone


def is_single_process() -> bool:
    """Tell whether ``as_single_process`` had to find out who this process is."""
    return _alone is not None


def forget_single_process() -> None:
    """Let ``identify`` find out anew who this process is: it may join a group yet."""
    global _alone
    _alone = None


def local_rank_of(rank: int, environment: Mapping[str, str]) -> int | None:
    """Return the place of a rank among those of its host, None if nobody has said it.

    Processes that a rank of a scheduler has started inherit its variables: they hold for the
    rank that they name.
    """
    for name, whose in _LOCAL_RANKS:
        local, of_rank = _number(environment.get(name)), environment.get(whose)
        if local is not None and of_rank in (None, str(rank)):
            return local
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else None


def identify(environment: Mapping[str, str]) -> Identity | None:
    """Return rank and world size, or None when they cannot be known yet.

    An initialised ``torch.distributed`` decides; before that the launcher's variables
    do, or that it trains alone. Without any the process may still become a rank.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Identity(distributed.get_rank(), distributed.get_world_size())
    try:
        return Identity(int(environment["RANK"]), int(environment["WORLD_SIZE"]))
    except (KeyError, ValueError):
        return _alone


def launch_name(environment: Mapping[str, str]) -> str:
    """Return what the launcher tells all ranks of one start of the job alike."""
    names = ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return " ".join(environment.get(name, "-") for name in names)


def process_mark(environment: Mapping[str, str]) -> str:
    """Return by what the processes that this one starts know it: its pid, and which rank it is.

    The latter only without ``LOCAL_RANK``. Such a process may be a launcher that was given
    the rank of its node (Kubeflow does so); what it starts with other variables are ranks.
    A process with ``LOCAL_RANK`` is a rank, and nothing that it starts is one.
    """
    rank = "" if "LOCAL_RANK" in environment else f" {_rank_of(environment)}"
    return f"{os.getpid()}{rank}"


def _rank_of(environment: Mapping[str, str]) -> str:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
    return "/".join(environment.get(name, "") for name in names)


def owner_of(environment: Mapping[str, str]) -> int | None:
    """Return the process that records this one's rank; None if it is this one, or none does."""
    pid, _, rank = environment.get(OWNER_VARIABLE, "").partition(" ")
    if not pid.isdecimal() or int(pid) == os.getpid():
        return None
    return None if rank and rank != _rank_of(environment) else int(pid)


_marked_pid = -1


def mark_owner(environment: MutableMapping[str, str]) -> None:
    """Mark this process as the one that is recorded, unless another one records its rank."""
    global _marked_pid
    if owner_of(environment) is None:
        _marked_pid = os.getpid()
        environment[OWNER_VARIABLE] = process_mark(environment)


def unmark_owner(environment: MutableMapping[str, str]) -> None:
    """Take away the mark that ``mark_owner`` has set in this process; no other."""
    global _marked_pid
    pid = environment.get(OWNER_VARIABLE, "").partition(" ")[0]
    if _marked_pid == os.getpid() and pid == str(_marked_pid):
        del environment[OWNER_VARIABLE]
    _marked_pid = -1


_LAUNCHERS = frozenset(
    {
        "torchrun",
        "torch.distributed.run",
        "torch.distributed.launch",
        "accelerate",
        "accelerate.commands.launch",
        "deepspeed",
        "deepspeed.launcher.launch",
        "deepspeed.launcher.runner",
    }
)
"""Programs, by script or module, that import torch and start ranks, but are none."""
_OPTIONS_WITH_VALUE = ("-W", "-X")


def is_launcher(words: Sequence[str]) -> bool:
    """Tell whether a command line of Python is that of a known launcher.

    Args:
        words: As in ``sys.orig_argv``: the interpreter, its options, the program.
    """
    rest = iter(words[1:])
    for word in rest:
        if word in _OPTIONS_WITH_VALUE:
            next(rest, None)
        elif word == "-m":
            return next(rest, "") in _LAUNCHERS
        elif not word.startswith("-"):
            return Path(word).name in _LAUNCHERS
    return False


def working_directory() -> Path:
    """Return the present directory, made sure of now: the training code may go elsewhere."""
    try:
        return Path.cwd()
    except OSError:
        return Path()  # It was deleted; an absolute run directory needs none.


def default_run_path(
    environment: Mapping[str, str], world_size: int, base: Path | None = None
) -> Path:
    """Return a run directory on which all ranks agree without talking; an absolute path.

    A job that its launcher restarts finds the same one.

    Args:
        environment: Variables of this process.
        world_size: Ranks of the job.
        base: Where relative ones are; by default the present directory.

    Raises:
        ConfigError: The ranks are on several hosts and share no job name.
    """
    return (base or working_directory()) / _run_path(environment, world_size)


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
            message("refused.no_shared_run_name"),
            where=RUN_DIR_VARIABLE,
            remedy=message("advice.run_directory_variable"),
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
