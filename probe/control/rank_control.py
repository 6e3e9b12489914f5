"""What one rank offers on its control socket, and the life of that socket.

The verbs come from the makers in ``probe.session.verbs.VERB_MAKERS``: each takes the ``RankControl``
and returns verbs. A maker may keep the control for later: its ``step``, its
``listeners`` and its ``switch`` are how a verb acts on the training. Those of every rank
are here: what it does, and recording on, off and how much.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..clock import now_ns
from ..job.kill_switch import why_disabled
from ..listeners import StepListeners
from ..safety.bounded import within
from ..safety.notices import tell
from ..schema.errors import ConfigError, MeshscopeError
from ..schema.message import message
from ..schema.terms import CaptureLevel
from ..settings.config import MOST_OPEN_S
from .client import remove_dead
from .directory import make_directory, run_name, socket_name, write_pointer
from .server import ControlServer, RequestLog
from .siblings import SiblingWatch
from .switch import RecordingSwitch, State
from .verbs import Choice, Flag, Refusal, Verb, VerbRegistry, Whole

VerbMaker = Callable[["RankControl"], Iterable[Verb]]


class RankControl:
    """The control of this process, once it is known which rank it is.

    Attributes:
        registry: The verbs; others may be added and removed at any time.
        listeners: Called in the training thread at the end of each recorded step.
        log: The requests so far; they are put into the capture too.
        switch: Turns the recording on and off; ``switch.recording`` is the session.
        run_path: The run directory; None until the socket is open.
        rank: Global rank; -1 until then.
        missing: Why there is no socket; empty if there is, or nobody wanted one.
    """

    def __init__(self, switch: RecordingSwitch[Any], listeners: StepListeners) -> None:
        self.registry = VerbRegistry()
        self.listeners = listeners
        self.log = RequestLog()
        self.switch = switch
        self.run_path: Path | None = None
        self.rank = -1
        self.missing = ""
        self._pid = os.getpid()
        self._server: ControlServer | None = None
        self._pointer: Path | None = None
        self._siblings: SiblingWatch | None = None

    @property
    def step(self) -> int:
        """Return the step in progress; -1 when nothing is recorded yet."""
        return self.listeners.step

    @property
    def is_open(self) -> bool:
        """Tell whether the socket is there."""
        return self._server is not None

    def open(
        self, run_path: Path, rank: int, makers: Iterable[VerbMaker], environment: Mapping[str, str]
    ) -> None:
        """Open the socket, unless it is open; never raises.

        Args:
            run_path: The run directory, which need not exist.
            rank: Global rank of this process.
            makers: Give the verbs.
            environment: Variables that say where sockets may be.
        """
        if self._server is not None:
            return
        self.run_path, self.rank = run_path, rank
        for maker in makers:
            for verb in maker(self):
                self.registry.remove(verb.name)
                self.registry.add(verb)
        try:
            directory = make_directory(run_name(run_path), environment)
            remove_dead(directory, rank)
            path = directory / socket_name(rank, os.getpid())
            server = ControlServer(path, self.registry, self.log)
            server.start()
        except (MeshscopeError, OSError, RuntimeError) as error:
            self.missing = str(error)
            tell(f"rank {rank} has no control socket: {error}")
            return
        self._server = server
        self._siblings = SiblingWatch(
            run_path, path, self._alive, self._sibling_died, _ranks_here(environment)
        )
        self._siblings.start()
        atexit.register(self.close)
        try:
            self._pointer = within(
                MOST_OPEN_S, lambda: write_pointer(run_path, rank, path), _remove
            )
        except OSError:
            # Found by its directory all the same, where the variables agree.
            self._pointer = None

    def close(self) -> None:
        """Remove the socket and end its thread; in a forked child nothing happens."""
        if os.getpid() != self._pid:
            return
        server, self._server = self._server, None
        self.run_path = None
        if server is None:
            return
        atexit.unregister(self.close)
        if self._siblings is not None:
            self._siblings.stop()
            self._siblings = None
        try:
            server.stop()
            if (pointer := self._pointer) is not None:
                within(MOST_OPEN_S, lambda: _remove(pointer))
        except OSError:
            pass
        with suppress(OSError):
            server.path.parent.rmdir()  # Only where no other rank has its socket there.
        self._pointer = None
        # A new one: the request that closed the socket is still to be noted in the old.
        self.log = RequestLog()

    def _alive(self, time_ns: int) -> None:
        recording = self.switch.recording
        if recording is not None:
            recording.give_sign_of_life(time_ns)

    def _sibling_died(self) -> None:
        recording = self.switch.recording
        if recording is not None:
            recording.note_death()


def _remove(pointer: Path) -> None:
    """Remove the note of a socket, and its folder where it was the last one."""
    with suppress(OSError):
        pointer.unlink(missing_ok=True)
        pointer.parent.rmdir()


def _ranks_here(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks the launcher has started on this host, None if it does not say."""
    stated = environment.get("LOCAL_WORLD_SIZE", "")
    return int(stated) if stated.isdecimal() else None


