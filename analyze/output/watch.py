"""What there is to say of a running job after each look: sentences for people, values for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from ..account.hangs.rank_ends import ends_of_ranks
from ..account.mfu.utilization import utilization
from ..explain.slow_ranks import Evidence, Follower, Look, RankVerdict
from ..findings.rules.ended import ends_of
from ..tables.trace import Trace
from ..wording.message import Message, Text, message

_LEAST_SILENCE_NS = 30e9
_SILENT_STEPS = 10
"""So many usual steps without an end of one are reported, and not before ``_LEAST_SILENCE_NS``."""


class Event(NamedTuple):
    """One line.

    Attributes:
        kind: ``steps``, ``slow``, ``recovered``, ``anew``, ``silent``, ``broken_off`` or ``ended``.
        text: For people.
        values: For programs: times in ns, shares as fractions.
    """

    kind: str
    text: Text
    values: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the event for programs."""
        return {"event": self.kind, "text": str(self.text), **self.values}


class Watch:
    """Tells what is new in a running job, look by look."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._follower = Follower()
        self._usual_ns = 0.0
        self._changed_s: float | None = None
        self._reported_silence_ns = 0.0
        self.has_ended = False
        """Whether nothing can come any more: all ranks closed their captures, or their processes ended."""

    @property
    def next_step(self) -> int:
        """The first step that was not looked at."""
        return self._follower.last_step + 1

    def events(self, trace: Trace, now_s: float, *, is_gone: bool = False) -> Iterator[Event]:
        """Yield what is new in a capture.

        Args:
            trace: The capture as it is now.
            now_s: A clock that never goes back, s.
            is_gone: Whether the processes of all ranks were seen to be gone: not all note their end.
        """
        look = self._follower.look(trace)
        if look.steps is not None:
            yield from _changes(look)
            yield _progress(trace, look)
            self._usual_ns, self._reported_silence_ns = look.step_time_ns, 0.0
        if look.steps is not None or self._changed_s is None:
            self._changed_s = now_s
        self.has_ended = _has_ended(trace) or (is_gone and look.steps is None)
        if self.has_ended:
            yield from _end(trace, self._follower.last_step)
            return
        yield from self._silence(trace, (now_s - self._changed_s) * 1e9)

    def _silence(self, trace: Trace, silent_ns: float) -> Iterator[Event]:
        """Yield that no step ends, and who stands where: each time that it lasts twice as long."""
        least_ns = max(
            _LEAST_SILENCE_NS, _SILENT_STEPS * self._usual_ns, 2 * self._reported_silence_ns
        )
        if silent_ns < least_ns:
            return
        self._reported_silence_ns = silent_ns
        if self._follower.last_step < 0:
            yield Event("silent", message("watch.waiting"), {"silent_ns": silent_ns, "step": None})
            return
        text = message("watch.silent", silent_ns=silent_ns, last=self._follower.last_step)
        yield Event("silent", text, {"silent_ns": silent_ns, "step": self._follower.last_step})
        yield from _broken_off(trace)


def _changes(look: Look) -> Iterator[Event]:
    if look.began_anew:
        yield Event("anew", message("watch.anew"), {"step": look.steps and look.steps[0]})
    for own in look.found:
        yield Event("slow", _found(own), _verdict_values(own))
    for own in look.recovered:
        first, last = own.first_bad_step, own.last_bad_step
        text = message("watch.recovered", rank=own.rank, steps=(first, last))
        yield Event("recovered", text, _verdict_values(own))


def _progress(trace: Trace, look: Look) -> Event:
    first, last = look.steps or (-1, -1)
    mfu = utilization(trace, look.step_time_ns).mfu
    slow = [own.rank for own in look.slow]
    if not look.has_passes:
        state = message("watch.not_judged")
    else:
        state = message("watch.slow", ranks=slow) if slow else message("watch.none_slow")
    text = message(
        "watch.steps",
        last=last,
        step_time_ns=look.step_time_ns,
        mfu=message("watch.no_mfu") if mfu is None else message("watch.mfu", mfu=mfu),
        state=state,
    )
    values = {
        "first_step": first,
        "last_step": last,
        "step_time_ns": look.step_time_ns,
        "mfu": mfu,
        "slow_ranks": slow if look.has_passes else None,
    }
    return Event("steps", text, values)


_AGAINST = {
    Evidence.PEERS: message("watch.against_peers"),
    Evidence.WORK: message("watch.against_work"),
    Evidence.HISTORY: message("watch.against_history"),
}


def _found(own: RankVerdict) -> Message:
    who = message("watch.one", rank=own.rank)
    if own.ambiguous_with:
        who = message("watch.one_of", rank=own.rank, others=own.ambiguous_with)
    low, high = own.interval or (own.slowdown, own.slowdown)
    return message(
        "watch.found",
        who=who,
        first=own.first_bad_step,
        slowdown=own.slowdown,
        low=low,
        high=high,
        against=_AGAINST[own.evidence],
    )


def _verdict_values(own: RankVerdict) -> dict[str, Any]:
    low, high = own.interval or (None, None)
    return {
        "rank": own.rank,
        "first_bad_step": own.first_bad_step,
        "last_bad_step": own.last_bad_step,
        "found_at_step": own.found_at_step,
        "slowdown": own.slowdown,
        "slowdown_low": low,
        "slowdown_high": high,
        "evidence": str(own.evidence),
        "confidence": own.confidence,
        "ambiguous_with": list(own.ambiguous_with),
    }


def _has_ended(trace: Trace) -> bool:
    """Tell whether every rank closed its capture, or its process is known to have ended."""
    expected = 1 if trace.layout is None else trace.layout.world_size
    if len(trace.ranks) < expected:
        return False
    if trace.frame("progress").empty:
        return True
    return not ends_of_ranks(trace)["ended_ns"].isna().any()


def _end(trace: Trace, last_step: int) -> Iterator[Event]:
    broken = tuple(_broken_off(trace))
    yield from broken
    if not broken and not trace.frame("progress").empty:
        yield Event("broken_off", message("watch.gone", last=last_step), {"step": last_step})
    elif not broken:
        yield Event("ended", message("watch.ended", last=last_step), {"step": last_step})


def _broken_off(trace: Trace) -> Iterator[Event]:
    for end in ends_of(trace):
        values = {"finding": str(end.kind), "severity": str(end.severity)}
        yield Event("broken_off", end.claim, values)
