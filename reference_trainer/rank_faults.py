"""The faults of a job as they concern one rank, and which of them are on now."""

from __future__ import annotations

from collections.abc import Sequence

from meshscope.probe.schema.layout import ParallelLayout

from .fault_plan import ResolvedFault
from .ground_truth import GroundTruth, Span
from .group_members import groups_of_axis


class RankFaults:
    """Which faults are on in the step that has begun.

    Args:
        faults: All faults of the job.
        layout: The mesh.
        rank: Global rank of this process.
        truth: Where applied faults are noted.

    Attributes:
        rank: Global rank of this process.
        all: All faults of the job.
        truth: Where applied faults are noted.
        step: Index of the step that has begun; -1 before the first.
    """

    def __init__(
        self,
        faults: Sequence[ResolvedFault],
        layout: ParallelLayout,
        rank: int,
        truth: GroundTruth,
    ) -> None:
        self.rank = rank
        self.all = tuple(faults)
        self.truth = truth
        self.step = -1
        self._own = [fault for fault in faults if _concerns(fault, layout, rank)]

    def of(self, *kinds: str) -> list[ResolvedFault]:
        """Return this rank's faults of some kinds, on or off."""
        return [fault for fault in self._own if fault.spec.kind in kinds]

    def active(self, *kinds: str) -> list[ResolvedFault]:
        """Return this rank's faults of some kinds that are on in this step."""
        return [fault for fault in self.of(*kinds) if fault.active(self.step)]

    def any_active(self) -> bool:
        """Return whether any fault of the job is on in this step, on this rank or another."""
        return any(fault.active(self.step) for fault in self.all)

    def log(self, fault: ResolvedFault, span_ns: Span, **details: float | str) -> None:
        """Note a fault that was really applied."""
        self.truth.fault(fault.spec.kind, self.step, span_ns, **details)


def _concerns(fault: ResolvedFault, layout: ParallelLayout, rank: int) -> bool:
    """Return whether a rank has something to do for a fault."""
    spec = fault.spec
    if spec.kind == "slow_link":
        return _shares_link(fault, layout, rank)
    return fault.hits(rank)


def _shares_link(fault: ResolvedFault, layout: ParallelLayout, rank: int) -> bool:
    """Return whether operations of a rank may pass over the slow link.

    Collectives of a group pass over all its links; messages over one.
    """
    group = next(group for group in groups_of_axis(layout, fault.spec.axis) if fault.rank in group)
    if fault.spec.axis == "pp" and fault.spec.peer is not None:
        return rank in (fault.rank, fault.spec.peer)
    return rank in group
