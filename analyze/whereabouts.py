"""On which machine and device the ranks of a finding run: where somebody has to go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .capture.trace import Trace
from .results import Finding, Where

_MOST_RANKS = 8
"""Of more ranks the text would be a list that nobody reads."""


def located(finding: Finding, trace: Trace) -> Finding:
    """Return a finding with the hosts and devices of its ranks, as far as the capture knows them.

    A finding about one rank gets the host as part of its place, and each gets a sentence such
    as ``rank 5 runs on host0000, local rank 1, device GPU-6f1a…``. One that names its host
    stays as it is.
    """
    where = finding.where
    ranks = ranks_named(where)
    if not ranks or "host" in where or not all(rank in trace.clocks for rank in ranks):
        return finding
    if len(ranks) == 1:
        where = {**where, "host": trace.clocks[ranks[0]]}
    lines = [_sentence(ranks, trace)] if len(ranks) <= _MOST_RANKS else []
    return replace(finding, where=where, evidence=(*finding.evidence, *lines))


def ranks_named(where: Where) -> list[int]:
    """Return the ranks that a place names, those at the ends of a link too."""
    if "rank" in where:
        return [where["rank"]]
    if "link" in where:
        ends = where["link"].replace("<", "").split("->")
        return [int(end) for end in ends if end.isdecimal()]
    return where.get("ranks", [])


def _sentence(ranks: Sequence[int], trace: Trace) -> str:
    joined = trace.frame("rank_device")
    devices = dict(zip(joined["rank"].tolist(), joined["uuid"].astype(str), strict=True))
    places = (
        f"rank {rank} runs on {trace.clocks[rank]}"
        + (f", local rank {trace.local_ranks[rank]}" if rank in trace.local_ranks else "")
        + (f", device {devices[rank]}" if rank in devices else "")
        for rank in ranks
    )
    return "; ".join(places)
