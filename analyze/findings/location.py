"""On which machine and device the ranks of a finding run: where somebody has to go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..tables.results import Finding, Where
from ..tables.trace import Trace
from ..wording.message import Message, message

_MOST_RANKS = 8
"""Of more ranks the text would be a list that nobody reads."""


def located(finding: Finding, trace: Trace) -> Finding:
    """Return a finding with the hosts and devices of its ranks, as far as the capture knows them.

    A finding about one rank gets the host as part of its place, and each gets a sentence such
    as ``Runs on: rank 5 on host0000 (local rank 1, device GPU-6f1a…)``. One that names its host
    stays as it is.
    """
    where = finding.where
    ranks = ranks_named(where)
    if not ranks or "host" in where or not all(rank in trace.clocks for rank in ranks):
        return finding
    if len(ranks) == 1:
        where = {**where, "host": trace.clocks[ranks[0]]}
    lines = [_places(ranks, trace)] if len(ranks) <= _MOST_RANKS else []
    return replace(finding, where=where, evidence=(*finding.evidence, *lines))


def ranks_named(where: Where) -> list[int]:
    """Return the ranks that a place names, those at the ends of a link too."""
    if "rank" in where:
        return [where["rank"]]
    if "link" in where:
        ends = where["link"].replace("<", "").split("->")
        return [int(end) for end in ends if end.isdecimal()]
    return where.get("ranks", [])


def _places(ranks: Sequence[int], trace: Trace) -> Message:
    joined = trace.frame("rank_device")
    devices = dict(zip(joined["rank"].tolist(), joined["uuid"].astype(str), strict=True))
    return message(
        "location.places",
        places=[_place(rank, trace, devices.get(rank)) for rank in ranks],
    )


def _place(rank: int, trace: Trace, device: str | None) -> Message:
    host, local = trace.clocks[rank], trace.local_ranks.get(rank)
    if local is None and device is None:
        return message("location.rank", rank=rank, host=host)
    if device is None:
        return message("location.rank_local", rank=rank, host=host, local_rank=local)
    if local is None:
        return message("location.rank_device", rank=rank, host=host, device=device)
    return message(
        "location.rank_local_device", rank=rank, host=host, local_rank=local, device=device
    )
