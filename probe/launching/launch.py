"""What ``meshscope run`` does: start a command whose ranks record themselves.

The command is what matters: it starts and its exit code is passed on whatever becomes of
the recording. Where that is not possible, it runs without us, which is said.

The command gets a run directory (``run_place``) and, first on its ``PYTHONPATH``, a folder
that holds nothing but our ``sitecustomize``. A Python that ignores the
environment (``python -I``, ``-E``, ``-S``) cannot be reached this way; its
training code has to call ``meshscope.probe.attach()``.

The node agent is a child that is started beside the job and ended with it. If it dies it is started again, a few
times; if the launcher is killed, it lives on until no rank is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ..clock import now_ns
from ..control.left_behind import remove_of_killed_ranks
from ..deep.kineto_fabric import DAEMON_VARIABLE, DIRECTORY_VARIABLE, LOG_VARIABLE, SILENT
from ..deep.names import kineto_directory
from ..job.identity import (
    ATTACHED_VARIABLE,
    COMMAND_VARIABLE,
    DEFAULT_ROOT,
    DISABLE_VARIABLE,
    DORMANT_VARIABLE,
    OWNER_VARIABLE,
    RUN_DIR_VARIABLE,
)
from ..job.kill_switch import is_disabled
from ..safety.bounded import within
from ..safety.notices import tell
from ..safety.room import NEEDED_THREADS, too_few_threads
from ..schema.errors import ConfigError, MeshscopeError
from ..schema.manifest import check_run_id
from ..schema.message import message
from ..schema.printable import printable
from .isolated_python import deaf_option
from .rank_watch import RankWatch
from .run_place import RunPlace, place_of, take_back, words_of_joining
from .run_report import report
from .signal_witness import Witness

_RESTARTS = 5
_PAUSE_NS = 2_000_000_000
"""Time before the first restart, doubled for each further one."""
_END_S = 15.0
_FINAL = (0, 2)
"""Exit codes after which it is not started again: another agent samples the node, or it
cannot work here."""


class AgentChild:
    """At most one agent process at a time."""

    def __init__(
        self, run_path: Path, environment: Mapping[str, str], options: Sequence[str] = ()
    ) -> None:
        """Prepare; ``tend`` starts it.

        Args:
            run_path: The run.
            environment: Variables of the launcher; those that turn the probe off turn it off too.
            options: Further options of ``meshscope agent``.
        """
        self._command = [
            *(sys.executable, "-P", "-m", "meshscope", "agent"),
            *("--run", str(run_path), "--launcher", str(os.getpid()), *options),
        ]
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._starts_left = _RESTARTS + 1
        self._not_before_ns = 0
        self._pause_ns = _PAUSE_NS
        self._is_said = False
        if is_disabled(environment):
            self._starts_left = 0

    def tend(self) -> None:
        """Start the agent if there is none and it is time; does not wait for it."""
        if self._process is not None:
            if self._process.poll() is None:
                return
            if self._process.returncode in _FINAL:
                self._starts_left = 0
            self._process = None
            self._not_before_ns = now_ns() + self._pause_ns
            self._pause_ns *= 2
        if self._starts_left <= 0 or now_ns() < self._not_before_ns:
            return
        self._starts_left -= 1
        # A session of its own: what the terminal or a scheduler sends to the job's group
        # must not end it before the job. A job goes on without an agent.
        try:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            if not self._is_said:
                tell(f"the node agent cannot be started: {error.strerror}")
            self._is_said = True

    def stop(self) -> None:
        """Ask the agent to write what it has and end; kill it if it does not."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)
        self._process = None


BOOTSTRAP = Path(__file__).parents[1] / "bootstrap"

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_MOST_OF_A_PROCESS = 0
"""Largest ``si_code`` of a signal from a process; the terminal's reach the command themselves."""
_CANNOT_START = 127
_LONGEST_SHOWN = 200
"""Of the name of a program, in a message."""
_LONGEST_TOLD = 100_000
"""Linux takes no longer variable than 128 KiB."""
_DISK_WAIT_S = 30.0
"""How long a command, or its exit code, waits for the disk of the capture: as long as a rank does
at its end."""
_THREADS_BESIDE_JOB = 2 * NEEDED_THREADS
"""Of the agent up to seven were counted; the others are for a rank."""
_STDERR = 2


def run(
    command: Sequence[str],
    runs_dir: Path = DEFAULT_ROOT,
    run_id: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    dormant: bool = False,
    agent_options: Sequence[str] | None = None,
) -> int:
    """Run a command under the probe and return its exit code; without the probe if need be.

    Args:
        command: Program and arguments, such as ``["torchrun", ..., "train.py"]``.
        runs_dir: Directory of all runs; made if it does not exist.
        run_id: Name of the run, which is joined if it is there; by default a new one of the
            present time.
        environment: Variables of the command; by default those of this process.
        dormant: The ranks open their control sockets and record when asked.
        agent_options: Options of the node agent beside the job; None for no agent.

    Returns:
        The exit code; 128 plus the number of the signal that ended the
        command; 127 when it cannot be started.

    Raises:
        ConfigError: There is no command, or the id cannot name a run.
    """
    if not command:
        raise ConfigError(
            message("refused.no_command"),
            where="run",
            remedy=message("advice.command_to_run"),
        )
    if run_id is not None:
        check_run_id(run_id)
    inherited = os.environ if environment is None else environment
    place = _place(runs_dir, run_id, command, inherited)
    try:
        if place is None:
            return _run(command, inherited)
        variables = _environment(place.path, inherited) | _command_variable(command)
        if dormant:
            variables[DORMANT_VARIABLE] = "1"
        _say_deaf(command, inherited)
        agent = None
        if agent_options is not None and _has_room_for_agent():
            variables |= _kineto_variables(place.path, inherited)
            agent = AgentChild(place.path, inherited, agent_options)
        code = _run(command, variables, RankWatch(place.path, place.before), agent)
    except _NotStartedError as error:
        _say(f"cannot start {command[0][:_LONGEST_SHOWN]!r}: {error}")
        if place is not None:
            # Else a misspelt command would leave an empty run in every list of runs.
            with suppress(OSError):
                within(_DISK_WAIT_S, lambda: take_back(place))
        return _CANNOT_START
    _report(place, is_dormant=dormant)
    return code


