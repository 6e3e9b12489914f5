"""From durations, or a capture, to the verdict on every rank."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout

from ..trace import Trace
from .cube import BoolArray, FloatArray
from .durations import durations_of
from .grid import Grid, grid_of
from .noise import chance_of, quantile
from .offline import (
    Scored,
    Tested,
    Window,
    level_error,
    run_tests,
)
from .results import DetectionResult
from .settings import DetectionSettings
from .thresholds import deviation_of_step, own_border, references_of
from .verdict import Evidence, Persistence, RankVerdict

MAX_SUSPECTS = 16
ALIKE = 0.5
"""A second rank at this share of the first one's strength may be the slow one as well."""
MAX_CONFIDENCE = 0.999
POWER_DEVIATE = 1.645
"""Normal deviate of a hit rate of 95 %."""


def detect(
    durations: pd.DataFrame | Trace,
    layout: ParallelLayout | None = None,
    settings: DetectionSettings | None = None,
) -> DetectionResult:
    """Return which ranks take longer for their own work than they should, and since when.

    Args:
        durations: A capture, or a table of own durations without waiting: rank, step,
            kind, microbatch, dur_ns; optionally chunk, tokens and sum_sq (sum of squared
            sequence lengths).
        layout: The mesh of a table; that of a capture comes with it.
        settings: What counts as slow.

    Raises:
        TraceFormatError: There is no duration to look at, or a column is absent.
    """
    settings = settings or DetectionSettings()
    if isinstance(durations, Trace):
        layout = durations.layout
        durations = durations_of(durations)
    grid = grid_of(durations, layout)
    window = Window(grid)
    trusted = grid.cube.present
    found: list[_Suspect] = []
    scored, tested = _look(window, trusted, settings)
    while (rank := _surest(scored, tested, found)) is not None and len(found) < _most_suspects(
        grid
    ):
        suspect = _Suspect(rank, scored, tested)
        found.append(suspect)
        trusted = _without(window, trusted, rank)
        scored, tested = _look(window, trusted, settings)
        suspect.rivals = _rivals(suspect, tested, found)
    return _result(window, settings, found, (scored, tested))


class _Suspect:
    """A rank (by position) with the scores in which it stood out."""

    def __init__(self, position: int, scored: Scored, tested: Tested) -> None:
        self.position = position
        self.scored = scored
        self.tested = tested
        self.rivals: list[int] = []


def _look(window: Window, trusted: BoolArray, settings: DetectionSettings) -> tuple[Scored, Tested]:
    scored = window.score(trusted, settings)
    return scored, run_tests(scored, window.grid.steps, settings)


