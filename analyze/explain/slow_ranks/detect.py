"""From durations, or a capture, to the verdict on every rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout

from ...tables.arrays import BoolArray, FloatArray
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from .conclude import MIN_CONFIDENCE, Measured, Stretch, calm_verdict, slow_verdict
from .cube import Cube
from .durations import durations_of
from .grid import DenseGrid, Grid, grid_of
from .intermittent import Pauses, measured_in, most_often, pauses_of
from .judge import least_visible
from .offline import Tested, budgets_of, run_tests
from .results import DetectionResult
from .settings import DetectionSettings
from .slow_part import measured_on, runs_of, slow_part
from .verdict import Evidence, RankVerdict
from .window import Scored, Window, mean_over_steps

MAX_SUSPECTS = 16
ALIKE = 0.5
"""A second rank at this share of the first one's strength may be the slow one as well."""
RECOVERED_DEVIATES = 2.0
"""Standard errors by which the steps after a stretch must be faster for it to be over."""


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
    if isinstance(durations, Trace):
        layout = durations.layout
        durations = durations_of(durations)
    return detect_in(grid_of(durations, layout), settings)


def detect_in(grid: Grid | DenseGrid, settings: DetectionSettings | None = None) -> DetectionResult:
    """Return the same from durations that are laid out already."""
    settings = settings or DetectionSettings()
    window = Window(grid)
    trusted = grid.cube.present
    found: list[_Suspect] = []
    scored, tested = _look(window, trusted, settings)
    while len(found) < _most_suspects(grid):
        suspect = _next(grid.cube, (scored, tested), found, settings)
        if suspect is None:
            break
        found.append(suspect)
        trusted = _without(grid, trusted, suspect.position)
        scored, tested = _look(window, trusted, settings)
        suspect.rivals = _rivals(suspect, tested, found)
    limits = tuple(_limits(grid, window, scored, found))
    return replace(_result(grid, settings, found, (scored, tested)), limits=limits)


class _Suspect:
    """A rank (by position) with the scores in which it stood out."""

    def __init__(self, position: int, scored: Scored, tested: Tested) -> None:
        self.position = position
        self.scored = scored
        self.tested = tested
        self.rivals: list[int] = []
        self.pauses: Pauses | None = None
        """Its single slow steps, where no stretch of them stands out."""
        self.chance = 0.0
        """Of as many of these in a healthy rank."""


def _next(
    cube: Cube, seen: tuple[Scored, Tested], found: list[_Suspect], settings: DetectionSettings
) -> _Suspect | None:
    """Return the rank that is suspected next, None if there is none.

    One that is slow on and off comes before those that only stand out against their peers by less:
    its slow steps tell these too much work, and its noise hides it from the same test.
    """
    scored, tested = seen
    rank = _surest(scored, tested, found)
    pauses = pauses_of(scored, of_own_level=True)
    often = most_often(pauses, cube, [suspect.position for suspect in found], settings)
    if often is None or rank == often[0]:
        return None if rank is None else _Suspect(rank, scored, tested)
    if rank is not None:
        is_changed = tested.past.strength[rank] >= 1.0
        slow = pauses.slow[:, often[0]]
        weight = pauses.series[slow, often[0]].mean() * np.sqrt(slow.sum())
        if is_changed or weight < _weights(scored, tested)[rank]:
            return _Suspect(rank, scored, tested)
    suspect = _Suspect(often[0], scored, tested)
    suspect.pauses, suspect.chance = pauses, often[1]
    return suspect


def _look(window: Window, trusted: BoolArray, settings: DetectionSettings) -> tuple[Scored, Tested]:
    scored = window.score(trusted, settings)
    return scored, run_tests(scored, settings)


