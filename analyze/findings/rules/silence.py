"""Ranks that fell silent before a capture ended: at work for longer than ever, or stopped.

In a capture that was killed at work somebody is always the last, and is in the middle of
something that takes as long as it did before. A rank that stopped is silent for longer,
while the others go on until each of them waits. Where all are silent for long and are then
killed together, the job stood still, though no record says in what.
"""

from __future__ import annotations

from collections.abc import Iterator
from signal import SIGKILL

import numpy as np

from meshscope.probe.schema.terms import FindingKind, Severity, StepDetail

from ...account.hangs.hang import WaitGraph
from ...account.hangs.rank_ends import ends_of_ranks, killed_first
from ...account.hangs.stacks import (
    Meeting,
    away_from_call,
    different_calls,
    meeting,
    stack_messages,
)
from ...account.hangs.standstill import Standstill, left_behind, stood_still
from ...account.hangs.unrecorded_ranks import lost_ranks
from ...align.steps.last_records import last_record_ns
from ...tables.arrays import IntArray
from ...tables.results import Finding
from ...tables.trace import Trace
from ...wording.message import Message, message
from ...wording.words import exit_words
from .standstill_words import (
    SHOWN,
    killed_of,
    step_counts,
    steps_message,
    unlike_messages,
    unlike_passes,
    where_of,
    with_attempt,
)


def all_wait_for_silent(trace: Trace, graph: WaitGraph) -> bool:
    """Return whether all ranks wait for some that were silent for longer than ever before."""
    if not graph.absent or set(trace.ranks) - set(graph.absent) - set(graph.waiting):
        return False
    return all(silent > usual for silent, usual in (_silence(trace, r) for r in graph.absent))


def all_silent(
    trace: Trace, patience_ns: tuple[float, float], step_time_ns: float | None
) -> Iterator[Finding]:
    """Yield that no rank recorded anything for long, where no open operation tells who waited.

    Args:
        trace: A capture that broke off.
        patience_ns: From which silence is long, and from which it is a standstill.
        step_time_ns: Usual length of a step, where it is known.
    """
    if not trace.capabilities.records_whole_life:
        return
    found = stood_still(trace, patience_ns[0])
    if found is None:
        yield from _left_behind(trace, patience_ns)
        return
    claim = message("hang.job", silent_ns=found.silent_ns)
    dead = killed_first(trace)
    met = meeting(trace) or away_from_call(trace, lost_ranks(trace), dead)
    evidence = [*(_deaths(trace, dead) or [_together(trace, found)]), message("hang.no_open")]
    calls = () if met is not None else different_calls(trace)
    if calls:
        said = [message("hang.call_of", ranks=one.waiting, function=one.function) for one in calls]
        claim = message("hang.different_calls", calls=said, silent_ns=found.silent_ns)
    if met is not None:
        waiting = {"absent": met.absent, "function": met.function, "waiting": len(met.waiting)}
        claim = message("hang.not_met", **waiting, silent_ns=found.silent_ns)
        evidence.pop()
    steps = round(found.silent_ns / step_time_ns) if step_time_ns else None
    yield Finding(
        kind=FindingKind.HANG,
        severity=Severity.CRITICAL if found.silent_ns >= patience_ns[1] else Severity.WARNING,
        where=where_of(_named(trace, met, calls), trace),
        claim=claim if _may_lack_marks(trace) else with_attempt(claim, trace),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.8,
        evidence=(
            *([message("hang.job_steps", steps=steps)] if steps is not None else ()),
            *evidence,
            *stack_messages(trace, trace.ranks, most=SHOWN),
        ),
        remedy=_remedy(trace, met, calls),
    )


def _deaths(trace: Trace, ranks: tuple[int, ...]) -> list[Message]:
    """Return which ranks were killed at the end of the silence, before the others ended."""
    if not ranks:
        return []
    status = ends_of_ranks(trace).loc[list(ranks), "wait_status"].astype(int)
    how = sorted(set(map(exit_words, status)))
    said = [message("hang.then_died", ranks=ranks, how=how)]
    return [*said, message("crash.killed")] if SIGKILL in set(status) else said