_PATIENCE_S = 0.25
"""How long a verb waits for what it began; the rest shows in ``status``."""
_LARGEST = (1 << 62) - 1
_LEVELS = tuple(level.value for level in CaptureLevel)


def recording_verbs(control: RankControl) -> Iterable[Verb]:
    """Return the verbs about the recording of a rank."""
    verbs = _RecordingVerbs(control)
    return (
        Verb("status", "Tell what this rank does.", verbs.status),
        Verb("attach", "Begin to record.", verbs.attach),
        Verb(
            "detach",
            "Cease to record and take every hook out; with remove the socket goes too.",
            verbs.detach,
            {"remove": Flag(default=False)},
        ),
        Verb(
            "level",
            "Record at another level from a step on that has not begun.",
            verbs.level,
            {"level": Choice(_LEVELS), "first_step": Whole(0, _LARGEST)},
        ),
        Verb("flush", "Write what was recorded so far to disk.", verbs.flush),
    )


class _RecordingVerbs:
    def __init__(self, control: RankControl) -> None:
        self._control = control

    def status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Return who this is, what it does, and where it is in the training."""
        control, listeners = self._control, self._control.listeners
        switch = control.switch
        age_ns = None if listeners.ended_ns < 0 else now_ns() - listeners.ended_ns
        recording = switch.recording
        return {
            "rank": control.rank,
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "run": str(control.run_path),
            "state": switch.state.value,
            "step": listeners.step,
            "since_step_ns": age_ns,
            "not_recorded": {} if recording is None else dict(recording.coverage),
            "error": switch.error,
            "requests": control.log.count,
            "verbs": list(control.registry.names()),
        }

    def attach(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Begin to record, unless this is disabled."""
        control = self._control
        reason = why_disabled(os.environ, control.run_path)
        if reason:
            raise Refusal(message("reply.disabled", reason=reason))
        if control.switch.state is State.STOPPING:
            raise Refusal(message("reply.still_closing"))
        control.switch.turn_on(_PATIENCE_S)
        return self.status(values)

    def detach(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Cease to record; with ``remove`` for good."""
        control = self._control
        control.switch.turn_off(_PATIENCE_S, control.close if values["remove"] else None)
        return self.status(values)

    def level(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change the level of what is recorded."""
        recording = self._control.switch.recording
        if recording is None or self._control.switch.state is not State.RECORDING:
            raise Refusal(message("reply.nothing_recorded"))
        if values["first_step"] <= self._control.step:
            raise Refusal(message("reply.step_begun", step=self._control.step))
        try:
            recording.set_level(values["level"], values["first_step"])
        except ConfigError as error:
            raise Refusal(
                message("reply.error", where=error.where, what=error.said["what"])
            ) from error
        return self.status(values)

    def flush(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write the records to disk."""
        recording = self._control.switch.recording
        if recording is None:
            raise Refusal(message("reply.nothing_recorded"))
        recording.flush()
        return self.status(values)
