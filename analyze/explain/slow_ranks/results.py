"""What a detection returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from ...wording.limits import Limit
from .verdict import RankVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionResult:
    """Verdicts of all ranks, the slowest suspect first."""

    verdicts: tuple[RankVerdict, ...]
    scores: pd.DataFrame
    """step, rank, score: extra time of the step against what was expected (0.05: 5 %)."""
    steps: int
    minimum_slowdown: float | None
    """Median over the ranks of their ``minimum_slowdown``; None where no rank has one."""
    limits: tuple[Limit, ...] = field(default=())
    together: RankVerdict | None = None
    """How slow all ranks became together, as of one rank; None: they did not, or it was not asked."""

    @property
    def suspects(self) -> tuple[RankVerdict, ...]:
        """Return the verdicts of the slow ranks, the slowest first."""
        return tuple(verdict for verdict in self.verdicts if verdict.is_slow)

    def of(self, rank: int) -> RankVerdict:
        """Return the verdict of one rank.

        Raises:
            KeyError: The rank was not in the durations.
        """
        for verdict in self.verdicts:
            if verdict.rank == rank:
                return verdict
        raise KeyError(rank)
