"""What sends between ranks say about the axis of a group: stages of a pipeline, or a ring that hands sequences on.

Ring attention sends keys and values one way round while the forward lasts, and gradients the other way
while the backward lasts. Over a step each rank then sends to both neighbours and gets back from both, as a stage
does; but a stage sends between passes, and the last one has nobody to hand on to. Three ranks, brackets
the passes and s a transfer::

    ring       0: F(s s) B(s s)     1: F(s s) B(s s)     2: F(s s) B(s s)
    stages     0: F() s s B()       1: s F() s s B() s   2: s F() B() s

Stages that send within their own forward are known from their numbers: of a ring each member sends as much,
while a row of stages, also one of several chunks a rank, sends less from its last to its first.

A stage sends to the one before it and the one after it, and does so between passes: what a
forward has computed goes on before the backward comes, and gradients come back. A server of parameters has as many peers
as it has workers, or no passes, and its workers send after their backward. Three ranks in a row,
F and B the passes and s a transfer::

    stages     0: F s . s B     1: s F s s B s     2: s F B s       all but the last send after an F
    workers    0: s s s s       1: s F B s         2: s F B s       none does, and 0 has no passes
"""

from __future__ import annotations

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Direction, SpanKind

from ...tables.trace import Trace
from ...wording.message import Text, message
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


MOST_PEERS = 2
MOST_ASKED = 64
"""Ranks of which passes are looked at."""
_FORWARD = SpanKind.FORWARD.value
_PASSES = [_FORWARD, SpanKind.BACKWARD.value, SpanKind.BACKWARD_INPUT.value]


def why_no_pipeline(trace: Trace, pairs: set[tuple[int, int]]) -> Text:
    """Return why ranks that are joined by sends are no stages; empty where they may be.

    Passes are looked at in captures of ours only, where they and the sends are of one clock.

    Args:
        trace: A capture.
        pairs: Source and target of the sends between ranks that are joined.
    """
    peers = Counter(rank for pair in {tuple(sorted(pair)) for pair in pairs} for rank in pair)
    if not peers:
        return ""
    rank, most = max(peers.items(), key=lambda item: (item[1], -item[0]))
    if most > MOST_PEERS:
        return message("mesh.too_many_peers", rank=rank, peers=most, most=MOST_PEERS)
    if not trace.capabilities.is_in_issue_order or not trace.row_count("span"):
        return ""
    kinds = trace.frame("span")["kind"]
    if not (kinds == _FORWARD).any():
        return ""
    if kinds.isin(_PASSES[1:]).any() and not pairs & {(target, source) for source, target in pairs}:
        source, target = min(pairs)
        return message("mesh.nothing_back", source=source, target=target)
    asked = [rank for rank in sorted(peers) if rank in trace.ranks][:MOST_ASKED]
    after = {rank: _sends_after_forward(trace, rank) for rank in asked}
    idle = [rank for rank, found in after.items() if found is None]
    if idle:
        return message("mesh.no_forward", rank=idle[0])
    # The last stage of each pipeline may do a backward right after its forward.
    never = [rank for rank, found in after.items() if not found]
    if len(never) > len(asked) / 2:
        return message("mesh.nothing_between", rank=never[0])
    return ""


def why_other_order(trace: Trace, pairs: set[tuple[int, int]]) -> Text:
    """Return why the stages of a pipeline do not lie in the order of its ranks; empty if they may.

    A mesh numbers stages as the ranks rise. What holds for the first or the last stage would be said of
    others where a trainer has placed them otherwise. Only of a row of ranks is the order known.

    Args:
        trace: A capture.
        pairs: Source and target of the sends between ranks that are joined.
    """
    row = _row(pairs)
    if row and _begins_with_send(trace, row[-1]) and not _begins_with_send(trace, row[0]):
        row = row[::-1]
    if row == sorted(row):
        return ""
    return message("mesh.other_order", row=row)


def _row(pairs: set[tuple[int, int]]) -> list[int]:
    """Return the ranks from one end to the other; [] where they are no row."""
    near: dict[int, set[int]] = {}
    for one, other in pairs:
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    ends = sorted(rank for rank, peers in near.items() if len(peers) == 1)
    if len(ends) != MOST_PEERS or any(len(peers) > MOST_PEERS for peers in near.values()):
        return []
    row, before = [ends[0]], -1
    while len(row) < len(near) and (ahead := near[row[-1]] - {before}):
        before = row[-1]
        row.append(ahead.pop())
    return row


def _begins_with_send(trace: Trace, rank: int) -> bool:
    """Return whether a rank sends before it receives in most steps, as a first stage does."""
    if not trace.capabilities.is_in_issue_order:
        return False
    rows = trace.rank_frame("p2p", rank, ["step", "direction", "issue_ns"])
    first = rows.dropna(subset="issue_ns").sort_values("issue_ns").drop_duplicates("step")
    return bool(len(first) and (first["direction"] == Direction.SEND.value).mean() > 1 / 2)


def _sends_after_forward(trace: Trace, rank: int) -> bool | None:
    """Return whether a rank exchanges between a forward and its next backward; None without passes."""
    spans = trace.rank_frame("span", rank, ["kind", "stage", "start_ns"])
    passes = spans[spans["kind"].isin(_PASSES)].sort_values("start_ns")
    if not (passes["kind"] == _FORWARD).any():
        return None
    if (passes["stage"] >= 0).any():
        return True  # The framework has named the stage.
    issued = trace.rank_frame("p2p", rank, ["issue_ns"])["issue_ns"].dropna().to_numpy(np.int64)
    before = np.searchsorted(passes["start_ns"].to_numpy(np.int64), issued, side="right") - 1
    is_forward = (passes["kind"] == _FORWARD).to_numpy(bool)
    # After the last pass nothing tells that a backward comes.
    inside = (before >= 0) & (before < len(passes) - 1)
    return bool(is_forward[before[inside]].any())
