"""What a launcher tells a rank through its environment, torchrun or SLURM: one task is one rank.

Only tasks of ``srun`` are translated. The batch script itself and a shell of
``salloc`` know of the tasks too, but are none of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import Message, message


def text_of(environment: Mapping[str, str], *names: str, remedy: Message) -> str:
    """Return the first of some variables that is set.

    Raises:
        ConfigError: None of them is.
    """
    for name in names:
        if environment.get(name):
            return environment[name]
    raise ConfigError(message("refused.not_set"), where=names[0], remedy=remedy)


def number_of(environment: Mapping[str, str], *names: str, remedy: Message) -> int:
    """Return the first of some variables that is set, which counts something.

    Raises:
        ConfigError: None of them is, or it is no number.
    """
    text = text_of(environment, *names, remedy=remedy)
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(
            message("refused.value_no_number", value=text), where=names[0], remedy=remedy
        )
    return int(text)


_REMEDY = message("advice.srun")
_FIRST_PORT = 20_000
_PORTS = 10_000
"""Ports below those that Linux gives to outgoing connections."""


def torchrun_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of torchrun for a task of srun; none where torchrun or nobody started it.

    The ranks meet at the first host of the step, at a port that follows from job and
    step, so that jobs which share a host do not meet each other. ``MASTER_ADDR`` and
    ``MASTER_PORT`` are kept where they are set.

    >>> task = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_PROCID": "9",
    ...         "SLURM_NTASKS": "16", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    ...         "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_STEP_NODELIST": "gpu[03-04]"}
    >>> found = torchrun_environment(task)
    >>> found["RANK"], found["LOCAL_WORLD_SIZE"], found["MASTER_ADDR"], found["MASTER_PORT"]
    ('9', '8', 'gpu03', '20007')

    Raises:
        ConfigError: A variable of SLURM is missing or not what it should be.
    """
    if "RANK" in environment or not {"SLURM_STEP_ID", "SLURM_PROCID"} <= environment.keys():
        return {}
    ranks = _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    job, step = (_number(environment, name) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    nodes = _text(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    return {
        "RANK": str(_number(environment, "SLURM_PROCID")),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(_number(environment, "SLURM_LOCALID")),
        "LOCAL_WORLD_SIZE": str(_tasks_here(environment)),
        "MASTER_ADDR": environment.get("MASTER_ADDR", first_host(nodes)),
        "MASTER_PORT": environment.get("MASTER_PORT", str(_FIRST_PORT + (job + step) % _PORTS)),
    }


def first_host(nodes: str) -> str:
    """Return the first host of SLURM's short form of a list of hosts.

    >>> first_host("rack[1-2]gpu[07-10,12],login")
    'rack1gpu07'
    """
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", first.group()) if first else nodes


def _tasks_here(environment: Mapping[str, str]) -> int:
    """Return the tasks on this host, from a list as ``8(x2),4``."""
    text = _text(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    counts: list[int] = []
    for tasks, nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(nodes or 1)
    here = _number(environment, "SLURM_NODEID")
    if here >= len(counts):
        raise ConfigError(
            message("refused.no_tasks_of_node", text=text, here=here),
            where="SLURM_STEP_TASKS_PER_NODE",
            remedy=_REMEDY,
        )
    return counts[here]


def _number(environment: Mapping[str, str], *names: str) -> int:
    return number_of(environment, *names, remedy=_REMEDY)


def _text(environment: Mapping[str, str], *names: str) -> str:
    return text_of(environment, *names, remedy=_REMEDY)
