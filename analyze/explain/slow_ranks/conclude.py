"""From what was measured on a rank to its verdict."""

from __future__ import annotations

import msgspec

from .noise import chance_of, quantile
from .verdict import Evidence, Persistence, RankVerdict

MAX_CONFIDENCE = 0.999
MIN_CONFIDENCE = 0.5
"""Below it, noise is the likelier explanation of what a test points at."""
HALF_OF_ERRORS = 0.025
"""Chance on either side of a 95 % interval."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A mean excess and how certain it is."""

    slowdown: float
    error: float
    degrees: float
    """Degrees of freedom behind ``error``."""

    @property
    def interval(self) -> tuple[float, float]:
        """Return the 95 % interval."""
        width = quantile(HALF_OF_ERRORS, self.degrees) * self.error
        return self.slowdown - width, self.slowdown + width

    def confidence(self, ranks: int, rivals: int) -> float:
        """Return the chance that noise did not make it in one of so many ranks."""
        chance = ranks * chance_of(self.slowdown / self.error, self.degrees)
        return min(MAX_CONFIDENCE, max(0.0, 1.0 - chance)) / (1 + rivals)


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """The steps in which a rank was slow."""

    runs: tuple[tuple[int, int], ...]
    """First and last step of each run, in their order; at least one."""
    found_at_step: int | None
    lasting: bool
    """Whether it is still slow."""

    @property
    def persistence(self) -> Persistence:
        """Return whether it lasts, is over, or comes and goes."""
        if len(self.runs) > 1:
            return Persistence.INTERMITTENT
        return Persistence.PERSISTENT if self.lasting else Persistence.TRANSIENT


def slow_verdict(
    rank: int,
    measured: Measured,
    stretch: Stretch,
    evidence: Evidence,
    *,
    ranks: int,
    rivals: tuple[int, ...] = (),
) -> RankVerdict:
    """Return the verdict on a suspect among so many ranks."""
    return RankVerdict(
        rank=rank,
        persistence=stretch.persistence,
        slowdown=measured.slowdown,
        interval=measured.interval,
        first_bad_step=stretch.runs[0][0],
        last_bad_step=stretch.runs[-1][1],
        found_at_step=stretch.found_at_step,
        evidence=evidence,
        confidence=measured.confidence(ranks, len(rivals)),
        minimum_slowdown=None,
        ambiguous_with=rivals,
        slow_steps=stretch.runs,
    )


def calm_verdict(rank: int, measured: Measured | None, evidence: Evidence) -> RankVerdict:
    """Return the verdict on a rank that no test points at, given its mean over the window."""
    is_known = evidence is not Evidence.NOTHING
    return RankVerdict(
        rank=rank,
        persistence=Persistence.NONE if is_known else Persistence.UNKNOWN,
        slowdown=measured.slowdown if measured else None,
        interval=measured.interval if measured else None,
        first_bad_step=None,
        last_bad_step=None,
        found_at_step=None,
        evidence=evidence,
        confidence=0.95 if is_known else 0.0,
        minimum_slowdown=None,
    )
