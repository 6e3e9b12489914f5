"""What ``meshscope run`` does: start a command whose ranks record themselves.

The command gets a new run directory and, first on its ``PYTHONPATH``, a folder
that holds nothing but our ``sitecustomize``. A Python that ignores the
environment (``python -I``, ``-E``, ``-S``) cannot be reached this way; its
training code has to call ``meshscope.probe.attach()``.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from .agent_child import AgentChild
from .clock import unix_ns
from .deep.kineto_fabric import DAEMON_VARIABLE, DIRECTORY_VARIABLE, LOG_VARIABLE, SILENT
from .deep.names import kineto_directory
from .identity import (
    DEFAULT_ROOT,
    DISABLE_VARIABLE,
    DORMANT_VARIABLE,
    OWNER_VARIABLE,
    RUN_DIR_VARIABLE,
)
from .rank_watch import RankWatch
from .schema.errors import ConfigError, RunDirectoryError
from .schema.listing import listed
from .schema.manifest import MANIFEST_NAME, rank_directories, read_json
from .schema.printable import printable
from .schema.rundir import create_run

BOOTSTRAP = Path(__file__).parent / "bootstrap"

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SENT_BY_A_PROCESS = 0
"""``si_code`` of a signal from kill(); one from the terminal reaches the command itself."""
_CANNOT_START = 127
_LONGEST_SHOWN = 200
"""Of the name of a program, in a message."""


def run(
    command: Sequence[str],
    runs_dir: Path = DEFAULT_ROOT,
    run_id: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    dormant: bool = False,
    agent_options: Sequence[str] | None = None,
) -> int:
    """Run a command under the probe and return its exit code.

    Args:
        command: Program and arguments, such as ``["torchrun", ..., "train.py"]``.
        runs_dir: Directory of all runs; made if it does not exist.
        run_id: Name of the run; by default one of the present time.
        environment: Variables of the command; by default those of this process.
        dormant: The ranks open their control sockets and record when asked.
        agent_options: Options of the node agent beside the job; None for no agent.

    Returns:
        The exit code; 128 plus the number of the signal that ended the
        command; 127 when it cannot be started.

    Raises:
        ConfigError: There is no command, the id cannot name a run, or the run
            exists.
        OSError: The run directory cannot be created.
    """
    if not command:
        raise ConfigError(
            "there is no command to run",
            where="run",
            remedy="Put it after --, as in: meshscope run -- torchrun train.py",
        )
    run_path = create_run(
        runs_dir.absolute(),
        run_id or _name_of_now(),
        {"created_unix_ns": unix_ns(), "command": list(command)},
    )
    inherited = os.environ if environment is None else environment
    variables = _environment(run_path, inherited)
    if dormant:
        variables[DORMANT_VARIABLE] = "1"
    agent = None
    if agent_options is not None:
        variables |= _kineto_variables(run_path, inherited)
        agent = AgentChild(run_path, inherited, agent_options)
    try:
        with RankWatch(run_path):
            code = _run(command, variables, agent)
    except _NotStartedError as error:
        _say(f"cannot start {command[0][:_LONGEST_SHOWN]!r}: {error}")
        # Else a misspelt command would leave an empty run in every list of runs.
        shutil.rmtree(run_path, ignore_errors=True)
        return _CANNOT_START
    _report(run_path, dormant=dormant)
    return code


class _NotStartedError(Exception):
    """The system refuses to start the command, for the reason that this says."""


def _name_of_now() -> str:
    now = time.localtime(unix_ns() / 1e9)
    return f"{time.strftime('run-%Y%m%d-%H%M%S', now)}-{os.getpid()}"


def _environment(run_path: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the command: where to record, and our folder on the path."""
    variables = dict(inherited)
    variables[RUN_DIR_VARIABLE] = str(run_path)
    for name in (OWNER_VARIABLE, DORMANT_VARIABLE):
        variables.pop(name, None)
    path = [str(BOOTSTRAP), *filter(None, [variables.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(path)
    return variables


def _kineto_variables(run_path: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what has Kineto's client ask the agent of this run; {} where somebody else has it.

    It must be set before torch is imported.
    """
    if DAEMON_VARIABLE in inherited or inherited.get(DISABLE_VARIABLE, "") not in ("", "0"):
        return {}
    try:
        directory = kineto_directory(run_path, inherited)
    except (ConfigError, OSError):
        # Deep traces are taken in the process then.
        return {}
    # Its client complains every five seconds where the agent has died.
    quiet = {} if LOG_VARIABLE in inherited else {LOG_VARIABLE: SILENT}
    return {DAEMON_VARIABLE: "1", DIRECTORY_VARIABLE: str(directory), **quiet}


def _run(command: Sequence[str], variables: Mapping[str, str], agent: AgentChild | None) -> int:
    """Start the command, pass signals on until it ends, return its exit code.

    The signals are blocked here and taken one by one, so that none is lost
    between two looks and the command is never left behind.

    Raises:
        _NotStartedError: It cannot be started.
    """
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        process = _started(
            command, variables, lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
        )
        while process.poll() is None:
            if agent is not None:
                agent.tend()
            received = signal.sigtimedwait(watched, 1.0)
            if (
                received is not None
                and received.si_signo in _FORWARDED
                and received.si_code == _SENT_BY_A_PROCESS
            ):
                process.send_signal(received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if agent is not None:
            agent.stop()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _started(
    command: Sequence[str], variables: Mapping[str, str], before_exec: Callable[[], object]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command), env=dict(variables), preexec_fn=before_exec)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise _NotStartedError(reason or str(error)) from error


def _report(run_path: Path, *, dormant: bool) -> None:
    """Say on stderr how many ranks recorded, and which did not end in order."""
    ranks = rank_directories(run_path)
    unfinished = [rank for rank, path in ranks.items() if not _is_closed(path)]
    plural = "" if len(ranks) == 1 else "s"
    _say(f"{len(ranks)} rank{plural} recorded in {run_path}")
    if not ranks and not dormant:
        _say(
            "no process had RANK set and imported torch; "
            "is the command a launcher such as torchrun?"
        )
    if unfinished:
        ranks_named = listed(unfinished, most=16)
        _say(
            f"killed before they closed their capture: ranks {ranks_named}; "
            "what they recorded is kept"
        )


def _say(clause: str) -> None:
    sys.stderr.write(f"meshscope: {printable(clause)}\n")


def _is_closed(rank_path: Path) -> bool:
    """Tell whether a rank ended its capture in order."""
    try:
        return read_json(rank_path / MANIFEST_NAME).get("closed_unix_ns") is not None
    except RunDirectoryError:
        return False