def _say_deaf(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Say which option keeps the command from being recorded, if one does."""
    if option := deaf_option(command, environment.get("PATH")):
        _say(
            f"{option} keeps this Python from what would record it: "
            "its training code has to call meshscope.probe.attach()"
        )


def _has_room_for_agent() -> bool:
    """Tell whether an agent leaves threads to the ranks; where it does not, say so."""
    reason = too_few_threads(_THREADS_BESIDE_JOB)
    if reason:
        _say(f"the job runs without a node agent: {reason}")
    return not reason


class _NotStartedError(Exception):
    """The system refuses to start the command, for the reason that this says."""


def _place(
    runs_dir: Path, run_id: str | None, command: Sequence[str], environment: Mapping[str, str]
) -> RunPlace | None:
    """Return where to record; None if nothing can or may be recorded, which is said."""
    if is_disabled(environment):
        _say(f"{DISABLE_VARIABLE} is set: the command runs unrecorded")
        return None

    def found() -> tuple[RunPlace, str]:
        place = place_of(runs_dir, run_id, list(command))
        return place, words_of_joining(place)

    try:
        place, joining = within(_DISK_WAIT_S, found)
    except MeshscopeError as error:
        _say(f"the command runs unrecorded: {error}")
    except OSError as error:
        _say(
            f"the command runs unrecorded: {error.filename or runs_dir}: "
            f"{error.strerror or error}. Name a folder that can be written with --runs"
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the command must start
        _say(f"the command runs unrecorded: {type(error).__name__}: {error}")
    else:
        if joining:
            _say(joining)
        return place
    return None


def _environment(run_path: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the command: where to record, and our folder on the path."""
    variables = dict(inherited)
    variables[RUN_DIR_VARIABLE] = str(run_path)
    for name in (OWNER_VARIABLE, ATTACHED_VARIABLE, DORMANT_VARIABLE, COMMAND_VARIABLE):
        variables.pop(name, None)
    path = [str(BOOTSTRAP), *filter(None, [variables.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(path)
    return variables


def _command_variable(command: Sequence[str]) -> dict[str, str]:
    """Return what tells the ranks how the job was started; nothing where it would be too long."""
    text = json.dumps(list(command))
    return {COMMAND_VARIABLE: text} if len(text) < _LONGEST_TOLD else {}


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


def _run(
    command: Sequence[str],
    variables: Mapping[str, str],
    watch: RankWatch | None = None,
    agent: AgentChild | None = None,
) -> int:
    """Start the command, pass signals on that it has not got itself, return its exit code.

    The signals are blocked here, in the thread of the watch too, and taken one by
    one, so that none is lost between two looks and the command is never left behind.

    Raises:
        _NotStartedError: It cannot be started.
    """
    watched = {*_FORWARDED, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    witness = None
    try:
        process = _started(
            command, variables, lambda: signal.pthread_sigmask(signal.SIG_SETMASK, before)
        )
        witness = Witness()
        # Python runs between fork and exec: a thread of ours could hold a lock just then.
        if watch is not None:
            watch.start()
        while process.poll() is None:
            if agent is not None:
                agent.tend()
            received = signal.sigtimedwait(watched, 1.0)
            if received is None or received.si_signo == signal.SIGCHLD:
                continue
            is_known = witness.has_heard(received.si_signo)
            witness.end()
            witness = Witness()  # What is pending for one stays so.
            if received.si_code <= _MOST_OF_A_PROCESS and not is_known:
                process.send_signal(received.si_signo)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if witness is not None:
            witness.end()
        if agent is not None:
            agent.stop()
        if watch is not None:
            watch.stop()
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _started(
    command: Sequence[str], variables: Mapping[str, str], before_exec: Callable[[], object]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command), env=dict(variables), preexec_fn=before_exec)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise _NotStartedError(reason or str(error)) from error


def _report(place: RunPlace, *, is_dormant: bool) -> None:
    """Say on stderr how many ranks recorded, and which did not end in order."""
    try:
        for clause in within(_DISK_WAIT_S, lambda: report(place, is_dormant=is_dormant)):
            _say(clause)
        within(_DISK_WAIT_S, lambda: remove_of_killed_ranks(place.path))
    except Exception as error:  # noqa: BLE001 - the exit code is that of the command
        _say(f"what was recorded cannot be read: {error}")


def _say(clause: str) -> None:
    """Write a line to stderr at once; where that cannot be, the command matters more."""
    if sys.stderr is None:
        return  # It is closed; what has that number now is something else.
    with suppress(OSError):
        os.write(_STDERR, f"meshscope: {printable(clause)}\n".encode(errors="replace"))
