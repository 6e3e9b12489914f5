"""Ranks without replicas that are slow in some of their steps, as the other stages show.

With a single replica nobody holds the same part of the model. But all stages of a pipeline compute the
same microbatches: what takes one of them longer in some steps, and not the others, is no longer data, and an
uneven split would be there in every step. Longer data takes all of them longer, by one factor: the median
over the stages, which is taken out before. For example, in ms::

    step       0   1   2   3   4   5   6   7
    rank 0    91  50  90  51  89  50  92  49     slow in 0, 2, 4 and 6
    rank 1    72  71  70  72  71  69  71  70

Beside two stages that slow down together, a third is short in the other steps, and beside longer data so is
a stage that feels it less. Neither takes longer itself: a slow rank must.

Of two stages the median would be one of them. Where their data differ too much from step to step for either to
show two kinds of steps, the one over the other does: both compute the same data. Whose own time differs between
these kinds is slow, if the other's does not.

Two ranks may be slow in turn, each by a factor of its own, and now and then both at once. Longer data would take
both longer in the same steps only. So each must be slow in steps in which the other is not, and by the same factor
in those in which both are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ..causes.kinds_of_steps import MIN_STEPS, kinds_of_values
from .noise import quantile
from .results import DetectionResult
from .verdict import Evidence, Persistence, RankVerdict

MIN_EXPLAINED = 0.95
"""Least part of the squares between steps that two kinds of them explain."""
MIN_USUAL = 2
"""Least number of shorter steps: a single one may be a step in which something was left out."""
MOST_ELSEWHERE = 0.25
"""Part of its excess that other stages may have in any step, beyond all alike: more is chance."""
LEAST_ALIKE = 0.5
"""A slow device slows all that it computes: one chunk of the model alone is no rank's fault."""
LEAST_OWN = 0.5
"""Part of its excess over the other stages that a rank must take longer itself."""
FEWEST_STAGES = 3
"""Stages whose median tells how much work a step is."""
MIN_COVERED = 0.5
"""Share of the steps in which a part must be recorded to be compared."""
CONFIDENCE = 0.9
"""Work that a stage has now and then, such as logging a loss, looks the same."""
MOST_IN_TURN = 2
"""Ranks that may be slow in turn; more are chance."""
LEAST_BY_ITSELF = 2
"""Steps in which one of them is slow and the other is not; a single one may be an accident."""
LEAST_USUAL, LESS_SURE = 0.25, 0.6
"""With a smaller share of shorter steps these may be the exception, and what is said is less sure."""
TAIL = 0.025
"""Chance beyond either end of an interval of 95 %."""
_WEAKER = (Evidence.HISTORY, Evidence.NOTHING)
"""A change from the steps before says less than two kinds of steps beside other stages."""
_TURNS = 2
"""Usual steps and common data tell each other: what remains of slow steps in them is gone after two turns."""


def with_slow_steps_of_single_ranks(
    result: DetectionResult, durations: pd.DataFrame, layout: ParallelLayout | None
) -> DetectionResult:
    """Return the verdicts, with ranks slow at times where their own steps and the other stages tell.

    Args:
        result: The verdicts of all ranks.
        durations: rank, step, kind, chunk, dur_ns of each pass.
        layout: The mesh; without one, or with recorded replicas or a single stage, nothing changes.
    """
    if layout is None or layout.pp < 2:
        return result
    table = _passes_by_step(durations)
    if _has_replicas(table.index.unique("rank").tolist(), layout):
        return result
    if len(table.columns) < 2 * MIN_STEPS:
        return result
    weaker = {own.rank: own for own in result.verdicts if own.evidence in _WEAKER}
    found = {
        rank: (replace(verdict, minimum_slowdown=weaker[rank].minimum_slowdown), score)
        for rank, (verdict, score) in _slow_at_times(table, layout)
        if rank in weaker
    }
    verdicts = [found[own.rank][0] if own.rank in found else own for own in result.verdicts]
    verdicts.sort(key=lambda own: (not own.is_slow, -(own.slowdown or 0.0)))
    rest = result.scores[~result.scores["rank"].isin(list(found))]
    scores = pd.concat([rest, *(score for _, score in found.values())], ignore_index=True)
    return replace(result, verdicts=tuple(verdicts), scores=scores)


