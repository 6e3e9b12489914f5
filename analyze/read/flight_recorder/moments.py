"""Dumps that were made before the others, while their rank still went on.

Four dumps; 15 has ended on three ranks, so rank 3 had issued it, and the dump of rank 3 is of an earlier moment::

    ranks 0, 1, 2    16 issued, 15 completed
    rank 3           10 issued, 10 completed
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from meshscope.probe.schema.terms import SYNCHRONISING

from ..kineto.groups import GroupIdentity
from .dump import Dump


class Outdated(NamedTuple):
    """A dump that others contradict."""

    dump: Dump
    group: str
    issued: int
    """The last collective of the group that its rank had issued."""
    completed: int
    """One that another member has seen complete, which nobody leaves before all have come."""


def outdated(dumps: Sequence[Dump]) -> list[Outdated]:
    """Return the dumps of ranks that have since issued what ended on other ranks; those with transfers tell nothing.

    Only ends that were seen count: the recorder also lets go of what timed out.

    Args:
        dumps: Those of one job, one a rank.
    """
    groups = GroupIdentity({dump.rank: dump.groups for dump in dumps})
    issued: dict[str, dict[int, int]] = defaultdict(dict)
    completed: dict[str, int] = defaultdict(int)
    with_transfers: set[str] = set()
    for dump in dumps:
        for name, (enqueued, _) in dump.status.items():
            issued[groups.of(dump.rank, name)][dump.rank] = enqueued
        for one in dump.operations:
            group = groups.of(dump.rank, one.group)
            if one.direction is not None:
                with_transfers.add(group)
                continue
            issued[group][dump.rank] = max(issued[group].get(dump.rank, 0), one.seq)
            if one.kind in SYNCHRONISING and one.is_end_seen:
                completed[group] = max(completed[group], one.seq)
    by_rank = {dump.rank: dump for dump in dumps}
    return [
        Outdated(by_rank.pop(rank), group, own, completed[group])
        for group, known in sorted(issued.items())
        if group not in with_transfers
        for rank, own in sorted(known.items())
        if own < completed[group] and rank in by_rank
    ]
