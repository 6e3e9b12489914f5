"""What ``meshscope run`` does: start a command whose ranks record themselves.

The command gets a new run directory and, first on its ``PYTHONPATH``, a folder
that holds nothing but our ``sitecustomize``. A Python that ignores the
environment (``python -I``, ``-E``, ``-S``) cannot be reached this way; its
training code has to call ``meshscope.probe.attach()``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .clock import unix_ns
from .identity import DEFAULT_ROOT, OWNER_VARIABLE, RUN_DIR_VARIABLE
from .schema.errors import ConfigError, RunDirectoryError
from .schema.manifest import MANIFEST_NAME, rank_directories, read_json
from .schema.rundir import create_run

BOOTSTRAP = Path(__file__).parent / "bootstrap"

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_SENT_BY_A_PROCESS = 0
"""``si_code`` of a signal from kill(); one from the terminal reaches the command itself."""
_CANNOT_START = 127


def run(
    command: Sequence[str],
    runs_dir: Path = DEFAULT_ROOT,
    run_id: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run a command under the probe and return its exit code.

    Args:
        command: Program and arguments, such as ``["torchrun", ..., "train.py"]``.
        runs_dir: Directory of all runs; made if it does not exist.
        run_id: Name of the run; by default one of the present time.
        environment: Variables of the command; by default those of this process.

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
    variables = _environment(run_path, os.environ if environment is None else environment)
    code = _run(command, variables)
    _report(run_path)
    return code


def _name_of_now() -> str:
    now = time.localtime(unix_ns() / 1e9)
    return f"{time.strftime('run-%Y%m%d-%H%M%S', now)}-{os.getpid()}"


def _environment(run_path: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the command: where to record, and our folder on the path."""
    variables = dict(inherited)
    variables[RUN_DIR_VARIABLE] = str(run_path)
    variables.pop(OWNER_VARIABLE, None)
    path = [str(BOOTSTRAP), *filter(None, [variables.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(path)
    return variables


def _run(command: Sequence[str], variables: Mapping[str, str]) -> int:
    """Start the command, pass signals on until it ends, return its exit code.

    The signals are blocked here and taken one by one, so that none is lost
    between two looks and the command is never left behind.
    """
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    try:
        process = subprocess.Popen(
            list(command),
            env=dict(variables),
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before),
        )
        while process.poll() is None:
            received = signal.sigtimedwait(watched, 1.0)
            if (
                received is not None
                and received.si_signo in _FORWARDED
                and received.si_code == _SENT_BY_A_PROCESS
            ):
                process.send_signal(received.si_signo)
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        sys.stderr.write(f"meshscope: cannot start {command[0]!r}: {error.strerror}\n")
        return _CANNOT_START
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _report(run_path: Path) -> None:
    """Say on stderr how many ranks recorded, and which did not end in order."""
    ranks = rank_directories(run_path)
    unfinished = [rank for rank, path in ranks.items() if not _is_closed(path)]
    plural = "" if len(ranks) == 1 else "s"
    sys.stderr.write(f"meshscope: {len(ranks)} rank{plural} recorded in {run_path}\n")
    if not ranks:
        sys.stderr.write(
            "meshscope: no process had RANK set and imported torch; "
            "is the command a launcher such as torchrun?\n"
        )
    if unfinished:
        listed = ", ".join(map(str, unfinished[:16]))
        sys.stderr.write(
            f"meshscope: killed before they closed their capture: ranks {listed}; "
            "what they recorded is kept\n"
        )


def _is_closed(rank_path: Path) -> bool:
    """Tell whether a rank ended its capture in order."""
    try:
        return read_json(rank_path / MANIFEST_NAME).get("closed_unix_ns") is not None
    except RunDirectoryError:
        return False
