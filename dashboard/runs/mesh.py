"""Who is slow, and where in the mesh: matrices over ranks, ready to be coloured."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.analyze import Diagnosis
from meshscope.analyze.tables.centres import median_of_others
from meshscope.analyze.tables.classes import COMPUTE_CLASSES, REFINED

_COMPUTE = (*COMPUTE_CLASSES, *REFINED)
FloatMatrix = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStepMatrix:
    """One number for each rank and step."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    values: FloatMatrix
    """ranks x steps; NaN where the rank has no such step."""
    middle: float | None
    """The value that means *nothing special*; None for a one-sided scale."""
    meaning: str
    compares_ranks: bool = True
    """Whether values compare ranks; else each rank is compared with its own steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshFacet:
    """The DP x PP grid of one tensor rank."""

    tp: int
    slowdown: FloatMatrix
    """dp x pp; NaN where the rank was not captured."""
    rank: npt.NDArray[np.int64]
    """Global rank of each cell, -1 where there is none."""


def rank_step_matrix(diagnosis: Diagnosis, metric: str) -> RankStepMatrix:
    """Return one metric of the ledger by rank and step.

    A *peer median* is that of the same stage's other ranks in the same step; of
    the rank's own steps where the stage has no other rank.

    Args:
        diagnosis: Its ledger and the stages in its straggler table are used.
        metric: ``slowdown`` is compute time over its peer median; ``own`` the
            same for all time outside exposed communication, so that a late host
            shows too; ``compute`` is compute time over the median of all ranks
            in the step; ``wait`` is waiting as a share of the step.
    """
    ledger = diagnosis.ledger
    if metric == "wait":
        frac = _sum(ledger, _classes(ledger, "_wait")) / ledger["step_ns"]
        return _matrix(ledger, frac, None, "waiting for other ranks, share of the step")
    compute = _sum(ledger, [name for name in _COMPUTE if name in ledger.columns])
    if metric == "compute":
        by_step = compute.groupby(ledger["step"])
        # A lone rank is not compared with itself.
        ratio = (compute / by_step.transform("median")).where(by_step.transform("size") > 1)
        return _matrix(ledger, ratio, 1.0, "compute time, median rank of the step = 1")
    if metric == "own":
        communication = _classes(ledger, "_wait") + _classes(ledger, "_wire")
        time, words = ledger["step_ns"] - _sum(ledger, communication), "time outside communication"
    else:
        time, words = compute, "compute time"
    stage = ledger["rank"].map(diagnosis.stragglers.set_index("rank")["pp"])
    stage = stage.fillna(-1).astype(np.int64)
    ratio = time / _peer_median(ledger, time, stage)
    if not _is_alone(ledger, stage).all():
        return _matrix(ledger, ratio, 1.0, f"{words}, median of the same stage's other ranks = 1")
    words += ", median of the rank's own steps = 1; no rank has a peer"
    if ledger["step"].nunique() == 1:
        ratio = ratio * np.nan
    return replace(_matrix(ledger, ratio, 1.0, words), compares_ranks=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """A matrix in fewer cells: each shows the highest value of the block that it stands for.

    The highest and not the mean, so that one slow rank is seen among any number of others.
    """

    values: FloatMatrix
    row: npt.NDArray[np.int64]
    """Row of the matrix that the shown value is from."""
    column: npt.NDArray[np.int64]
    rows_each: int
    """Rows of the matrix in one row of blocks; the last may hold fewer."""
    columns_each: int


def in_blocks(values: FloatMatrix, max_rows: int, max_columns: int) -> Blocks:
    """Return a matrix in at most so many rows and columns of blocks."""
    tall, wide = values.shape
    rows_each, columns_each = -(-tall // max_rows), -(-wide // max_columns)
    rows, columns = -(-tall // rows_each), -(-wide // columns_each)
    padded = np.full((rows * rows_each, columns * columns_each), -np.inf)
    padded[:tall, :wide] = np.where(np.isfinite(values), values, -np.inf)
    blocks = padded.reshape(rows, rows_each, columns, columns_each).swapaxes(1, 2)
    flat = blocks.reshape(rows, columns, rows_each * columns_each)
    at = flat.argmax(axis=2)
    highest = np.take_along_axis(flat, at[..., None], axis=2)[..., 0]
    return Blocks(
        values=np.where(np.isfinite(highest), highest, np.nan),
        row=np.arange(rows)[:, None] * rows_each + at // columns_each,
        column=np.arange(columns)[None, :] * columns_each + at % columns_each,
        rows_each=rows_each,
        columns_each=columns_each,
    )


def mesh_facets(diagnosis: Diagnosis) -> tuple[MeshFacet, ...]:
    """Return one DP x PP grid of slowdowns for each tensor rank.

    Ranks that share a cell (a context-parallel group) show their largest slowdown.
    """
    table = diagnosis.stragglers.sort_values("slowdown", na_position="first")
    if table.empty or (table[["pp", "dp", "tp"]] < 0).any(axis=None):
        return ()
    shape = (int(table["dp"].max()) + 1, int(table["pp"].max()) + 1)
    facets = []
    for tp, part in table.groupby("tp"):
        slowdown, rank = np.full(shape, np.nan), np.full(shape, -1, dtype=np.int64)
        at = (part["dp"].to_numpy(np.int64), part["pp"].to_numpy(np.int64))
        slowdown[at] = part["slowdown"].to_numpy(np.float64)
        rank[at] = part["rank"].to_numpy(np.int64)
        facets.append(MeshFacet(tp=int(tp), slowdown=slowdown, rank=rank))  # type: ignore[arg-type]
    return tuple(facets)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestRank:
    """The rank with the largest slowdown, and where it sits (-1 where not known)."""

    rank: int
    slowdown: float
    pp: int
    dp: int
    tp: int


def slowest_rank(diagnosis: Diagnosis) -> SlowestRank | None:
    """Return the slowest rank; None where no rank could be compared with another."""
    known = diagnosis.stragglers.dropna(subset=["slowdown"])
    if known.empty:
        return None
    row = known.sort_values("slowdown").iloc[-1]
    place = {axis: int(row[axis]) for axis in ("rank", "pp", "dp", "tp")}
    return SlowestRank(slowdown=float(row["slowdown"]), **place)


def _classes(ledger: pd.DataFrame, ending: str) -> list[str]:
    return [str(name) for name in ledger.columns if str(name).endswith(ending)]


def _sum(ledger: pd.DataFrame, classes: list[str]) -> pd.Series[float]:
    return ledger[classes].sum(axis=1)


def _peer_median(
    ledger: pd.DataFrame, time: pd.Series[float], stage: pd.Series[int]
) -> pd.Series[float]:
    """Return the median of the other ranks of the stage; the own median without any.

    The rank itself is left out, because with few replicas its own slowness would
    move the median that it is compared with.
    """
    cells = [np.asarray(column, dtype=np.int64) for column in (stage, ledger["step"])]
    others = median_of_others(np.asarray(time, dtype=np.float64), *cells)
    own = time.groupby(ledger["rank"]).transform("median")
    return own.where(_is_alone(ledger, stage), others)


def _is_alone(ledger: pd.DataFrame, stage: pd.Series[int]) -> pd.Series[bool]:
    """Return of each row whether its stage has no other rank."""
    return ledger["rank"].groupby(stage).transform("nunique") == 1


def _matrix(
    ledger: pd.DataFrame, value: pd.Series[float], middle: float | None, meaning: str
) -> RankStepMatrix:
    wide = ledger.assign(value=value).pivot_table(index="rank", columns="step", values="value")
    return RankStepMatrix(
        ranks=tuple(int(rank) for rank in wide.index),
        steps=tuple(int(step) for step in wide.columns),
        values=wide.to_numpy(np.float64),
        middle=middle,
        meaning=meaning,
    )