def _most_suspects(grid: Grid) -> int:
    return min(MAX_SUSPECTS, max(1, len(grid.cube.ranks) // 2))


def _surest(scored: Scored, tested: Tested, found: list[_Suspect]) -> int | None:
    """Return the rank that stands out most, None if none does.

    Ranks that changed come first: of two replicas, a slow one makes ranks of the other
    one stand out against their peers, but not against their own past.
    """
    weight = _weights(scored, tested)
    weight[[suspect.position for suspect in found]] = 0.0
    changed = np.where(tested.history.strength >= 1.0, weight, 0.0)
    if changed.any():
        weight = changed
    best = int(weight.argmax())
    return best if weight[best] > 0 else None


def _weights(scored: Scored, tested: Tested) -> FloatArray:
    """Return the deviates of the ranks that a test points at, 0 for the others.

    The excess over its stretch, in errors: what a slow rank does to those that are
    compared with it is smaller, however long it lasts.
    """
    weight = np.zeros(len(tested.level))
    for position in np.flatnonzero(np.nan_to_num(tested.strength) >= 1.0):
        stretch = _stretch(scored, tested, int(position))
        bad = stretch.excess[np.isfinite(stretch.excess)]
        mean = float(bad.mean()) if len(bad) else 0.0
        weight[position] = max(mean, 0.0) * np.sqrt(len(bad)) / scored.noise.sigma[position]
    return weight


@dataclass(frozen=True, slots=True)
class _Stretch:
    """The steps in which a rank was slow, by positions."""

    series: FloatArray
    """Scores of the whole window against what the rank was found slow against."""
    first: int
    last: int
    by_history: bool

    @property
    def excess(self) -> FloatArray:
        """Return the scores of the stretch."""
        return self.series[self.first : self.last + 1]


def _stretch(scored: Scored, tested: Tested, position: int) -> _Stretch:
    """Return the stretch of the test that points most at a rank."""
    against_peers = max(_at(tested.level, position), _at(tested.peers.strength, position))
    if _at(tested.history.strength, position) > against_peers:
        first, last = int(tested.history.first[position]), int(tested.history.last[position])
        series = _above_past(scored.own[:, position], first, last)
        return _Stretch(series, first, last, by_history=True)
    series = scored.peers[:, position]
    first, last = int(tested.peers.first[position]), int(tested.peers.last[position])
    if _at(tested.peers.strength, position) < 1.0:
        first, last = 0, len(series) - 1
    return _Stretch(series, first, last, by_history=False)


def _without(window: Window, trusted: BoolArray, position: int) -> BoolArray:
    cube, rest = window.grid.cube, trusted.copy()
    rest[cube.lane[position], cube.replica[position], cube.place[position]] = False
    return rest


def _rivals(suspect: _Suspect, after: Tested, found: list[_Suspect]) -> list[int]:
    """Return the ranks that stood out as well and no longer do without the suspect.

    Two replicas of two stages with uneven work cannot tell a slow rank from the one
    diagonally opposite; a change in the rank's own past can.
    """
    before = _weights(suspect.scored, suspect.tested)
    if suspect.tested.history.strength[suspect.position] >= 1.0:
        return []
    alike = before >= ALIKE * before[suspect.position]
    cleared = np.nan_to_num(after.strength) < 1.0
    known = {other.position for other in found}
    return [int(rank) for rank in np.flatnonzero(alike & cleared) if int(rank) not in known]


def _result(
    window: Window,
    settings: DetectionSettings,
    found: list[_Suspect],
    last: tuple[Scored, Tested],
) -> DetectionResult:
    grid = window.grid
    scored, tested = last
    least = _minimum_slowdown(scored, len(grid.steps), settings)
    suspects = {suspect.position: suspect for suspect in found}
    verdicts = []
    for position in range(len(grid.cube.ranks)):
        suspect = suspects.get(position)
        if suspect is None:
            verdicts.append(_healthy(grid, position, scored, settings))
            continue
        still = np.nan_to_num(tested.strength)[position] >= 1.0
        seen = last if still else (suspect.scored, suspect.tested)
        verdicts.append(_slow(grid, suspect, seen))
    verdicts = [
        replace(
            verdict,
            minimum_slowdown=_or_none(least[position]),
            unequal_work_ns=_or_none(scored.unequal_work[position]),
        )
        for position, verdict in enumerate(verdicts)
    ]
    verdicts.sort(key=lambda v: (not v.is_slow, -(v.slowdown or 0.0) if v.is_slow else v.rank))
    return DetectionResult(
        verdicts=tuple(verdicts),
        scores=_score_table(grid, scored),
        steps=len(grid.steps),
        minimum_slowdown=_or_none(float(np.median(least[np.isfinite(least)])))
        if np.isfinite(least).any()
        else None,
        limits=tuple(_limits(window, scored, found)),
    )


def _slow(grid: Grid, suspect: _Suspect, seen: tuple[Scored, Tested]) -> RankVerdict:
    """Return the verdict on a suspect."""
    position, (scored, tested) = suspect.position, seen
    stretch = _stretch(scored, tested, position)
    first, last, by_history, bad = stretch.first, stretch.last, stretch.by_history, stretch.excess
    past = float(first) if by_history else np.inf
    slowdown = float(np.nanmean(bad))
    count = float(np.isfinite(bad).sum())
    error = float(scored.noise.error(count, past / count)[position])
    if not by_history:
        error = float(level_error(scored, int(count))[position])
    width = quantile(0.025, scored.noise.degrees) * error
    chance = len(grid.cube.ranks) * chance_of(slowdown / error, scored.noise.degrees)
    confidence = min(MAX_CONFIDENCE, max(0.0, 1.0 - chance)) / (1 + len(suspect.rivals))
    rest = stretch.series[last + 1 :]
    rest = rest[np.isfinite(rest)]
    lasting = not len(rest) or float(rest.mean()) > slowdown / 2
    told = Evidence.WORK if scored.referenced[position] else Evidence.PEERS
    return RankVerdict(
        rank=grid.cube.ranks[position],
        persistence=Persistence.PERSISTENT if lasting else Persistence.TRANSIENT,
        slowdown=slowdown,
        interval=(slowdown - width, slowdown + width),
        first_bad_step=int(grid.steps[first]),
        last_bad_step=int(grid.steps[-1] if lasting else grid.steps[last]),
        found_at_step=None,
        evidence=Evidence.HISTORY if by_history else told,
        confidence=confidence,
        minimum_slowdown=None,
        ambiguous_with=tuple(grid.cube.ranks[rival] for rival in suspect.rivals),
    )


def _healthy(grid: Grid, position: int, scored: Scored, settings: DetectionSettings) -> RankVerdict:
    """Return the verdict on a rank that no test points at."""
    series = scored.peers[:, position]
    known = series[np.isfinite(series)]
    has_past = len(grid.steps) > settings.baseline_steps
    slowdown = float(known.mean()) if len(known) else None
    interval = None
    if slowdown is not None:
        error = float(level_error(scored, len(known))[position])
        width = quantile(0.025, scored.noise.degrees) * error
        interval = (slowdown - width, slowdown + width)
    is_known = slowdown is not None or has_past
    evidence = Evidence.NOTHING
    if slowdown is not None:
        evidence = Evidence.WORK if scored.referenced[position] else Evidence.PEERS
    elif has_past:
        evidence = Evidence.HISTORY
    return RankVerdict(
        rank=grid.cube.ranks[position],
        persistence=Persistence.NONE if is_known else Persistence.UNKNOWN,
        slowdown=slowdown,
        interval=interval,
        first_bad_step=None,
        last_bad_step=None,
        found_at_step=None,
        evidence=evidence,
        confidence=0.95 if is_known else 0.0,
        minimum_slowdown=None,
    )


def _minimum_slowdown(scored: Scored, steps: int, settings: DetectionSettings) -> FloatArray:
    """Return, by rank, the slow-down that would be found 95 times in 100.

    Against replicas for the whole window, ``(z_a + z_b) * error``; by the own past for
    one that begins after the baseline: Page's sum must climb to its border, which takes
    ``border * sigma / n`` above the reference.
    """
    ranks = scored.own.shape[1]
    chance = settings.false_alarms_per_window / ranks
    border = quantile(chance, scored.noise.degrees)
    least = (border + POWER_DEVIATE) * level_error(scored, steps)
    least = np.where(scored.replicas > 0, least, np.nan)
    rest = steps - settings.baseline_steps
    if rest > 0:
        sigma = deviation_of_step(scored.noise, settings)
        reference = references_of(sigma, settings)
        climb = own_border(reference, settings.baseline_steps, settings) / rest
        own = sigma * (reference + climb + POWER_DEVIATE / np.sqrt(rest)).min(axis=0)
        least = np.fmin(least, own)
    return least


def _limits(window: Window, scored: Scored, found: list[_Suspect]) -> list[str]:
    grid, limits = window.grid, []
    ranks = np.array(grid.cube.ranks)
    alone = ranks[scored.replicas == 0]
    if len(alone):
        limits.append(
            f"{len(alone)} of {len(ranks)} ranks have no healthy replica: slow from the first "
            "step on and made for more work cannot be told apart there"
        )
    if not window.sees_work and grid.features is None:
        limits.append(
            "durations show no work that stages share and no token counts were given: ranks "
            "are compared by the average of unequal work"
        )
    for suspect in found:
        if suspect.rivals:
            others = ", ".join(str(grid.cube.ranks[rival]) for rival in suspect.rivals)
            limits.append(
                f"rank {grid.cube.ranks[suspect.position]} and rank {others} explain the "
                "durations equally well: two replicas of two stages with uneven work"
            )
    return limits


def _above_past(own: FloatArray, first: int, last: int) -> FloatArray:
    """Return own scores less their mean outside of a stretch."""
    outside = np.ones(len(own), dtype=bool)
    outside[first : last + 1] = False
    return own - float(np.nanmean(own[outside]))


def _score_table(grid: Grid, scored: Scored) -> pd.DataFrame:
    score = np.where(np.isfinite(scored.peers), scored.peers, scored.own)
    steps, ranks = score.shape
    return pd.DataFrame(
        {
            "step": np.repeat(grid.steps, ranks),
            "rank": np.tile(np.array(grid.cube.ranks), steps),
            "score": score.ravel(),
        }
    )


def _at(values: FloatArray, position: int) -> float:
    return float(np.nan_to_num(values)[position])


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
