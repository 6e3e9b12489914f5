"""The agent's part in deep traces: tell Kineto's clients what to record, seal the files."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ..control.verbs import Field, Refusal, Verb, Whole, Word
from ..deep.kineto_fabric import KinetoDaemon, configuration
from ..deep.names import kineto_directory, trace_folder
from ..deep.rank_traces import MOST_STEPS
from ..deep.sealing import is_complete, raw_traces_in, seal
from ..schema.deep_trace import TraceName, raw_stem
from ..schema.errors import MeshscopeError
from ..schema.manifest import MANIFEST_NAME, rank_directories, read_json
from ..schema.message import message

_LARGEST = (1 << 62) - 1
_MOST_RANKS = 1 << 24
_MOST_PID = 1 << 30
_MOST_ITERATIONS = 100 * MOST_STEPS
_CLOSE_S = 10.0
"""What a trace that is being sealed may take at the end."""
_GIVE_UP_S = 2.0
"""For what is left after that: the thread looks between two files."""


class NodeTraces:
    """Deep traces of the ranks of one run on this node.

    Attributes:
        missing: Why Kineto's clients are not served; empty if they are.
    """

    def __init__(self, run_path: Path) -> None:
        self.missing = ""
        self._run_path = run_path
        self._daemon: KinetoDaemon | None = None
        self._sealer: threading.Thread | None = None
        self._broken: set[Path] = set()
        self._is_closing = threading.Event()
        try:
            daemon = KinetoDaemon(kineto_directory(run_path, os.environ))
            daemon.start()
            self._daemon = daemon
        except (MeshscopeError, OSError, RuntimeError) as error:
            self.missing = str(error)

    def verbs(self) -> tuple[Verb, ...]:
        """Return what the agent offers about deep traces."""
        fields: dict[str, Field] = {
            "ticket": Word(),
            "rank": Whole(0, _MOST_RANKS),
            "pid": Whole(1, _MOST_PID),
            "first_step": Whole(0, _LARGEST),
            "steps": Whole(1, MOST_STEPS),
            "first_iteration": Whole(0, _LARGEST),
            "iterations": Whole(1, _MOST_ITERATIONS),
        }
        ticket = {"ticket": Word(default="")}
        return (
            Verb("trace", "Have Kineto record some steps of a rank.", self._trace, fields),
            Verb("cancel", "Forget what Kineto's clients have not taken yet; without a ticket, all.",
                 self._cancel, ticket),
        )  # fmt: skip

    def status(self) -> dict[str, Any]:
        """Return which processes can be asked for a trace, as JSON."""
        daemon = self._daemon
        return {
            "kineto_clients": [] if daemon is None else daemon.clients(),
            "kineto_missing": self.missing,
        }

    def tend(self, local_parts: Mapping[int, Collection[Path]]) -> None:
        """Compress traces of this node that are complete, on a thread of its own.

        Args:
            local_parts: The parts of the recording of each rank of this node.
        """
        if self._sealer is not None and self._sealer.is_alive():
            return
        waiting = [
            raw
            for rank, parts in local_parts.items()
            for raw in raw_traces_in(rank, parts)
            if raw.path not in self._broken
        ]
        if waiting:
            self._sealer = threading.Thread(
                target=self._seal, args=(waiting,), name="meshscope-seal", daemon=True
            )
            self._sealer.start()

    def close(self) -> None:
        """Cease to answer."""
        if self._daemon is not None:
            self._daemon.stop()
        if self._sealer is not None:
            self._sealer.join(_CLOSE_S)
            # What is not done by then stays raw; a draft of it would be of use to nobody.
            self._is_closing.set()
            self._sealer.join(_GIVE_UP_S)

    def _trace(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Order a trace of a process that the run itself says is one of its ranks."""
        if self._daemon is None:
            raise Refusal(message("reply.not_served", missing=self.missing))
        rank, pid = int(values["rank"]), int(values["pid"])
        folder = rank_directories(self._run_path).get(rank)
        if folder is None or read_json(folder / MANIFEST_NAME).get("pid") != pid:
            raise Refusal(message("reply.other_process", pid=pid, rank=rank))
        first = int(values["first_step"])
        name = TraceName(first, first + int(values["steps"]) - 1, str(values["ticket"]))
        path = trace_folder(folder) / raw_stem(name)
        text = configuration(path, int(values["first_iteration"]), int(values["iterations"]))
        self._daemon.order(pid, text, name.ticket)
        return {"ordered": True}

    def _cancel(self, values: Mapping[str, Any]) -> dict[str, Any]:
        daemon = self._daemon
        return {"cancelled": [] if daemon is None else daemon.cancel(str(values["ticket"]))}

    def _seal(self, waiting: list[Any]) -> None:
        for raw in waiting:
            if is_complete(raw.path) and not self._is_closing.is_set():
                try:
                    seal(raw, self._is_closing.is_set)
                except OSError:
                    # No room: it stays as it is, and whoever opens the run reads it so.
                    self._broken.add(raw.path)
