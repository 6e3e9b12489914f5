"""Rings in which ranks hand parts of sequences on: context parallelism.

Ring attention sends keys and values one way round while the forward lasts, and gradients the other way
while the backward lasts. Over a step each rank then sends to both neighbours and gets back from both, as a stage
does; but a stage sends between passes, and the last one has nobody to hand on to. Three ranks, brackets
the passes and s a transfer::

    ring       0: F(s s) B(s s)     1: F(s s) B(s s)     2: F(s s) B(s s)
    stages     0: F() s s B()       1: s F() s s B() s   2: s F() B() s

Stages that send within their own forward are known from their numbers: of a ring each member sends as much,
while a row of stages, also one of several chunks a rank, sends less from its last to its first.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Direction, SpanKind

from ...tables.trace import Trace
from .pass_traffic import within

_BACKWARDS = [SpanKind.BACKWARD.value, SpanKind.BACKWARD_INPUT.value]
_FIRST_ASKED = 8
"""Ranks that tell whether any sends within a forward; few rings leave out all of them."""
_LEAST_OF_MOST = 0.9
"""How much of the most sends between two members the least may be: ranks end at different times."""


def rings(trace: Trace) -> list[tuple[int, ...]]:
    """Return the ranks of each ring, in the order in which its forward passes send.

    Only in captures of ours, where passes and sends are of one clock. Two ranks that send to each other
    within one forward are a ring too.
    """
    if (
        not trace.capabilities.is_in_issue_order
        or not trace.row_count("span")
        or not trace.row_count("p2p")
    ):
        return []
    senders = iter(sorted(set(trace.frame("p2p")["rank"].unique()) & set(trace.ranks)))
    sent: Counter[tuple[int, int]] = Counter()
    for rank in islice(senders, _FIRST_ASKED):
        sent.update(_sent_in_forward(trace, rank))
    if not sent:
        return []
    for rank in senders:
        sent.update(_sent_in_forward(trace, rank))
    return [ring for ring in _cycles(sent) if _is_even([sent[pair] for pair in _pairs_of(ring)])]


def ring_pairs(trace: Trace) -> set[tuple[int, int]]:
    """Return source and target of what rings send, either way round."""
    forth = {pair for ring in rings(trace) for pair in _pairs_of(ring)}
    return forth | {(target, source) for source, target in forth}


def _pairs_of(ring: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(pairwise((*ring, ring[0])))


def _is_even(counts: list[int]) -> bool:
    return min(counts) >= _LEAST_OF_MOST * max(counts)


def _cycles(pairs: Counter[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return the cycles of ranks of which each sends to one other.

    >>> _cycles(Counter([(0, 1), (1, 2), (2, 0), (4, 5), (5, 4), (6, 7)]))
    [(0, 1, 2), (4, 5)]
    """
    targets: dict[int, set[int]] = {}
    for source, target in pairs:
        targets.setdefault(source, set()).add(target)
    to = {source: next(iter(found)) for source, found in targets.items() if len(found) == 1}
    cycles = []
    for first in sorted(to):
        ring, at = [first], to.pop(first, first)
        while at in to:
            ring.append(at)
            at = to.pop(at)
        if at == first and len(ring) > 1:
            cycles.append(tuple(ring))
    return cycles


def _sent_in_forward(trace: Trace, rank: int) -> Counter[tuple[int, int]]:
    """Return how often a rank sends to others while one of its forward passes lasts."""
    spans = trace.rank_frame("span", rank, ["kind", "stage", "start_ns", "dur_ns"])
    forwards = _plain_forwards(spans)
    rows = trace.rank_frame("p2p", rank, ["peer", "direction", "issue_ns"])
    rows = rows[(rows["direction"] == Direction.SEND.value) & rows["issue_ns"].notna()]
    if forwards.empty or rows.empty:
        return Counter()
    peers = rows.loc[within(forwards, rows["issue_ns"].to_numpy(np.int64)), "peer"]
    return Counter({(rank, int(peer)): int(n) for peer, n in peers.value_counts().items()})


def _plain_forwards(spans: pd.DataFrame) -> pd.DataFrame:
    """Return the forwards of no named stage that hold no backward, as a whole schedule in a module does."""
    forwards = spans[(spans["kind"] == SpanKind.FORWARD.value) & (spans["stage"] < 0)]
    begun = np.sort(spans.loc[spans["kind"].isin(_BACKWARDS), "start_ns"].to_numpy(np.int64))
    start = forwards["start_ns"].to_numpy(np.int64)
    end = start + forwards["dur_ns"].to_numpy(np.int64)
    plain: pd.DataFrame = forwards[np.searchsorted(begun, start) == np.searchsorted(begun, end)]
    return plain