def _has_replicas(ranks: Sequence[int], layout: ParallelLayout) -> bool:
    """Return whether two of the ranks differ along the data-parallel axis alone."""
    places = [
        tuple(at for axis, at in sorted(layout.coordinates(rank).items()) if axis != "dp")
        for rank in ranks
    ]
    return len(set(places)) < len(places)


def _passes_by_step(durations: pd.DataFrame) -> pd.DataFrame:
    """Return the median pass over its usual one: a row a rank, kind and chunk, a column a step that has all."""
    parts = durations[durations["dur_ns"] > 0].groupby(["rank", "kind", "chunk", "step"])["dur_ns"]
    # A pause hits one pass, a slow device all of them: the median tells them apart.
    table = parts.median().unstack()
    # A kind of pass of a few steps, as of an evaluation, would leave no step that has all.
    is_usual = table.notna().mean(axis="columns") >= MIN_COVERED
    table = table.loc[is_usual].dropna(axis="columns")
    return table.div(table.mean(axis="columns"), axis="index")


def _slow_at_times(
    table: pd.DataFrame, layout: ParallelLayout
) -> Iterator[tuple[int, tuple[RankVerdict, pd.DataFrame]]]:
    """Yield each rank whose steps are of two kinds, and those of the other stages are not.

    With its verdict, and its score in each step: by which part it exceeds the steps in which it is not slow.

    Args:
        table: The median pass over its usual one, a row a rank, kind and chunk, a column a step.
        layout: The mesh.
    """
    of_rank = table.groupby(level="rank").mean()
    values, steps = of_rank.to_numpy(np.float64), table.columns.to_numpy(np.int64)
    stage = np.array([layout.coordinates(int(rank))["pp"] for rank in of_rank.index])
    common, alone = _data_and_rest(values, stage)
    of_data = _is_long(common)
    kinds = np.array([_is_long(own) for own in alone])
    # What most ranks do in steps of their own is chance, and the fault of none.
    steady = np.array([not own.any() for own in kinds])
    turns = np.zeros(len(kinds), np.bool_)
    if 2 * steady.sum() < len(steady):
        turns = _in_turn(alone, kinds)
        steady = np.ones_like(steady)
    by_ratio = len(np.unique(stage)) < FEWEST_STAGES and not kinds.any()
    usual, levels = _without_slow_steps(alone, kinds & turns[:, None])
    sure = CONFIDENCE if _differ(levels[turns] - 1.0) else LESS_SURE
    for at, rank in enumerate(of_rank.index.tolist()):
        others = usual[(stage != stage[at]) & steady]
        if not len(others):
            continue
        # The rank itself is in what is common, but not where it is slow: the others tell by how much.
        beside = np.median(others, axis=0)
        score = alone[at] / beside
        is_slow = _is_long(score) if by_ratio else kinds[at]
        if not is_slow.any() or (is_slow == of_data).all():
            continue
        own = _excess(score, is_slow)
        elsewhere = _excess(beside, is_slow).slowdown if by_ratio else (others - 1.0).max()
        passes = table.loc[rank].to_numpy(np.float64) / (common * beside)
        parts = [_excess(part, is_slow).slowdown for part in passes]
        if (
            _excess(values[at], is_slow).slowdown >= LEAST_OWN * own.slowdown
            and abs(elsewhere) <= MOST_ELSEWHERE * own.slowdown
            and min(parts) >= LEAST_ALIKE * max(parts)
        ):
            score = score / score[~is_slow].mean() - 1.0
            scores = pd.DataFrame({"step": steps, "rank": int(rank), "score": score})
            verdict = _verdict(int(rank), steps, is_slow, own)
            yield int(rank), (replace(verdict, confidence=min(sure, verdict.confidence)), scores)


def _in_turn(alone: FloatArray, kinds: BoolArray) -> BoolArray:
    """Return which ranks are slow in turn: none, or two.

    Args:
        alone: Steps of each rank over its usual one [rank, step].
        kinds: Which are of its longer kind [rank, step].
    """
    none, at = np.zeros(len(kinds), np.bool_), np.flatnonzero(kinds.any(axis=1))
    if len(at) != MOST_IN_TURN:
        return none
    both = kinds[at].all(axis=0)
    for own, is_slow in zip(alone[at], kinds[at], strict=True):
        by_itself = is_slow & ~both
        if by_itself.sum() < LEAST_BY_ITSELF:
            return none
        excess = own[by_itself].mean() - 1.0
        if both.any() and abs(own[both].mean() - 1.0 - excess) > MOST_ELSEWHERE * excess:
            return none
    return np.isin(np.arange(len(kinds)), at)


