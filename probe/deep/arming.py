"""How all ranks of this node come to record the same steps in depth."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

from ..clock import now_ns
from ..control.client import Endpoint, ask, ask_all
from ..control.directory import existing_directories, run_name
from ..control.finding import FoundRanks, ranks_of_run
from ..control.messages import MessageError
from ..control.orders import Outcome, order
from ..schema.errors import ConfigError
from ..schema.message import message
from .kineto_fabric import POLL_S
from .rank_traces import How

_LOOK_S = 2.0
"""Longest time for which the pace of the training is watched."""
_POLL_S = 0.05
_SPARE_STEPS = 3
_TRIES = 4
_SETTLE_S = 1.0
"""Time for two rounds of questions to many ranks."""
_AGENT_SOCKET = re.compile(r"agent\.\d{1,9}\.sock")


@dataclass(slots=True)
class Armed:
    """What was agreed."""

    ticket: str
    first_step: int
    last_step: int
    how: How
    found: FoundRanks
    agent: Path | None = None
    """Control socket of the node agent."""
    pids: dict[int, int] = field(default_factory=dict)
    """Process of each rank that will record."""
    failed: dict[int, str] = field(default_factory=dict)
    """Why the others will not."""
    pace_s: float | None = None
    """Seconds of a step, as far as they were seen."""


def arm(
    run_path: Path,
    steps: int,
    environment: Mapping[str, str],
    *,
    first_step: int | None = None,
    how: How | None = None,
    timeout_s: float = 10.0,
) -> Armed:
    """Have every rank of this node promise the same steps, then hold them to it.

    Args:
        run_path: The run directory.
        steps: How many steps to record.
        environment: Variables that say where sockets are.
        first_step: The first of them; by default one that all ranks can still reach.
        how: Who records; by default Kineto's client where every rank has one.
        timeout_s: How long to wait for answers.

    Raises:
        ConfigError: No rank here can be asked, none records, or they did not agree.
    """
    found = ranks_of_run(run_path, environment)
    if not found.here:
        raise _nobody(run_path)
    pace_s, newest, statuses = _watch(found.here, timeout_s)
    agent = agent_socket(run_path, environment)
    chosen = how or (How.DAEMON if _has_kineto(agent, statuses) else How.IN_PROCESS)
    ahead_s = _SETTLE_S + (2 * POLL_S if chosen is How.DAEMON else 0.0)
    margin = _SPARE_STEPS + ceil(ahead_s / max(pace_s or _LOOK_S, 1e-4))
    reasons: dict[int, str] = {}
    for attempt in range(1 if first_step is not None else _TRIES):
        start = first_step if first_step is not None else newest + margin * 2**attempt
        armed = Armed(
            secrets.token_hex(4), start, start + steps - 1, chosen, found, agent, pace_s=pace_s
        )
        try:
            reasons = _agree(armed, timeout_s)
        except BaseException:
            disarm(armed)
            raise
        if not reasons:
            return armed
        newest = max([newest, *(int(status["step"]) for status in _steps(found.here, timeout_s))])
    listed = "; ".join(f"rank {rank}: {why}" for rank, why in sorted(reasons.items())[:4])
    is_busy = any("on its way" in why for why in reasons.values())
    raise ConfigError(
        message("refused.no_agreement_on_steps", reasons=listed), where=str(run_path),
        remedy=message("advice.call_off", run_path=run_path) if is_busy
        else message("advice.later_step"),
    )  # fmt: skip


def agent_socket(run_path: Path, environment: Mapping[str, str]) -> Path | None:
    """Return the control socket of the agent of a run on this node, None if it has none."""
    for directory in existing_directories(environment):
        if directory.name == run_name(run_path):
            for path in sorted(directory.iterdir(), reverse=True):
                if _AGENT_SOCKET.fullmatch(path.name):
                    return path
    return None


def disarm(armed: Armed, timeout_s: float = 5.0) -> None:
    """Take back what was agreed, as far as it has not been recorded."""
    _cancel(armed.agent, {"ticket": armed.ticket})
    ask_all(armed.found.here, "disarm", {"ticket": armed.ticket}, timeout_s)


def disarm_run(run_path: Path, environment: Mapping[str, str], timeout_s: float = 5.0) -> Outcome:
    """Take back whatever the ranks of this node have promised, whoever asked for it.

    A client of Kineto that has taken its order keeps to it; its trace is written.

    Returns:
        The answers; ``called_off`` is true in those of ranks that had promised something.

    Raises:
        ConfigError: No rank here can be asked.
    """
    found = ranks_of_run(run_path, environment)
    if not found.here:
        raise _nobody(run_path)
    _cancel(agent_socket(run_path, environment), {})
    return order(found.here, "disarm", {}, (), timeout_s)


def _cancel(agent: Path | None, ticket: Mapping[str, str]) -> None:
    """Have the agent forget orders; without an agent, or with a dead one, there are none."""
    if agent is not None:
        with suppress(OSError, MessageError):
            ask(agent, "cancel", ticket)


def _nobody(run_path: Path) -> ConfigError:
    return ConfigError(
        message("refused.no_rank_reached"), where=str(run_path),
        remedy=message("advice.node_of_ranks"),
    )  # fmt: skip


def _agree(armed: Armed, timeout_s: float) -> dict[int, str]:
    """Prepare, then commit; return why ranks do not record, {} if all do."""
    here, ticket = armed.found.here, {"ticket": armed.ticket}
    fields = {
        **ticket,
        "first_step": armed.first_step,
        "steps": armed.last_step - armed.first_step + 1,
        "how": armed.how.value,
    }
    prepared = order(here, "prepare", fields, (), timeout_s)
    if prepared.failed:
        disarm(armed, timeout_s)
        return prepared.failed
    committed = order(here, "commit", ticket, (), timeout_s)
    failed = dict(committed.failed)
    if not failed and armed.how is How.DAEMON:
        failed = _tell_agent(armed, committed)
    if failed:
        disarm(armed, timeout_s)
        return failed
    armed.pids = {rank: int(said["pid"]) for rank, said in committed.done.items()}
    return {}


def _tell_agent(armed: Armed, committed: Outcome) -> dict[int, str]:
    """Give the agent what Kineto's client of each rank is to record."""
    agent = armed.agent
    if agent is None:
        return dict.fromkeys(committed.done, "there is no node agent")
    failed = {}
    for rank, said in committed.done.items():
        fields = {
            "ticket": armed.ticket,
            "rank": rank,
            "pid": said["pid"],
            "first_step": armed.first_step,
            "steps": armed.last_step - armed.first_step + 1,
            "first_iteration": said["first_iteration"],
            "iterations": said["iterations"],
        }
        try:
            reply = ask(agent, "trace", fields)
        except (OSError, MessageError) as error:
            failed[rank] = f"the agent does not answer: {error}"
            continue
        if not reply.ok:
            failed[rank] = reply.error
    return failed


