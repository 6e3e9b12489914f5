"""Ranks that fell silent before a capture ended: at work for longer than ever, or stopped.

In a capture that was killed at work somebody is always the last, and is in the middle of
something that takes as long as it did before. A rank that stopped is silent for longer,
while the others go on until each of them waits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..hang import WaitGraph
from ..intervals import IntArray
from ..trace import FLIGHT_RECORDER, Trace
from .standstill_words import SHOWN, last_record_ns


def all_wait_for_silent(trace: Trace, graph: WaitGraph) -> bool:
    """Return whether all ranks wait for some that were silent for longer than ever before."""
    if not graph.absent or set(trace.ranks) - set(graph.absent) - set(graph.waiting):
        return False
    return all(silent > usual for silent, usual in (_silence(trace, r) for r in graph.absent))


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
    """Return how long a rank was silent at the end, and at most before; (0, 0) if not known."""
    times = _record_times(trace, rank)
    if len(times) < 2:
        return 0, 0
    return last_record_ns(trace) - int(times[-1]), int(np.diff(times).max())


def _record_times(trace: Trace, rank: int) -> IntArray:
    """Return the instants of which a rank has a record, in order."""
    parts = []
    for name in ("collective", "p2p"):
        own = trace.rank_frame(name, rank, ["issue_ns", "end_ns"])
        parts += [own["issue_ns"].dropna(), own["end_ns"].dropna()]
    spans = trace.rank_frame("span", rank, ["start_ns", "dur_ns"])
    parts += [spans["start_ns"], spans["start_ns"] + spans["dur_ns"]]
    return np.sort(np.concatenate([part.to_numpy(np.int64) for part in parts]))
