"""The verdict on one rank."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Persistence(StrEnum):
    """How long a rank was slow."""

    NONE = "none"
    """Not slower than noise."""
    PERSISTENT = "persistent"
    """Slow without a break, and still in the last step."""
    TRANSIENT = "transient"
    """Slow for a while, then as before."""
    INTERMITTENT = "intermittent"
    """Slow now and then: in several runs of steps, with healthy ones between them."""
    UNKNOWN = "unknown"
    """Nothing to compare it with: no peer, and too little past."""


class Evidence(StrEnum):
    """What a rank was found slow against."""

    PEERS = "peers"
    """The ranks of the same stage in other data-parallel replicas."""
    WORK = "work"
    """Those, after dividing by the work of each microbatch, as its sequences or the time that other
    stages took for it tell."""
    HISTORY = "history"
    """Its own earlier steps."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankVerdict:
    """What is known of one rank."""

    rank: int
    persistence: Persistence
    slowdown: float | None
    """Extra time for its own work in the slow steps, as a share of what was expected (0.05: 5 %);
    of a rank that is not slow, its mean over the window. None where unknown."""
    interval: tuple[float, float] | None
    """95 % confidence interval of ``slowdown``."""
    first_bad_step: int | None
    last_bad_step: int | None
    found_at_step: int | None
    """Step with which the evidence was enough; None offline where only the whole window was enough."""
    evidence: Evidence
    confidence: float
    """Chance that noise did not make it, 0..0.999; halved where others fit as well."""
    minimum_slowdown: float | None
    """Smallest slow-down through the whole window that would be found 95 times in 100."""
    unequal_work_ns: float | None = None
    """Time per step by which the rank exceeds its replicas because its microbatches are larger
    (negative: smaller), as other stages or its sequences tell; None where unknown."""
    ambiguous_with: tuple[int, ...] = ()
    """Ranks whose being slow would explain the same durations."""
    slow_steps: tuple[tuple[int, int], ...] = ()
    """First and last step of each run of slow steps; of a rank that is not suspected, those of
    steps that stand out by themselves."""

    @property
    def is_slow(self) -> bool:
        """Return whether the rank is suspected."""
        return self.persistence not in (Persistence.NONE, Persistence.UNKNOWN)


def calmed(verdict: RankVerdict) -> RankVerdict:
    """Return the verdict on a rank that is not slow after all."""
    return replace(
        verdict,
        persistence=Persistence.NONE,
        first_bad_step=None,
        last_bad_step=None,
        slow_steps=(),
    )
