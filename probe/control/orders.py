"""What a user orders of all ranks of a run at once, and what became of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..clock import now_ns
from ..schema.errors import ConfigError
from ..schema.message import message
from .client import Answer, Endpoint, ask_all
from .finding import is_alive

_POLL_S = 0.1
_STEP_MARGINS = (20, 200, 2000)
"""How far ahead a step is set for all ranks; more where steps are short."""


@dataclass(slots=True)
class Outcome:
    """What the ranks answered."""

    done: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Last status of the ranks that do what was ordered."""
    pending: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Status of those that will, when their main thread runs Python again."""
    failed: dict[int, str] = field(default_factory=dict)
    """Why the others do not."""


def order(
    endpoints: Sequence[Endpoint],
    verb: str,
    fields: Mapping[str, object],
    wanted: Sequence[str],
    timeout_s: float,
) -> Outcome:
    """Send a verb to all ranks, then wait until each is in a wanted state.

    Args:
        endpoints: Whom to ask.
        verb: What to ask for.
        fields: Its fields.
        wanted: States in which the order is done; empty if an answer is enough.
        timeout_s: How long to wait, over all.
    """
    deadline_ns = now_ns() + int(timeout_s * 1e9)
    outcome = Outcome()
    waiting = _sort(ask_all(endpoints, verb, fields, timeout_s), wanted, outcome)
    while waiting and now_ns() < deadline_ns:
        threading.Event().wait(_POLL_S)
        waiting = _sort(ask_all(waiting, "status", {}, timeout_s), wanted, outcome)
    return outcome


def change_level(
    endpoints: Sequence[Endpoint], level: str, timeout_s: float
) -> tuple[int, Outcome]:
    """Set a level from the same step on all ranks; return that step and the answers.

    All ranks are asked for their step, and one is set that none has reached. Where
    one has when the order comes, a step further ahead is set for all.

    Raises:
        ConfigError: No rank is counting steps.
    """
    for margin in _STEP_MARGINS:
        status = order(endpoints, "status", {}, (), timeout_s)
        steps = [int(found["step"]) for found in status.done.values()]
        if max(steps, default=-1) < 0:
            raise ConfigError(
                message("refused.no_finished_step"),
                where="level",
                remedy=message("advice.attach_first"),
            )
        first_step = max(steps) + margin
        fields = {"level": level, "first_step": first_step}
        outcome = order(endpoints, "level", fields, (), timeout_s)
        if not any("has begun already" in reason for reason in outcome.failed.values()):
            break
    return first_step, outcome


def _sort(answers: Sequence[Answer], wanted: Sequence[str], outcome: Outcome) -> list[Endpoint]:
    """Note each answer; return those that are on their way."""
    waiting = []
    for endpoint, reply, silence in answers:
        rank = endpoint.rank
        if reply is None and wanted == ("off",) and rank in outcome.pending:
            # It has closed its socket, as it was asked to.
            outcome.done[rank] = outcome.pending.pop(rank)
        elif reply is None:
            if is_alive(endpoint.pid) or rank not in outcome.done:
                outcome.failed.setdefault(rank, silence)
            if outcome.pending.get(rank, {}).get("pid") == endpoint.pid:
                # Nobody is left who could follow.
                del outcome.pending[rank]
        elif not reply.ok:
            outcome.failed[rank] = reply.error
        elif not wanted or reply.result.get("state") in wanted:
            outcome.done[rank] = reply.result
            outcome.pending.pop(rank, None)
        elif reply.result.get("error"):
            outcome.failed[rank] = str(reply.result["error"])
        else:
            outcome.pending[rank] = reply.result
            waiting.append(endpoint)
    for rank in outcome.done:
        # A process that this rank had before, and that was killed.
        outcome.failed.pop(rank, None)
    return waiting
