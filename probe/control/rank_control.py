"""What one rank offers on its control socket, and the life of that socket.

The verbs come from the makers in ``probe.session.verbs.VERB_MAKERS``: each takes the ``RankControl``
and returns verbs. A maker may keep the control for later: its ``step``, its
``listeners`` and its ``switch`` are how a verb acts on the training.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..listeners import StepListeners
from ..safety.bounded import within
from ..safety.notices import tell
from ..schema.errors import MeshscopeError
from ..settings.config import MOST_OPEN_S
from .client import remove_dead
from .directory import make_directory, run_name, socket_name
from .pointers import write_pointer
from .request_log import RequestLog
from .server import ControlServer
from .siblings import SiblingWatch
from .switch import RecordingSwitch
from .verbs import Verb, VerbRegistry

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
        self._siblings = SiblingWatch(run_path, path, self._alive, _ranks_here(environment))
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


def _remove(pointer: Path) -> None:
    """Remove the note of a socket, and its folder where it was the last one."""
    with suppress(OSError):
        pointer.unlink(missing_ok=True)
        pointer.parent.rmdir()


def _ranks_here(environment: Mapping[str, str]) -> int | None:
    """Return how many ranks the launcher has started on this host, None if it does not say."""
    stated = environment.get("LOCAL_WORLD_SIZE", "")
    return int(stated) if stated.isdecimal() else None
