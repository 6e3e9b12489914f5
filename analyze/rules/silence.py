"""Ranks that fell silent before a capture ended: at work for longer than ever, or stopped.

In a capture that was killed at work somebody is always the last, and is in the middle of
something that takes as long as it did before. A rank that stopped is silent for longer,
while the others go on until each of them waits. Where all are silent for long and are then
killed together, the job stood still, though no record says in what.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pandas import isna

from meshscope.probe.schema.terms import FindingKind, Severity, StepDetail

from ..arrays import IntArray
from ..capture.trace import FLIGHT_RECORDER, Trace
from ..hangs.ended import Standstill, stood_still
from ..hangs.hang import WaitGraph
from ..hangs.stacks import stack_words
from ..results import Finding
from .standstill_words import SHOWN, last_record_ns, where_of


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
    found = None if trace.origin == FLIGHT_RECORDER else stood_still(trace, patience_ns[0])
    if found is None:
        return
    stacks = "the stacks of the next run that stands still (py-spy dump)"
    if set(trace.frame("standing")["rank"]).issuperset(trace.ranks):
        stacks = "what they were in (above)"
    steps = f", as long as {found.silent_ns / step_time_ns:.0f} steps" if step_time_ns else ""
    yield Finding(
        kind=FindingKind.HANG,
        severity=Severity.CRITICAL if found.silent_ns >= patience_ns[1] else Severity.WARNING,
        where=where_of(trace.ranks, trace),
        claim=f"The job stood still{_before_which_step(trace)}: no rank recorded anything in the last "
        f"{found.silent_ns / 1e9:.1f} s{steps}",
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.8,
        evidence=(
            _together(found),
            "no operation that was recorded is open on one rank and not on another: who waited for whom "
            "is not known",
            *stack_words(trace, trace.ranks, most=SHOWN),
        ),
        remedy=f"Look at what the ranks did instead, at {stacks}: a lock, a queue, a checkpoint, "
        "communication of a background thread; if nobody and no time limit ended the job, look at the "
        "exit codes and logs of all ranks",
    )


def _before_which_step(trace: Trace) -> str:
    """Say that no step had ended, in the whole job or since its last start."""
    starts = trace.frame("attempt")
    if starts.empty or not isna(starts["last_step"].iloc[-1]):
        return ""
    if len(starts) == 1 and trace.row_count("span"):
        return ""  # It did something, and steps may have no marks.
    number = int(starts["attempt"].iloc[-1])
    return " before its first step" + (f" of attempt {number}" if number > 1 else "")


def ended_together(trace: Trace, patience_ns: float) -> Iterator[str]:
    """Say that all processes were ended together after a long silence, where they were."""
    found = None if trace.origin == FLIGHT_RECORDER else stood_still(trace, patience_ns)
    if found is not None:
        yield (
            f"no rank recorded anything in the last {found.silent_ns / 1e9:.1f} s; {_together(found)}"
        )


def _together(found: Standstill) -> str:
    return (
        f"all processes then ended within {found.between_ns / 1e9:.2f} s, none in order: they were ended "
        "together, and who was first says nothing"
    )


def silences(trace: Trace, graph: WaitGraph) -> Iterator[str]:
    """Say of the first few that did not arrive how long they were silent, and were before."""
    if trace.origin == FLIGHT_RECORDER:
        return
    for rank in graph.absent[:SHOWN]:
        silent_ns, usual_ns = _silence(trace, rank)
        if silent_ns > usual_ns:
            yield (
                f"rank {rank} recorded nothing in the last {silent_ns / 1e6:.1f} ms, in which others still "
                f"did; before, it was never silent for longer than {usual_ns / 1e6:.1f} ms"
            )


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
