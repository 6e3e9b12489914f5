"""What a gate found: data, no sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ..wording.limits import Limit


class Verdict(StrEnum):
    """The result of a check, and of a gate."""

    PASS = "pass"
    FAIL = "fail"
    IMPROVED = "improved"
    INCONCLUSIVE = "inconclusive"
    INCOMPARABLE = "incomparable"


class Reason(StrEnum):
    """Why a check has its verdict."""

    WITHIN = "within"
    """No loss beyond the margin is left possible."""
    SLOWER = "slower"
    FASTER = "faster"
    NO_LOSS_SEEN = "no_loss_seen"
    """The interval holds no change, and no loss beyond twice the margin."""
    MORE_RUNS = "more_runs"
    AT_MARGIN = "at_margin"
    """The change is so near the margin that more runs would not decide."""
    ONE_RUN = "one_run"
    """The tail of one run is a single event."""
    ONE_BASELINE_RUN = "one_baseline_run"
    COST_SHIFT = "cost_shift"
    EQUAL = "equal"
    MORE = "more"
    FEWER = "fewer"
    VARIES = "varies"
    """The count differs between the runs of the baseline already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One metric, held against the baseline."""

    metric: str
    verdict: Verdict
    reason: Reason
    ratio: float | None = None
    """Candidate over baseline; None where the baseline has none of it."""
    low: float | None = None
    high: float | None = None
    """Interval of the ratio: each bound errs in 5 % of cases or less."""
    margin_frac: float | None = None
    """Loss that is accepted, as a share of the metric."""
    before: float | None = None
    after: float | None = None
    """The metric in ns or as a count: means over the runs."""
    step_frac: float | None = None
    """Change of a class as a share of the baseline's step."""
    more_runs: int | None = None
    """How many more runs of the candidate would decide, about."""
    detail: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Moved:
    """A part of the step before and after; ns per step."""

    name: str
    before_ns: float
    after_ns: float

    @property
    def change_ns(self) -> float:
        """Return by how much it grew."""
        return self.after_ns - self.before_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """The whole comparison."""

    verdict: Verdict
    checks: tuple[Check, ...]
    setup: dict[str, tuple[object, object]]
    """What differs of the fingerprint: baseline and candidate."""
    explained: dict[str, tuple[object, object]] = field(default_factory=dict)
    """What differs and is judged by its counts, as microbatches by passes."""
    baseline_runs: int
    candidate_runs: tuple[str, ...]
    shifts: tuple[tuple[str, str], ...] = ()
    """Classes that rose, each with one that fell as much, while the step did not change."""
    classes: tuple[Moved, ...] = ()
    """Every class of time, the mean over ranks; their sum is the mean step."""
    stages: tuple[Moved, ...] = ()
    """Compute by stage; the largest change first."""
    drifting: tuple[str, ...] = ()
    """Runs that had not settled."""
    disturbed: tuple[tuple[str, float], ...] = ()
    """Runs far off the others of their side, with the ratio to their median."""
    broken: tuple[tuple[str, str], ...] = ()
    """Candidate runs that broke off, with how: such a candidate does not pass."""
    limits: tuple[Limit, ...] = ()
