"""What came of a request: which ranks have their trace, and why the others have none."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..clock import now_ns
from ..control.client import ask_all
from ..control.finding import is_alive
from .arming import Armed, disarm
from .rank_traces import How, Stage
from .sealing import SealedTrace, is_complete, raw_traces, seal, sealed_traces

_POLL_S = 0.2
_AGENT_GRACE_S = 4.0
"""Time that the agent has for a complete file before it is sealed here."""


@dataclass(slots=True)
class Collected:
    """The traces of one request."""

    armed: Armed
    traces: dict[int, SealedTrace] = field(default_factory=dict)
    stalls_ns: dict[int, int] = field(default_factory=dict)
    """How long the training thread was held up, as far as it was recorded there."""
    failed: dict[int, str] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Tell whether every rank that was found has its trace."""
        elsewhere = self.armed.found.elsewhere or self.armed.found.unknown
        return not self.failed and not elsewhere and self.traces.keys() == self.armed.pids.keys()


def collect(run_path: Path, armed: Armed, timeout_s: float) -> Collected:
    """Wait until every rank has its trace or cannot have one any more.

    Args:
        run_path: The run directory.
        armed: What was agreed.
        timeout_s: How long to wait once the steps are over, and for a step to end before.
    """
    collected = Collected(armed)
    reached, since_ns = -1, now_ns()
    complete_since: dict[Path, int] = {}
    while True:
        time_ns = now_ns()
        _look(run_path, collected, complete_since, time_ns)
        statuses = _ask(collected)
        waiting = armed.pids.keys() - collected.traces.keys() - collected.failed.keys()
        if not waiting:
            _ask_for_stalls(collected)
            return collected
        newest = max((int(said["step"]) for said in statuses.values()), default=reached)
        if reached <= armed.last_step and newest > reached:
            since_ns = time_ns
        reached = max(reached, newest)
        if time_ns - since_ns > timeout_s * 1e9:
            collected.failed |= dict.fromkeys(waiting, _why_late(armed, reached, timeout_s))
            disarm(armed)
            return collected
        threading.Event().wait(_POLL_S)


def _why_late(armed: Armed, reached: int, timeout_s: float) -> str:
    if reached > armed.last_step:
        return f"no trace {timeout_s:g} s after its steps"
    if reached < 0:
        return f"no rank has answered for {timeout_s:g} s"
    return (
        f"no step has ended for {timeout_s:g} s: the training stands at step {reached} "
        "(where it does other work there, give a longer --timeout)"
    )


def _look(
    run_path: Path, collected: Collected, complete_since: dict[Path, int], time_ns: int
) -> None:
    """Take note of what is sealed; seal what nobody else does."""
    armed = collected.armed
    for raw in raw_traces(run_path):
        if raw.name.ticket != armed.ticket or not is_complete(raw.path):
            continue
        since_ns = complete_since.setdefault(raw.path, time_ns)
        if armed.how is How.IN_PROCESS or time_ns - since_ns > _AGENT_GRACE_S * 1e9:
            try:
                seal(raw)
            except OSError as error:
                collected.failed[raw.rank] = f"{raw.path}: {error.strerror}"
    for sealed in sealed_traces(run_path, armed.ticket):
        collected.traces[sealed.rank] = sealed
        collected.failed.pop(sealed.rank, None)


def _ask(collected: Collected) -> Mapping[int, Mapping[str, Any]]:
    """Ask the ranks how far they are; note those that cannot have a trace any more."""
    armed = collected.armed
    found: dict[int, Mapping[str, Any]] = {}
    for endpoint, reply, silence in ask_all(armed.found.here, "traced", {"ticket": armed.ticket}):
        rank = endpoint.rank
        if armed.pids.get(rank) != endpoint.pid or rank in collected.traces:
            continue
        if reply is None:
            if not is_alive(endpoint.pid):
                collected.failed[rank] = "its process has ended"
            elif silence:
                continue
        elif not reply.ok:
            collected.failed[rank] = reply.error
        else:
            found[rank] = reply.result
            _note(collected, rank, reply.result)
    return found


def _ask_for_stalls(collected: Collected) -> None:
    """Take note of how long the ranks were held up, which is known once the trace is written."""
    armed = collected.armed
    if armed.how is not How.IN_PROCESS:
        return
    for endpoint, reply, _ in ask_all(armed.found.here, "traced", {"ticket": armed.ticket}):
        if armed.pids.get(endpoint.rank) == endpoint.pid and reply is not None and reply.ok:
            _note_stall(collected, endpoint.rank, reply.result)


def _note_stall(collected: Collected, rank: int, said: Mapping[str, Any]) -> None:
    if isinstance(said.get("stall_ns"), int):
        collected.stalls_ns[rank] = int(said["stall_ns"])


def _note(collected: Collected, rank: int, said: Mapping[str, Any]) -> None:
    _note_stall(collected, rank, said)
    if said["stage"] == Stage.FAILED:
        collected.failed[rank] = str(said["error"]) or "the profiler failed"
    elif said["stage"] == Stage.MISSED:
        collected.failed[rank] = "the steps began before all ranks had agreed"