def _without_slow_steps(alone: FloatArray, is_slow: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the steps of each rank over its usual one, its slow ones as usual, and how long these were.

    The second is 1 where a rank has no slow step.
    """
    count = is_slow.sum(axis=1)
    level = np.where(
        count > 0, np.where(is_slow, alone, 0.0).sum(axis=1) / np.maximum(count, 1), 1.0
    )
    return np.where(is_slow, alone / level[:, None], alone), level


def _differ(excess: FloatArray) -> bool:
    """Return whether ranks are slow by factors of their own: one of all may be what the job does."""
    return len(excess) < 2 or float(np.ptp(excess)) > MOST_ELSEWHERE * float(excess.min())


def _data_and_rest(values: FloatArray, stage: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return what each step takes on all stages alike, and each rank's steps without it over its usual one.

    The lower median over the stages: what slows a rank makes it longer. Each stage has one voice, however
    many ranks it has.

    Args:
        values: What each rank takes in each step, in any unit [rank, step].
        stage: Pipeline stage of each rank.
    """
    alone = values / np.array([_usual(own) for own in values])[:, None]
    names = np.unique(stage)
    if len(names) < FEWEST_STAGES:
        return np.ones(values.shape[1]), alone
    common = np.ones(values.shape[1])
    for _ in range(_TURNS):
        more = _lower_median(np.stack([_lower_median(alone[stage == name]) for name in names]))
        common, alone = common * more, alone / more
        alone = alone / np.array([_usual(own) for own in alone])[:, None]
    return common, alone


def _lower_median(values: FloatArray) -> FloatArray:
    return np.asarray(np.quantile(values, 0.5, axis=0, method="lower"))


def _usual(own: FloatArray) -> float:
    """Return what a step of a rank takes: of two kinds the mean shorter one, else the median."""
    is_slow = _is_long(own)
    return float(own[~is_slow].mean() if is_slow.any() else np.median(own))


def _is_long(own: FloatArray) -> BoolArray:
    """Return which steps are of the longer of two kinds; none where they are of one."""
    return kinds_of_values(own, MIN_EXPLAINED, MIN_USUAL) > 0


class _Excess(NamedTuple):
    """By which share slow steps take longer than the others, and half of its 95 % interval."""

    slowdown: float
    half: float


def _excess(values: FloatArray, is_slow: BoolArray) -> _Excess:
    """Return what slow steps take more.

    The interval is that of B. L. Welch, "The generalization of Student's problem when several different
    population variances are involved", 1947.
    """
    slow, other = values[is_slow], values[~is_slow]
    ratio = float(slow.mean() / other.mean())
    counts = np.array([len(slow), len(other)])
    variances = np.array([own.var(ddof=1) / own.mean() ** 2 for own in (slow, other)]) / counts
    total = float(variances.sum())
    if total == 0.0:
        return _Excess(ratio - 1.0, 0.0)
    degrees = total**2 / float((variances**2 / (counts - 1)).sum())
    return _Excess(ratio - 1.0, ratio * float(np.sqrt(total)) * quantile(TAIL, degrees))


def _verdict(rank: int, steps: IntArray, is_slow: BoolArray, excess: _Excess) -> RankVerdict:
    bounds = np.flatnonzero(np.diff(np.concatenate([[0], is_slow.astype(np.int8), [0]])))
    runs = tuple(
        (int(steps[first]), int(steps[end - 1]))
        for first, end in zip(bounds[::2], bounds[1::2], strict=True)
    )
    persistence = Persistence.INTERMITTENT
    if len(runs) == 1:
        persistence = Persistence.PERSISTENT if is_slow[-1] else Persistence.TRANSIENT
    return RankVerdict(
        rank=rank,
        persistence=persistence,
        slowdown=excess.slowdown,
        interval=(excess.slowdown - excess.half, excess.slowdown + excess.half),
        first_bad_step=runs[0][0],
        last_bad_step=None if persistence is Persistence.PERSISTENT else runs[-1][1],
        found_at_step=None,
        evidence=Evidence.HISTORY,
        confidence=CONFIDENCE if (~is_slow).mean() >= LEAST_USUAL else LESS_SURE,
        minimum_slowdown=None,
        slow_steps=runs,
    )
