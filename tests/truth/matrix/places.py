"""Whether a finding points to the place of a fault."""

from functools import lru_cache

from tests.truth.matrix.jobs import position_of

from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.analyze.tables.results import Where

SLOW_RANKS = (FaultKind.SLOW_RANK, FaultKind.BLOCKED_RANK)
"""Faults of one rank's own work."""


def is_place(job: SyntheticJob, fault: Fault, where: Where) -> bool:
    """Return whether a place is that of the fault."""
    if fault.kind in (*SLOW_RANKS, FaultKind.CLOCK_DROP):
        return where.get("rank") == fault.rank
    if fault.kind is FaultKind.SLOW_STAGE:
        return where.get("stage") == position_of(job, fault.stage or 0)
    if fault.kind is FaultKind.HEAVY_HEAD:
        return where.get("stage") == position_of(job, job.stages - 1)
    if fault.kind is FaultKind.HEAVY_EMBEDDING:
        return where.get("stage") == position_of(job, 0)
    if fault.kind is FaultKind.SLOW_LINK and fault.peer is not None:
        ends = sorted((fault.rank or 0, fault.peer))
        return where.get("link") == f"{ends[0]}<->{ends[1]}"
    if fault.kind is FaultKind.SLOW_LINK:
        group = where.get("group_id", "")
        return where.get("axis") == fault.axis and fault.rank in _members(job).get(group, ())
    return where.get("rank", fault.rank) == fault.rank


@lru_cache(maxsize=1)
def _members(job: SyntheticJob) -> dict[str, tuple[int, ...]]:
    groups = generate(job)[0].frame("group")
    return {
        str(name): tuple(ranks)
        for name, ranks in zip(groups["group_id"], groups["ranks"], strict=True)
    }