def _most_suspects(grid: Grid | DenseGrid) -> int:
    return min(MAX_SUSPECTS, max(1, len(grid.cube.ranks) // 2))


def _surest(scored: Scored, tested: Tested, found: list[_Suspect]) -> int | None:
    """Return the rank that stands out most, None if none does.

    Ranks that changed come first: of two replicas, a slow one makes ranks of the other
    one stand out against their peers, but not against their own past. It makes them stand out no more
    than it does itself: one that stands out far more than all that changed has not been made to.
    """
    weight = _weights(scored, tested)
    weight[[suspect.position for suspect in found]] = 0.0
    is_changed = (tested.past.strength >= 1.0) & (weight >= ALIKE * weight.max())
    changed = np.where(is_changed, weight, 0.0)
    if changed.any():
        weight = changed
    best = int(weight.argmax())
    return best if weight[best] > 0 else None


def _weights(scored: Scored, tested: Tested) -> FloatArray:
    """Return how much the ranks that a test points at exceed what was expected, 0 for the others.

    The excess over its stretch, as steps add up: what a slow rank does to those that are
    compared with it is smaller, however long it lasts. Not in errors of the rank: one
    that is slow on and off has large ones.
    """
    weight = np.zeros(len(tested.strength))
    for position in np.flatnonzero(tested.strength >= 1.0).tolist():
        slow = slow_part(scored, tested, position)
        if measured_on(slow, scored.doubt, position).confidence(tested.ranks, 0) >= MIN_CONFIDENCE:
            weight[position] = slow.mean * np.sqrt(slow.count)
    return weight


def _without(grid: Grid | DenseGrid, trusted: BoolArray, position: int) -> BoolArray:
    cube, rest = grid.cube, trusted.copy()
    rest[cube.lane[position], cube.replica[position], cube.place[position]] = False
    return rest


def _rivals(suspect: _Suspect, after: Tested, found: list[_Suspect]) -> list[int]:
    """Return the ranks that stood out as well and no longer do without the suspect.

    Two replicas of two stages with uneven work cannot tell a slow rank from the one
    diagonally opposite; a change in the rank's own past can.
    """
    if suspect.pauses is not None:
        return []
    before = _weights(suspect.scored, suspect.tested)
    if suspect.tested.past.strength[suspect.position] >= 1.0:
        return []
    alike = before >= ALIKE * before[suspect.position]
    cleared = after.strength < 1.0
    known = {other.position for other in found}
    return [int(rank) for rank in np.flatnonzero(alike & cleared) if int(rank) not in known]


def _result(
    grid: Grid | DenseGrid,
    settings: DetectionSettings,
    found: list[_Suspect],
    last: tuple[Scored, Tested],
) -> DetectionResult:
    scored, tested = last
    budgets = budgets_of(scored, settings)
    least = least_visible(scored.doubt, len(grid.steps), budgets, settings)
    suspects = {suspect.position: suspect for suspect in found}
    pauses = pauses_of(scored, of_own_level=False)
    verdicts, levels = [], mean_over_steps(scored.peers)
    errors = scored.doubt.error(len(scored.peers))
    for position in range(len(grid.cube.ranks)):
        suspect = suspects.get(position)
        if suspect is None:
            level = float(levels[position]), float(errors[position])
            calm = _level(grid, position, level, scored, settings)
            verdict = replace(calm, slow_steps=_run_steps(grid, pauses.slow[:, position]))
        elif suspect.pauses is not None:
            verdict = _on_and_off(grid, suspect, suspect.pauses)
        else:
            still = tested.strength[position] >= 1.0
            verdict = _slow(grid, suspect, last if still else (suspect.scored, suspect.tested))
        verdicts.append(
            replace(
                verdict,
                minimum_slowdown=_or_none(least[position]),
                unequal_work_ns=_or_none(scored.unequal_work[position]),
            )
        )
    verdicts.sort(key=lambda v: (not v.is_slow, -(v.slowdown or 0.0) if v.is_slow else v.rank))
    known = least[np.isfinite(least)]
    return DetectionResult(
        verdicts=tuple(verdicts),
        scores=_score_table(grid, scored),
        steps=len(grid.steps),
        minimum_slowdown=float(np.median(known)) if len(known) else None,
    )


def _slow(grid: Grid | DenseGrid, suspect: _Suspect, seen: tuple[Scored, Tested]) -> RankVerdict:
    """Return the verdict on a suspect."""
    position, (scored, tested) = suspect.position, seen
    part, doubt = slow_part(scored, tested, position), scored.doubt
    measured = measured_on(part, doubt, position)
    slow, last = part.slow.copy(), int(np.flatnonzero(part.slow)[-1])
    rest = part.series[last + 1 :]
    rest = rest[np.isfinite(rest)]
    mean, lasting = float(rest.mean()) if len(rest) else part.mean, True
    if len(rest):
        deviates = (part.mean - mean) / np.sqrt(doubt.variance[position] / len(rest))
        lasting = mean > part.mean / 2 or deviates < RECOVERED_DEVIATES
    if lasting:
        slow[last:] = True
    evidence = Evidence.WORK if scored.referenced[position] else Evidence.PEERS
    return slow_verdict(
        grid.cube.ranks[position],
        measured,
        Stretch(runs=_run_steps(grid, slow), found_at_step=None, lasting=lasting),
        Evidence.HISTORY if part.by_past else evidence,
        ranks=tested.ranks,
        rivals=tuple(grid.cube.ranks[rival] for rival in suspect.rivals),
    )


def _run_steps(grid: Grid | DenseGrid, slow: BoolArray) -> tuple[tuple[int, int], ...]:
    """Return the numbers of the first and last step of each run."""
    return tuple((int(grid.steps[first]), int(grid.steps[last])) for first, last in runs_of(slow))


def _on_and_off(grid: Grid | DenseGrid, suspect: _Suspect, pauses: Pauses) -> RankVerdict:
    """Return the verdict on a suspect whose steps stand out one by one."""
    position, scored, slow = suspect.position, suspect.scored, pauses.slow[:, suspect.position]
    evidence = Evidence.WORK if scored.referenced[position] else Evidence.PEERS
    is_compared = bool(np.isfinite(scored.peers[:, position]).any())
    verdict = slow_verdict(
        grid.cube.ranks[position],
        measured_in(pauses, scored, position),
        Stretch(runs=_run_steps(grid, slow), found_at_step=None, lasting=bool(slow[-1])),
        evidence if is_compared else Evidence.HISTORY,
        ranks=suspect.tested.ranks,
    )
    sure = max(0.0, 1.0 - suspect.tested.ranks * suspect.chance)
    return replace(verdict, confidence=min(verdict.confidence, sure))


def _level(
    grid: Grid | DenseGrid,
    position: int,
    level: tuple[float, float],
    scored: Scored,
    settings: DetectionSettings,
) -> RankVerdict:
    """Return the verdict on a rank that nothing points at, given its mean score and the error of that."""
    rank, (slowdown, error) = grid.cube.ranks[position], level
    if np.isfinite(slowdown):
        measured = Measured(slowdown=slowdown, error=error, degrees=scored.doubt.noise.degrees)
        return calm_verdict(
            rank, measured, Evidence.WORK if scored.referenced[position] else Evidence.PEERS
        )
    has_past = np.isfinite(scored.own[:, position]).sum() > settings.baseline_steps
    return calm_verdict(rank, None, Evidence.HISTORY if has_past else Evidence.NOTHING)


def _limits(
    grid: Grid | DenseGrid, window: Window, scored: Scored, found: list[_Suspect]
) -> list[Limit]:
    limits: list[Limit] = []
    ranks = np.array(grid.cube.ranks)
    alone = ranks[scored.comparison.replicas == 0]
    if len(alone):
        limits.append(message("doubt.no_healthy_replica", alone=len(alone), ranks=len(ranks)))
    if not window.sees_work and grid.features is None:
        limits.append(message("doubt.unequal_work"))
    limits += (
        message(
            "doubt.rival_ranks",
            rank=int(ranks[suspect.position]),
            others=[int(ranks[rival]) for rival in suspect.rivals],
        )
        for suspect in found
        if suspect.rivals
    )
    return limits


def _score_table(grid: Grid | DenseGrid, scored: Scored) -> pd.DataFrame:
    score = np.where(np.isfinite(scored.peers), scored.peers, scored.own)
    steps, ranks = score.shape
    return pd.DataFrame(
        {
            "step": np.repeat(grid.steps, ranks),
            "rank": np.tile(np.array(grid.cube.ranks), steps),
            "score": score.ravel(),
        }
    )


def _or_none(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