def _left_behind(trace: Trace, patience_ns: tuple[float, float]) -> Iterator[Finding]:
    """Yield that some ranks neither recorded anything for long nor ended, while the others had ended in order."""
    found = left_behind(trace, patience_ns[0])
    if found is None:
        return
    left = [rank for rank in trace.ranks if rank not in found.done]
    claim = message("hang.left", ranks=left, ended=found.done, silent_ns=found.silent_ns)
    steps = step_counts(trace, found.done, left)
    has_stacks = set(trace.frame("standing")["rank"]).issuperset(left)
    yield Finding(
        kind=FindingKind.HANG,
        severity=Severity.CRITICAL if found.silent_ns >= patience_ns[1] else Severity.WARNING,
        where=where_of(left, trace),
        claim=claim,
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.8,
        evidence=(
            *stack_messages(trace, left, most=SHOWN),
            *(() if steps is None else (steps_message(found.done, steps),)),
            *unlike_passes(trace),
            *unlike_messages(trace),
            *killed_of(trace, left),
            *((_interrupt_of(left, found),) if found.interrupted else ()),
        ),
        remedy=message("hang.job_remedy_stacks") if has_stacks else message("hang.job_remedy"),
    )


def _named(trace: Trace, met: Meeting | None, calls: tuple[Meeting, ...]) -> tuple[int, ...]:
    """Return the ranks that a finding names: those elsewhere, those in the rarest call, else all."""
    if met is not None:
        return met.absent
    return calls[0].waiting if calls else tuple(trace.ranks)


def _remedy(trace: Trace, met: Meeting | None, calls: tuple[Meeting, ...]) -> Message:
    if met is not None:
        if set(trace.frame("standing")["rank"]).issuperset(met.absent):
            return message("hang.remedy_stacks", absent=met.absent)
        return message("hang.remedy", absent=met.absent)
    if calls:
        return message("hang.different_calls_remedy")
    if set(trace.frame("standing")["rank"]).issuperset(trace.ranks):
        return message("hang.job_remedy_stacks")
    return message("hang.job_remedy")


def _may_lack_marks(trace: Trace) -> bool:
    """Return whether the only start of a job did something: then its steps may have no marks."""
    return trace.row_count("attempt") == 1 and bool(trace.row_count("span"))


def ended_together(trace: Trace, patience_ns: float) -> Iterator[Message]:
    """Say that all processes were ended together after a long silence, where they were."""
    found = stood_still(trace, patience_ns) if trace.capabilities.records_whole_life else None
    if found is not None:
        yield message("hang.no_records", silent_ns=found.silent_ns)
        yield _together(trace, found)


def _together(trace: Trace, found: Standstill) -> Message:
    if found.interrupted:
        return message("hang.interrupted", between_ns=found.between_ns)
    if found.gave_up:
        ended_by = ends_of_ranks(trace)["ended_by"]
        how = sorted(set(ended_by[list(found.gave_up)].astype(str)))
        return message("hang.gave_up", ranks=found.gave_up, how=how, between_ns=found.between_ns)
    return message("hang.ended_together", between_ns=found.between_ns)


def _interrupt_of(ranks: list[int], found: Standstill) -> Message:
    if found.between_ns:
        return message("hang.interrupted", between_ns=found.between_ns)
    return message("crash.ended_by", ranks=ranks, how="Ctrl-C")


def silences(trace: Trace, graph: WaitGraph) -> Iterator[Message]:
    """Say of the first few that did not arrive how long they were silent, and were before."""
    if not trace.capabilities.records_whole_life:
        return
    for rank in graph.absent[:SHOWN]:
        silent_ns, usual_ns = _silence(trace, rank)
        if silent_ns > usual_ns:
            yield message("hang.silent_rank", rank=rank, silent_ns=silent_ns, usual_ns=usual_ns)


def _silence(trace: Trace, rank: int) -> tuple[int, int]:
    """Return how long a rank was silent at the end, and at most before; (0, 0) if not known.

    A gap with a step in it of which no more than the length is known was no silence.
    """
    times = _record_times(trace, rank)
    steps = trace.rank_frame("step", rank, ["start_ns", "detail"])
    is_bare = steps["detail"].astype(object) == StepDetail.STEPS.value
    bare_ns = np.sort(steps.loc[is_bare, "start_ns"].to_numpy(np.int64))
    gaps = np.diff(times)[np.diff(np.searchsorted(bare_ns, times)) == 0]
    if not len(gaps):
        return 0, 0
    return last_record_ns(trace) - int(times[-1]), int(gaps.max())


def _record_times(trace: Trace, rank: int) -> IntArray:
    """Return the instants of which a rank has a record, in order."""
    parts = []
    for name in ("collective", "p2p"):
        own = trace.rank_frame(name, rank, ["issue_ns", "end_ns"])
        parts += [own["issue_ns"].dropna(), own["end_ns"].dropna()]
    spans = trace.rank_frame("span", rank, ["start_ns", "dur_ns"])
    parts += [spans["start_ns"], spans["start_ns"] + spans["dur_ns"]]
    return np.sort(np.concatenate([part.to_numpy(np.int64) for part in parts]))
