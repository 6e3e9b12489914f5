"""Unequal data: microbatches whose sequences need more or less work.

All ranks that hold a part of one replica of the model compute the same
microbatches. What one of them needs beyond its own mean on a microbatch, and the
others need too, comes with the data; what it alone needs is its own.

Sequences tell the work of microbatches. A pass of a stage takes ``a + b * tokens + c * sum of squared lengths``: layers and head are linear in
tokens, attention in the squares. The three are fitted for each stage and direction over the passes
of healthy ranks, where the stage has one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Axis

from ...align.steps.microbatch_work import known_work
from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.centres import median_of_others
from ...tables.numbering import numbered
from ...tables.trace import Trace, position_of_ranks
from ..replay.program import Program
from .effects import Expected, Work
from .passes import Passes, edge_of_pieces

MIN_F = 9.2
"""Least ratio of what a coefficient explains to what it would by chance: with noise alone one in 10,000
fits of two coefficients reaches it (F distribution)."""
STRAY = 5.0
"""Standard deviations from the fit beyond which a pass is no measure of its work."""
FITS_WITHOUT_OUTLIERS = 2
"""A second fit without the strays of the first one: what it leaves out then was no part of the line."""
LEAST_EXPECTED = 0.05
"""Share of the mean pass below which no fitted pass is believed."""


def excess_of_sequences(
    time_ns: FloatArray, work: FloatArray, group: IntArray, informative: BoolArray
) -> FloatArray | None:
    """Return by how much its sequences make each pass longer than one of the mean microbatch.

    Args:
        time_ns: How long each pass took.
        work: [pass, feature] what is known of its microbatch.
        group: Number of its stage and direction, from 0 on.
        informative: Which passes tell the fit: those of healthy ranks; some of every group.

    Returns:
        Ratios: 0.1 is 10 % longer. None where not all work is known, or where the passes do not
        follow it by more than noise would.
    """
    if not np.isfinite(work).all() or not informative.any():
        return None
    centre = work.mean(axis=0)
    usual = (work - centre) / np.where(centre > 0, centre, 1.0)
    if not usual.any():
        return None
    columns = np.column_stack([np.ones(len(usual)), usual])
    kept = informative
    for _ in range(FITS_WITHOUT_OUTLIERS):
        fit = _fitted(time_ns, columns, group, kept)
        off = time_ns - (columns * fit[group]).sum(axis=1)
        deviation = np.sqrt(np.mean(off[kept] ** 2))
        kept = informative & (np.abs(off) <= STRAY * deviation)
    # The features are 0 for the mean microbatch: the constant is what it takes.
    mean = np.where(fit[group, 0] > 0, fit[group, 0], np.nan)
    ratio = (columns * fit[group]).sum(axis=1) / mean
    if not _is_followed(time_ns / mean, ratio, kept, _coefficients(columns, group, kept)):
        return None
    return np.where(ratio > LEAST_EXPECTED, ratio - 1.0, 0.0)


def _fitted(
    time_ns: FloatArray, columns: FloatArray, group: IntArray, kept: BoolArray
) -> FloatArray:
    """Return [group, column] the least squares of each group; 0 for what is not determined."""
    groups = int(group.max()) + 1
    size = columns.shape[1]
    own, x, y = group[kept], columns[kept], time_ns[kept]

    def summed(values: FloatArray) -> FloatArray:
        return np.bincount(own, values, groups).astype(np.float64)

    squares = np.stack(
        [np.stack([summed(x[:, i] * x[:, j]) for j in range(size)], -1) for i in range(size)], -2
    )
    products = np.stack([summed(x[:, i] * y) for i in range(size)], -1)
    fit = np.einsum("gij,gj->gi", np.linalg.pinv(squares, hermitian=True), products)
    return np.asarray(fit, dtype=np.float64)


def _coefficients(columns: FloatArray, group: IntArray, kept: BoolArray) -> int:
    """Return how many slopes were fitted."""
    return (int(np.linalg.matrix_rank(columns[kept])) - 1) * len(np.unique(group[kept]))


def _is_followed(own: FloatArray, fit: FloatArray, kept: BoolArray, slopes: int) -> bool:
    """Tell whether the passes follow the fit by more than noise would (F test)."""
    freedom = int(kept.sum()) - 2 * slopes
    if slopes < 1 or freedom < 1 or not np.isfinite(fit[kept]).all():
        return False
    explained = float(((fit[kept] - 1.0) ** 2).sum()) / slopes
    left = float(((own[kept] - fit[kept]) ** 2).sum()) / freedom
    return explained > MIN_F * left


MIN_CORRELATION = 0.5
"""Least correlation between a rank and the others of its replica; noise of independent ranks
stays below with as many microbatches as ``MIN_MICROBATCHES``."""
MIN_MICROBATCHES = 12
"""Least number of microbatches over all steps and replicas that tells a correlation."""
MIN_RANKS = 4
"""Ranks of which most show what ratio of forward to backward is usual."""
USUAL_UNLIKENESS, MIN_UNLIKE = 0.005, 6.0
"""Least standard deviation of that ratio between healthy ranks, and how many make it another one."""
TO_DEVIATION = 1.4826
"""Standard deviation of normal values over their median distance from the median."""
MAX_ERRORS = 3.0
"""Standard errors by which passes may take longer on average by the work that they happen to have."""
ROUNDS = 3
"""In which the mean pass of each stage and the work of each microbatch are known from one another."""
Runs = Sequence[tuple[int, int]]
"""First and last step of each run of steps."""
_MICROBATCH = ["replica", "step", "microbatch"]
_STAGE = ["stage", "is_forward", "chunk"]
"""Columns that make a pass of one stage in one direction."""


class Sequences(NamedTuple):
    """What cells work more than with equal microbatches."""

    effect_ns: FloatArray
    """By cell; negative where its microbatches are small ones."""
    is_stated: bool
    """Whether the training code described the work; else the passes tell it, and of replicas that differ
    on average nothing says whether their data or their ranks do."""


def sequence_effect(
    trace: Trace, program: Program, computing: Passes, work: Work, slow: Mapping[int, Runs]
) -> Sequences | None:
    """Return what each cell works more than with equal microbatches.

    What the lengths of its sequences explain of a pass, where they are known, is taken first. What is
    left is compared with the mean pass of its stage in that direction. This ratio is
    regressed on the median ratio of the other ranks of the replica for the same
    microbatch; the fitted part is the data's. A rank that has no other in its replica is
    regressed on its own other direction, with the means of the steps taken out, because a
    slow rank slows both. What one that is slow for good takes in a step beyond the mean of these is
    its data's, as with any other rank; how much of that mean is, nothing tells, and it is the rank's. Unless it
    is longer than others in one direction only, for then the other one tells what its microbatches
    need.

    None where microbatches are not on record, or where neither their lengths nor the ranks
    that share them say that they differ.

    Args:
        trace: The capture.
        program: The replay graph.
        computing: Its passes, and which part of each was computing.
        work: The recorded work by cell.
        slow: Ranks that are slow anyhow, with their runs of slow steps (none: not known). They are
            compared with their own mean; what the data needs is what it would need on a healthy rank.
    """
    if trace.layout is None or computing.spans.empty:
        return None
    pieces = computing.pieces
    replica = position_of_ranks(trace.layout, Axis.DP, program.windows.ranks.tolist())
    # Not the columns, which are large.
    spans = computing.spans.copy(deep=False)
    spans["replica"] = spans["rank"].map(replica)
    # A pass may be several spans: the loss of the last stage is one of its own.
    keys = ["step", "microbatch", "rank", "is_forward", "chunk"]
    of_span = _numbered(spans, keys)
    of_piece = of_span[pieces["span"]]
    rows = _first_rows(of_span)
    names = ["replica", *keys]
    passes = pd.DataFrame({name: spans[name].to_numpy()[rows] for name in names}, copy=False)
    passes["data"] = _numbered(passes, _MICROBATCH)
    passes["stage"] = passes["rank"].map(work.peer_class)
    passes["compute_ns"] = np.bincount(of_piece, weights=pieces["dur_ns"], minlength=len(passes))
    alone = len(set(replica.values())) == len(replica)
    passes["tells"] = _informative(passes) if alone else False
    passes["is_slow"] = passes["rank"].isin({*slow, *passes.loc[passes["tells"], "rank"]})
    stated = _stated_excess(trace, passes)
    passes["even_ns"] = passes["compute_ns"] / (1.0 if stated is None else 1.0 + stated)
    seen, mean = _seen_besides(passes, slow, alone=alone)
    if seen is None and stated is None:
        return None
    share = _together(stated, seen) * mean / passes["compute_ns"].where(passes["compute_ns"] > 0)
    effect = pieces["dur_ns"].to_numpy() * share.fillna(0.0).to_numpy()[of_piece]
    cell = work.cell[edge_of_pieces(program, pieces)]
    effect_ns = np.bincount(cell, weights=effect, minlength=len(work.cells)).astype(np.float64)
    return Sequences(effect_ns, is_stated=seen is None)


def _seen_besides(
    passes: pd.DataFrame, slow: Mapping[int, Runs], *, alone: bool
) -> tuple[pd.Series | None, pd.Series]:
    """Return by how much the passes show the data to make each longer, beside what is stated.

    Returns:
        The ratio, None where they show none; and the pass of the mean microbatch, ns.
    """
    shared = _even_passes(passes, informative=~passes["is_slow"] | passes["tells"])
    level = _levels(passes, slow)
    by_itself = (level >= 0) & ~passes["tells"]
    alone_in = by_itself | shared.isna()
    own = passes[passes["rank"].isin(passes.loc[alone_in, "rank"].unique())]
    of_rank = own.groupby(["rank", "is_forward", "chunk", level[own.index]])["even_ns"].transform(
        "mean"
    )
    of_rank = of_rank.reindex(passes.index)
    compared = of_rank.where(alone_in, shared)
    passes["own"] = (passes["even_ns"] / compared.where(compared > 0)).fillna(1.0) - 1.0
    return _excess(passes, alone=alone), shared.fillna(of_rank)


def expected_of(peer_ns: FloatArray, sequences: Sequences | None) -> Expected:
    """Return what cells should have taken by the work of their peers and by their own microbatches."""
    return Expected(peer_ns, *(sequences or (None,)))


def _stated_excess(trace: Trace, passes: pd.DataFrame) -> FloatArray | None:
    """Return by how much the lengths of its sequences make each pass longer than the mean one."""
    known = known_work(trace, passes)
    if known is None:
        return None
    time_ns = passes["compute_ns"].to_numpy(np.float64)
    group = passes.groupby(_STAGE).ngroup().to_numpy().astype(np.int64)
    healthy = ~passes["is_slow"].to_numpy(bool)
    # A stage without a healthy rank shows by its slow ones how its passes follow the lengths.
    alone = np.bincount(group, healthy) == 0
    return excess_of_sequences(time_ns, known, group, healthy | alone[group])


def _together(stated: FloatArray | None, seen: pd.Series | None) -> FloatArray:
    """Return the excess of what is stated, and of what is seen besides."""
    both = (1.0 if one is None else 1.0 + np.asarray(one, np.float64) for one in (stated, seen))
    return np.asarray(prod(both) - 1.0)


def _levels(passes: pd.DataFrame, slow: Mapping[int, Runs]) -> pd.Series:
    """Return with which others each pass of a slow rank is compared: those of its number; -1 with none.

    A rank that is slow for good, from some step on or until one, with all of these steps. Of one that
    is so on and off not every slow step is known: with the other microbatches of the step.
    """
    level = pd.Series(-1, index=passes.index)
    for rank, runs in slow.items():
        own, step = passes["rank"] == rank, passes["step"]
        if len(runs) == 1:
            level[own & step.between(*runs[0])] = 0
        else:
            level[own] = step[own] + 1
    return level


def _even_passes(passes: pd.DataFrame, *, informative: pd.Series) -> pd.Series:
    """Return what each pass would take on a healthy rank of its stage with the mean microbatch.

    The mean over the healthy ranks is that of their replicas' microbatches. Where a stage has a
    slow rank these are not all, and its mean would be that of other work than the next stage's: each
    is brought to the work of all microbatches, as the stages tell it together.
    """
    of_stage, of_work = _numbered(passes, _STAGE), passes["data"].to_numpy()
    time = passes["even_ns"].to_numpy(np.float64)
    seen = informative.to_numpy(bool)

    stages, works = int(of_stage.max()) + 1, int(of_work.max()) + 1
    own_stage, own_work, own_time = of_stage[seen], of_work[seen], time[seen]
    known = [np.bincount(own_stage, minlength=stages), np.bincount(own_work, minlength=works)]
    in_stage, in_work = (np.where(count > 0, count, np.nan) for count in known)
    usual = even = np.bincount(own_stage, own_time, stages) / in_stage
    for _ in range(ROUNDS if seen.any() and not seen.all() else 0):
        like = even[own_stage]
        share = np.divide(own_time, like, out=np.ones(len(like)), where=like > 0)
        relative = np.bincount(own_work, share, works) / in_work
        relative /= np.nanmean(relative)
        even = usual / (np.bincount(own_stage, relative[own_work], stages) / in_stage)
    return pd.Series(even[of_stage], index=passes.index)


def _excess(passes: pd.DataFrame, *, alone: bool) -> pd.Series | None:
    """Return by how much the data makes each pass longer than the mean one, as a ratio."""
    others = _of_other_direction(passes) if alone else _of_other_ranks(passes)
    if not alone and others.isna().any():
        others = others.fillna(_of_other_direction(passes))
    own, seen = passes["own"], others
    if alone:
        of_step = [passes["rank"], passes["step"], passes["is_forward"]]
        own = own - own.groupby(of_step).transform("mean")
        seen = others - others.groupby(of_step).transform("mean")
        computing = passes["own"].where(passes["tells"])
        computing = computing.groupby([passes[key] for key in _MICROBATCH]).transform("mean")
        others = computing.fillna(others)
    # What a slow rank adds to its passes would be taken for their not following the data.
    informative = ~passes["is_slow"] if not passes["is_slow"].all() else slice(None)
    slope = _slope(own[informative], seen[informative], int(passes["data"].max()) + 1)
    return None if slope is None else (slope * others).fillna(0.0)


def _of_other_ranks(passes: pd.DataFrame) -> pd.Series:
    """Return, for each pass, the median over the other healthy ranks of its replica; NaN without.

    One that is slow at times would make the data of these steps look larger.
    """
    of_rank = _numbered(passes, ["data", "rank"])
    first = _first_rows(of_rank)
    mean = np.bincount(of_rank, passes["own"].to_numpy(np.float64)) / np.bincount(of_rank)
    microbatch = passes["data"].to_numpy()[first]
    is_healthy = ~passes["is_slow"].to_numpy(bool)[first]
    others = median_of_others(mean, microbatch, counts=None if is_healthy.all() else is_healthy)
    return pd.Series(others[of_rank], index=passes.index)


def _numbered(rows: pd.DataFrame, keys: list[str]) -> IntArray:
    """Return one number for each combination of keys, in the order in which they occur."""
    return numbered(*(rows[key].to_numpy() for key in keys))


def _first_rows(number: IntArray) -> IntArray:
    """Return the first row of each number."""
    first = np.empty(int(number.max(initial=-1)) + 1, np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return first


def _informative(passes: pd.DataFrame) -> pd.Series:
    """Return which passes tell the work of their microbatch though their rank is slow.

    More work lengthens forward and backward alike, and so does a slow device: their ratio does not
    depend on it. Where the ratio of a rank lies far from that of the others, something else
    lengthens one of the two, as a blocked host does. The other one is a measure of the work if it
    takes no longer on average than by unequal work alone.
    """
    forward = passes["is_forward"].rename("forward")
    keys = [passes["rank"], passes["step"], passes["microbatch"], forward]
    of_microbatch = passes.groupby(keys)["compute_ns"].sum().unstack().dropna()
    of_microbatch = of_microbatch[(of_microbatch > 0).all(axis=1)]
    ranks = of_microbatch.groupby(level="rank")
    if of_microbatch.shape[1] < 2 or len(ranks) < MIN_RANKS:
        return pd.Series(data=False, index=passes.index)
    logs: pd.Series[float] = (of_microbatch[True] / of_microbatch[False]).apply(np.log)
    ratio = logs.groupby(level="rank").mean()
    ratio -= ratio.median()
    far = MIN_UNLIKE * max(TO_DEVIATION * float(ratio.abs().median()), USUAL_UNLIKENESS)
    mean = ranks.mean()
    level = mean / mean.median()
    error = ranks.std().div(mean).div(ranks.size() ** 0.5, axis=0).median()
    usual = level < 1.0 + MAX_ERRORS * error
    computing = {True: usual[True] & (ratio < -far), False: usual[False] & (ratio > far)}
    found = [set(own.index[own]) for own in (computing[False], computing[True])]
    return passes["rank"].isin(found[1]).where(forward, passes["rank"].isin(found[0]))


def _of_other_direction(passes: pd.DataFrame) -> pd.Series:
    """Return, for each pass, the mean over the other passes of its microbatch that tell it.

    Where all ranks of the replica are slow, over these, each against its own mean.
    """
    of_microbatch = [passes[key] for key in _MICROBATCH]
    informative = ~passes["is_slow"] | passes["tells"]
    informative |= ~informative.groupby(of_microbatch).transform("any")
    own = passes["own"].where(informative)
    count = informative.groupby(of_microbatch).transform("sum") - informative
    total: pd.Series = own.groupby(of_microbatch).transform("sum") - own.fillna(0.0)
    return total / count.where(count > 0)


def _slope(own: pd.Series, others: pd.Series, microbatches: int) -> float | None:
    """Return the share of the others' deviation that a rank shows too, 0..1; None for noise."""
    known = others.notna()
    own, others = own[known], others[known]
    if microbatches < MIN_MICROBATCHES or not len(own) or own.std() == 0 or others.std() == 0:
        return None
    if np.corrcoef(own, others)[0, 1] < MIN_CORRELATION:
        return None
    covariance = ((own - own.mean()) * (others - others.mean())).mean()
    return float(np.clip(covariance / others.var(ddof=0), 0.0, 1.0))
