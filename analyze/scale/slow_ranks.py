"""The first answer about a large run, from its summaries alone: which rank is slow, since when, at what price.

The statistic is that of ``explain.slow_ranks``: ranks are compared inside their peer class, without
those that are suspected. It gets the own time of each kind of pass of a step where it gets that of each
microbatch from full records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.layout import ParallelLayout

from ..align.steps.microbatch_work import FEATURES
from ..explain.slow_ranks import DetectionResult, DetectionSettings, RankVerdict, detect_in
from ..explain.slow_ranks.cube import Cube, coordinates_of, cube_of
from ..explain.slow_ranks.grid import DenseGrid
from ..tables.arrays import BoolArray, FloatArray, IntArray
from ..wording.limits import Limit
from ..wording.message import message
from .dense import COMPUTED, Dense
from .outline import Outline
from .ranks_to_follow import followed
from .slow_rank_cost import Price, Slowdown, Whole, price_of
from .store import Summaries
from .summary import OWN_WORK
from .survey import SURVEY_ROW_BYTES, Survey, knows_work, survey_of

COLUMNS = (
    "rank",
    "step",
    *OWN_WORK,
    *FEATURES,
    *COMPUTED,
    "exposed_tp_s",
    "exposed_dp_s",
)
"""What the answer needs of the summaries."""
ANSWER_BYTES = 250_000_000
"""What the answer takes beside rows."""
ANSWER_ROW_BYTES = 500
"""What a row takes while it is looked for slow ranks, at most."""
EMPTY_CELL_BYTES = 100
"""What a place of the mesh takes there in a step if nobody recorded it, while others of its replica and of its stage are."""
LEAST_STEPS = 50
"""So many steps are looked at, whatever the memory: with fewer a change is hardly seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """One slow rank and its price."""

    verdict: RankVerdict
    price: Price
    slow_steps: int
    step_after_ns: float | None
    """Mean step in which it was slow less the mean of the others, as measured; None without others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAnswer:
    """What summaries tell of a run."""

    run: str
    ranks: int
    steps: tuple[int, int]
    """First and last step that every rank finished."""
    step_count: int
    step_ns: float
    """Mean length of a step."""
    slow: tuple[SlowRank, ...]
    """The dearest first."""
    minimum_slowdown: float | None
    """Smallest slow-down that would be found 95 times in 100, median over the ranks."""
    limits: tuple[Limit, ...]
    every: int = 1
    """One of every so many steps was looked at."""


def first_answer(summaries: Summaries, limit_bytes: float | None = None) -> FirstAnswer:
    """Return which ranks are slow.

    Args:
        summaries: The summaries of a run.
        limit_bytes: Memory there is: with less, one of every so many steps is looked at, and a limit says so.

    Raises:
        TraceFormatError: No step was finished by all ranks, or no pass was recorded.
        RunDirectoryError: A file of the summaries cannot be read.
    """
    survey = survey_of(summaries, steps_skipped(summaries, limit_bytes))
    return answer_of(summaries, survey, limit_bytes)


def answer_of(
    summaries: Summaries, survey: Survey, limit_bytes: float | None = None
) -> FirstAnswer:
    """Return the same, given what one look at each row keeps.

    Raises:
        TraceFormatError: No pass was recorded.
        RunDirectoryError: A file of the summaries cannot be read.
    """
    layout = summaries.outline.layout
    chosen = followed(survey, layout, knows_work=knows_work(summaries))
    cube = cube_of(tuple(survey.ranks[chosen].tolist()), layout)
    survey = survey.thinned(_every(survey, cube, limit_bytes))
    ranks = None if chosen.all() else survey.ranks[chosen].tolist()
    steps = None if survey.every == 1 else survey.steps.tolist()
    table = Dense.of(summaries.read(COLUMNS, steps, ranks, zeros=False), survey.steps)
    settings = DetectionSettings(picked_from=len(survey.ranks))
    result = detect_in(_grid(table, layout), settings)
    run = Whole.of(survey, chosen, layout)
    suspects = [verdict.rank for verdict in result.suspects]
    slow = [_priced(one, table, run, summaries.outline, suspects) for one in result.suspects]
    every = survey.every
    return FirstAnswer(
        run=summaries.run.name,
        ranks=len(survey.ranks),
        steps=(int(survey.steps[0]), int(survey.steps[-1])),
        step_count=len(survey.steps),
        step_ns=float(survey.longest_s.mean() * 1e9),
        slow=tuple(sorted(slow, key=lambda one: -one.price.most_ns)),
        minimum_slowdown=result.minimum_slowdown,
        limits=(
            *([message("scope.answer_of_some_steps", every=every)] if every > 1 else ()),
            *_limits(summaries, survey, result),
        ),
        every=every,
    )


def steps_skipped(summaries: Summaries, limit_bytes: float | None) -> int:
    """Return of how many steps one has room for a look; 1 where all have."""
    steps = summaries.rows / max(len(summaries.ranks), 1)
    return _thinning(summaries.rows * SURVEY_ROW_BYTES, steps, limit_bytes)


def _every(survey: Survey, followed: Cube, limit_bytes: float | None) -> int:
    """Return of how many of its steps one has room for the tests; 1 where all have."""
    ranks = len(followed.ranks)
    empty = (followed.cells - ranks) * EMPTY_CELL_BYTES
    kept = len(survey.ranks) * SURVEY_ROW_BYTES + ranks * ANSWER_ROW_BYTES + empty
    return _thinning(kept * len(survey.steps), len(survey.steps), limit_bytes)


def _thinning(needed_bytes: float, steps: float, limit_bytes: float | None) -> int:
    if limit_bytes is None:
        return 1
    room = max(limit_bytes - ANSWER_BYTES, 1.0)
    return max(min(math.ceil(needed_bytes / room), int(steps / LEAST_STEPS)), 1)


def _grid(table: Dense, layout: ParallelLayout | None) -> DenseGrid:
    """Return the own work as the detector takes it: each kind of pass of a step is one item.

    Raises:
        TraceFormatError: No pass was recorded.
    """
    kinds = [(name, table.by_step(name)) for name in OWN_WORK]
    kinds = [(name, value) for name, value in kinds if (value > 0).any()]
    if not kinds:
        raise TraceFormatError(
            message("refused.no_own_work"),
            remedy=message("advice.record_passes"),
        )
    return DenseGrid.of(
        cube_of(tuple(table.ranks.tolist()), layout),
        table.steps,
        {name.removeprefix("own_").removesuffix("_s"): value * 1e9 for name, value in kinds},
        _features(table, layout),
    )


def _features(table: Dense, layout: ParallelLayout | None) -> FloatArray | None:
    """Return the work [step, rank, feature] as far as it is known; a replica has that of the rank that knows it."""
    if all(table.is_unknown(name) for name in FEATURES):
        return None
    work = np.stack([table.by_step(name) for name in FEATURES], axis=-1)
    if not np.isfinite(work).any():
        return None
    if layout is not None:
        replica = coordinates_of(layout, table.ranks)["dp"]
        order = np.argsort(replica, kind="stable")
        starts = np.flatnonzero(np.diff(replica[order], prepend=-1))
        # Of all that tell it the sum over a step is the same.
        of_replicas = np.fmax.reduceat(work[:, order], starts, axis=1)
        shared = of_replicas[:, np.unique(replica, return_inverse=True)[1]]
        work = np.where(np.isfinite(work), work, shared)
    return work


def _priced(
    verdict: RankVerdict, table: Dense, run: Whole, outline: Outline, suspects: list[int]
) -> SlowRank:
    wall, slow = run.longest_s, _slow_steps(verdict, table.steps)
    found = Slowdown(verdict.rank, verdict.slowdown or 0.0, slow)
    price = price_of(table, run, outline, found, suspects)
    return SlowRank(
        verdict=verdict,
        price=price,
        slow_steps=int(slow.sum()),
        step_after_ns=None if slow.all() else float((wall[slow].mean() - wall[~slow].mean()) * 1e9),
    )


def _slow_steps(verdict: RankVerdict, steps: IntArray) -> BoolArray:
    slow = np.zeros(len(steps), dtype=bool)
    for first, last in verdict.slow_steps:
        slow |= (steps >= first) & (steps <= last)
    return slow


def _limits(summaries: Summaries, survey: Survey, result: DetectionResult) -> list[Limit]:
    limits = list(result.limits)
    silent = sorted(set(summaries.ranks) - set(survey.ranks.tolist()))
    if silent:
        limits.append(
            message("missing.ranks_without_step", silent=len(silent), ranks=len(summaries.ranks))
        )
    if summaries.outline.layout is None:
        limits.append(message("doubt.compared_with_all"))
    lost = {rank: n for one in summaries.segments for rank, n in one.dropped.items()}
    if lost:
        limits.append(message("missing.records_lost", records=sum(lost.values()), ranks=len(lost)))
    return limits