def _has_kineto(agent: Path | None, statuses: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether the agent has been asked by Kineto's client of every rank."""
    if agent is None:
        return False
    try:
        reply = ask(agent, "status", {})
    except (OSError, MessageError):
        return False
    clients = set(reply.result.get("kineto_clients") or ()) if reply.ok else set()
    return bool(statuses) and all(status["pid"] in clients for status in statuses)


def _watch(
    endpoints: Sequence[Endpoint], timeout_s: float
) -> tuple[float | None, int, list[Mapping[str, Any]]]:
    """Return seconds of a step (None if none ended meanwhile), the newest step, the statuses.

    Raises:
        ConfigError: No rank counts steps.
    """
    began_ns = now_ns()
    statuses = _steps(endpoints, timeout_s)
    first = newest = max((int(status["step"]) for status in statuses), default=-1)
    if newest < 0:
        raise ConfigError(
            message("refused.no_finished_step"), where="arm",
            remedy=message("advice.wait_for_step"),
        )  # fmt: skip
    while newest < first + 2 and now_ns() - began_ns < _LOOK_S * 1e9:
        threading.Event().wait(_POLL_S)
        statuses = _steps(endpoints, timeout_s) or statuses
        newest = max(int(status["step"]) for status in statuses)
    elapsed_s = (now_ns() - began_ns) / 1e9
    return (elapsed_s / (newest - first) if newest > first else None), newest, statuses


def _steps(endpoints: Sequence[Endpoint], timeout_s: float) -> list[Mapping[str, Any]]:
    return list(order(endpoints, "status", {}, (), timeout_s).done.values())
