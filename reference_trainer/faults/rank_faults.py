"""The faults of a job as they concern one rank, and which of them are on now."""

from __future__ import annotations

from collections.abc import Sequence

from meshscope.probe.schema.layout import ParallelLayout

from ..config.fault_plan import ResolvedFault
from ..layout.group_members import groups_of_axis
from .ground_truth import GroundTruth, Span


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
        # Which operations pass over a slow link shows when they are issued.
        self._own = [f for f in faults if f.spec.kind == "slow_link" or f.hits(rank)]
        self._slow_groups = {
            fault: _group_of(fault, layout) for fault in faults if fault.spec.kind == "slow_link"
        }

    def of(self, *kinds: str) -> list[ResolvedFault]:
        """Return this rank's faults of some kinds, on or off."""
        return [fault for fault in self._own if fault.spec.kind in kinds]

    def active(self, *kinds: str) -> list[ResolvedFault]:
        """Return this rank's faults of some kinds that are on in this step."""
        return [fault for fault in self.of(*kinds) if fault.active(self.step)]

    def any_active(self) -> bool:
        """Return whether any fault of the job is on in this step, on this rank or another."""
        return any(fault.active(self.step) for fault in self.all)

    def slow_group(self, fault: ResolvedFault) -> frozenset[int]:
        """Return the ranks whose links along an axis a fault makes slow."""
        return self._slow_groups[fault]

    def log(self, fault: ResolvedFault, span_ns: Span, **details: float | str) -> None:
        """Note a fault that was really applied."""
        self.truth.fault(fault.spec.kind, self.step, span_ns, **details)


def _group_of(fault: ResolvedFault, layout: ParallelLayout) -> frozenset[int]:
    """Return the group along a fault's axis that its rank is in."""
    groups = groups_of_axis(layout, fault.spec.axis)
    return frozenset(next(group for group in groups if fault.rank in group))
