"""What each fault of a synthetic job costs: the same job without it, simulated again.

The cost of a fault is never the delay that was put in: slack may absorb it, and other
faults may hide it. It is the difference to the paired job, which has the same jitter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..tables.arrays import IntArray
from .faults import Fault, FaultKind
from .job import SyntheticJob
from .simulate import make_simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultTruth:
    """One fault and what it really costs per step; None where the job hangs."""

    fault: Fault
    removal_gain_ns: float | None
    """What the step gets shorter when this fault alone is taken away."""
    alone_ns: float | None
    """What the step is longer than the clean one with this fault alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """The known answers of one synthetic job.

    A step time is the mean over ranks of the end of the last step, per step; of a
    job of one step it is the longest rank's.
    """

    step_time_ns: float | None
    """With all faults; None where the job hangs."""
    clean_step_time_ns: float
    """Without any."""
    joint_ns: float | None
    """Cost of all faults together."""
    step_ends_ns: tuple[int, ...]
    """When each step that was finished was over on every rank, with all faults."""
    faults: tuple[FaultTruth, ...]

    def to_json(self) -> dict[str, object]:
        """Return the form of ``truth.json``."""
        return {
            "synthetic": True,
            "step_time_ns": self.step_time_ns,
            "clean_step_time_ns": self.clean_step_time_ns,
            "joint_ns": self.joint_ns,
            "step_ends_ns": list(self.step_ends_ns),
            "faults": [
                {
                    "fault": one.fault.text(),
                    "kind": str(one.fault.kind),
                    "removal_gain_ns": one.removal_gain_ns,
                    "alone_ns": one.alone_ns,
                }
                for one in self.faults
            ],
        }


def truth_of(job: SyntheticJob) -> Truth:
    """Return the costs of the faults of a job, by simulating it without them.

    Raises:
        ConfigError: The schedule does not fit the layout.
    """
    found: dict[tuple[Fault, ...], float | None] = {}

    def step_time(faults: tuple[Fault, ...]) -> float | None:
        # Faults of the recording leave the job as it was.
        acting = tuple(fault for fault in faults if fault.kind not in _OF_THE_RECORD)
        if acting not in found:
            found[acting] = _step_time(job.without(*set(job.faults) - set(acting)))[0]
        return found[acting]

    whole, ends = _step_time(job)
    found[tuple(fault for fault in job.faults if fault.kind not in _OF_THE_RECORD)] = whole
    clean = step_time(())
    assert clean is not None, "a job without faults ends"
    return Truth(
        step_time_ns=whole,
        clean_step_time_ns=clean,
        joint_ns=_difference(whole, clean),
        step_ends_ns=ends,
        faults=tuple(
            FaultTruth(
                fault=fault,
                removal_gain_ns=_difference(
                    whole, step_time(tuple(other for other in job.faults if other is not fault))
                ),
                alone_ns=_difference(step_time((fault,)), clean),
            )
            for fault in job.faults
        ),
    )


_OF_THE_RECORD = (FaultKind.MISSING_COLLECTIVES, FaultKind.MISSING_RANK, FaultKind.CLOCK_SKEW)


def _difference(longer: float | None, shorter: float | None) -> float | None:
    return None if longer is None or shorter is None else longer - shorter


def _step_time(job: SyntheticJob) -> tuple[float | None, tuple[int, ...]]:
    """Return the step time (None if a rank hangs) and the ends of the finished steps."""
    ends: list[int] = []
    last: IntArray = np.zeros(1, np.int64)
    for times in make_simulation(job).steps():
        if times.is_stuck:
            return None, tuple(ends)
        last = times.end
        ends.append(int(last.max()))
    return float(last.max() if len(ends) == 1 else last.mean() / len(ends)), tuple(ends)
