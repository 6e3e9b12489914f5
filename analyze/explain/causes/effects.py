"""Nested effects on the work of ranks: stage, worker, jitter; and on the wire.

Work between two issues of communication is compared position by position with
that of the rank's *peers*: the ranks of the same pipeline stage that issue the
same operations in the same order in that step (``peer_classes``). For a rank, the
centre of its peers leaves the rank itself out, because a centre that contains the fault understates it.

The recorded work of a segment is the sum::

    centre of the stage + worker effect of the rank + residual (jitter)

and a repair removes one term. Only ranks that are suspected have a worker term;
what makes the others differ from their peers is residual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from ...account.ledger.build import Ledger
from ...tables.arrays import BoolArray, FloatArray, IntArray, combined, numbers_in
from ...tables.centres import (
    StepsOfRanks,
    as_bad_as_own,
    group_median,
    median_of_others,
    to_mean_steps,
)
from ...tables.classes import CLASSES, COMPUTE_CLASSES, STALLS, class_code
from ...tables.sorting import ranks_of_group
from ...tables.trace import Trace, stage_of_ranks
from ..replay.program import Program
from .idle_cells import idle_as_one
from .kinds_of_steps import kinds_of_steps
from .peer_classes import kinds_of_ranks, peer_classes
from .time_inside import on_edges, times_inside

PASSES = {"forward_frac": ("forward",), "backward_frac": ("backward", "recompute")}
"""Classes of the ledger that are computed once a microbatch, by the direction of the pass."""
MOSTLY = 0.5
"""A cell is a pass if more than that part of its computing is."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Work of every work edge, placed in its cell (rank, step, issue interval)."""

    cell: IntArray
    """Cell of each work edge."""
    cells: pd.DataFrame
    """rank, step, interval, alike (how many cells it is: those in which nobody of a class works are one, the
    first of them), peer_class (of the step; -1: deviates from all peers), work_ns (without the
    stalls of its host), compute_ns, clock_ns (what a slow clock of its device cost, which the
    other two are without), forward_frac, backward_frac (parts of what it computes; recomputation is part of
    the backward), is_pass (whether these two are most of it)."""
    busy_edge: IntArray
    """The edges with any work, rising."""
    busy_ns: FloatArray
    """The work of each of them without the stalls of its host, and without what slow clocks cost."""
    edge_host_ns: dict[str, FloatArray]
    """Time of each edge in the host classes of the ledger that occur at all."""
    peer_class: dict[int, int]
    """Class of each rank by its usual steps; the members of a class are each other's peers."""
    stage: dict[int, int]
    """Pipeline stage (pp coordinate) of each rank; -1 if unknown."""
    deviating: int
    """Steps of ranks whose operations differ from those of all their peers."""

    def work_of(self, edge: IntArray) -> FloatArray:
        """Return the work of some edges, which is that of ``busy_ns``."""
        if edge is self.busy_edge:
            return self.busy_ns
        return on_edges(self.busy_edge, self.busy_ns, len(self.cell))[edge]


class Expected(NamedTuple):
    """What the cells should have taken."""

    work_ns: FloatArray
    """The work of each cell on a healthy rank; NaN where nothing tells."""
    unequal_ns: FloatArray | None
    """What of it the cell's own microbatch makes it differ; None if all are alike, or nothing tells."""
    is_stated: bool = False
    """Whether the training code said so; else the passes do."""


def place_work(trace: Trace, program: Program, ledger: Ledger) -> Work:
    """Return the work of the program by rank, step and position."""
    marks = program.marks
    stage = stage_of_ranks(trace, program.windows.ranks.tolist())
    edge = program.work_edges
    keys = (
        marks["rank"].to_numpy()[edge],
        marks["step"].to_numpy()[edge],
        _interval(marks, program.is_recorded_issue)[edge],
    )
    stalls = [name for name in STALLS if ledger.by_step[name].any()]
    in_passes = {name for classes in PASSES.values() for name in classes}
    others = [name for name in COMPUTE_CLASSES if name not in in_passes]
    kinds = [*([name] for name in stalls), *PASSES.values(), others]
    codes = [list(map(class_code, kind)) for kind in kinds]
    busy, inside = times_inside(marks, edge, ledger, codes)
    host = {
        name: on_edges(busy, stall, len(edge)) for name, stall in zip(stalls, inside, strict=False)
    }
    work = marks["work_ns"].to_numpy()[edge[busy]].astype(np.float64)
    for stall in inside[: len(stalls)]:
        work -= stall
    passes = dict(zip(PASSES, inside[len(stalls) :], strict=False))
    compute = sum(passes.values()) + inside[-1]
    del inside
    cell, first = _numbered_runs(*keys)
    own, cells_of = cell[busy], len(first)
    names = ("rank", "step", "interval")
    cells = pd.DataFrame({name: key[first] for name, key in zip(names, keys, strict=True)})
    del keys
    cells["work_ns"] = np.bincount(own, weights=work, minlength=cells_of)
    cells["compute_ns"] = np.bincount(own, weights=compute, minlength=cells_of)
    run, head = _numbered_runs(cells["rank"].to_numpy(), cells["step"].to_numpy())
    rank, step = (cells[name].to_numpy(np.int64)[head] for name in ("rank", "step"))
    # Of a known mesh the ranks of a stage hold the same part of the model.
    kinds_of = stage if trace.layout is not None else kinds_of_ranks(program)
    classes = peer_classes(program, rank, step, kinds_of)
    cells["peer_class"] = classes.of_step[run]
    cells, cell = idle_as_one(cells, cell, run)
    own, cells_of = cell[busy], len(cells)
    whole = cells["compute_ns"].where(cells["compute_ns"] > 0, 1.0)
    for direction, part in passes.items():
        cells[direction] = np.bincount(own, weights=part, minlength=cells_of) / whole
    cells["is_pass"] = sum(cells[name] for name in PASSES) > MOSTLY
    cells["clock_ns"] = 0.0
    worked = np.flatnonzero(work)
    return Work(
        cell=cell,
        cells=cells,
        busy_edge=busy[worked].astype(np.int32),
        busy_ns=work[worked],
        edge_host_ns=host,
        peer_class=classes.of_rank,
        stage=stage,
        deviating=classes.deviating,
    )


def _interval(marks: pd.DataFrame, is_issue: BoolArray) -> IntArray:
    """Return how many operations the rank has issued before each mark, in its step."""
    issued = is_issue.astype(np.int32)
    before = np.cumsum(issued, dtype=np.int32) - issued
    run, first = _numbered_runs(marks["rank"].to_numpy(), marks["step"].to_numpy())
    if first.size == 0 or (np.diff(run) >= 0).all():
        return np.asarray(before - before[first][run])
    counted = pd.Series(issued).groupby(run).cumsum().to_numpy()
    return np.asarray(counted - issued)


def _numbered_runs(*keys: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Number the combinations of keys in sorted order; return numbers and a row of each.

    Marks are in program order, so equal keys are neighbours and sorted: then this takes
    one pass. Where a mark carries the label of another step it takes a sort.
    """
    differs = np.append(True, np.zeros(max(len(keys[0]) - 1, 0), dtype=bool))[: len(keys[0])]
    falls = np.zeros(max(len(keys[0]) - 1, 0), dtype=bool)
    for key in keys:
        less = key[1:] < key[:-1]
        # A later key decides only where the earlier ones are equal.
        if less.any():
            falls |= ~differs[1:] & less
        differs[1:] |= key[1:] != key[:-1]
    if not falls.any():
        return np.cumsum(differs, dtype=np.int32) - 1, np.flatnonzero(differs)
    order = np.lexsort(keys[::-1])
    number = np.empty(len(order), np.int32)
    number[order], first = _numbered_runs(*(key[order] for key in keys))
    return number, order[first]


def peer_centre(
    work: Work, unequal_ns: FloatArray | None = None, without: Collection[int] = ()
) -> FloatArray:
    """Return, per cell, what the peers of its rank worked in the same step; NaN without peers.

    The leave-one-out median over the peers, position by position, scaled so that
    a step's sum is the median of the peers' sums, and the mean step the median of the peers'
    mean steps: noise is skewed (a rank can only be late), so that the sum of medians would be too
    small, and each rank would exceed it.

    Args:
        work: The recorded work.
        unequal_ns: What each cell works because of its own microbatch: peers are compared
            without theirs, and the rank's own is added to what they worked.
        without: Ranks that nobody is compared with.
    """
    known = np.flatnonzero(work.cells["peer_class"].to_numpy() >= 0)
    names = ("rank", "step", "peer_class", "interval", "work_ns")
    rank, step, peers, interval, own = (work.cells[name].to_numpy()[known] for name in names)
    if unequal_ns is not None:
        own = own - unequal_ns[known]
    counts = ~np.isin(rank, list(without)) if without else None
    centre = median_of_others(own, peers, step, interval, counts=counts)
    run, head = _numbered_runs(rank, step)
    whole = None if counts is None else counts[head]
    total: FloatArray = np.bincount(run, own, len(head)).astype(np.float64)
    seen = np.bincount(run, ~np.isnan(centre), len(head)) > 0
    of_centre = np.where(seen, np.bincount(run, np.nan_to_num(centre), len(head)), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = median_of_others(total, peers[head], step[head], counts=whole) / of_centre
    sums = np.nan_to_num(np.where(np.isfinite(scale), scale, 1.0) * of_centre)
    steps = StepsOfRanks(rank[head], step[head], peers[head], total)
    bad = as_bad_as_own(sums, steps)
    bad *= to_mean_steps(bad, steps, whole)
    centre *= np.divide(bad, of_centre, out=np.ones(len(head)), where=of_centre > 0)[run]
    result = np.full(len(work.cells), np.nan)
    result[known] = centre
    return result if unequal_ns is None else result + unequal_ns


def sums_of_steps(cells: pd.DataFrame, *places: str, **values: npt.NDArray[Any]) -> pd.DataFrame:
    """Return values of cells added up for each step of a rank, by their places, rank and step.

    Args:
        cells: rank, step and the places, which are the same in a step of a rank; by rank and step.
        places: Columns of these.
        values: One value a cell, by name.
    """
    run, first = _numbered_runs(cells["rank"].to_numpy(), cells["step"].to_numpy())
    names = [*places, "rank", "step"]
    index = pd.MultiIndex.from_arrays(
        [cells[name].to_numpy()[first] for name in names], names=names
    )
    sums = {name: np.bincount(run, own, len(first)) for name, own in values.items()}
    return pd.DataFrame(sums, index).sort_index()


def by_step(work: Work, cell_ns: FloatArray) -> pd.DataFrame:
    """Return a value of cells added up for each step (rows) and rank (columns)."""
    rank, step = (work.cells[name].to_numpy(np.int64) for name in ("rank", "step"))
    run, first = _numbered_runs(rank, step)
    sums = np.bincount(run, cell_ns, len(first))
    rows = pd.DataFrame({"step": step[first], "rank": rank[first], "ns": sums})
    return rows.pivot(index="step", columns="rank", values="ns").fillna(0.0)


def among_healthy(work: Work, expected: Expected, slow: Collection[int]) -> Expected:
    """Return what the cells should have taken, with slow ranks that are each other's peers separated.

    Half of the peers of a slow rank or more may be slow too; the median of them is no measure then.
    Each is compared with those of its peers that are not slow, if there are any.

    Args:
        work: The work by cell, without what slow clocks cost.
        expected: What each cell would have taken on a rank that is like all of its peers.
        slow: The ranks that are to be repaired together.
    """
    of_class = Counter(work.peer_class[rank] for rank in slow)
    several = [rank for rank in slow if of_class[work.peer_class[rank]] > 1]
    if not several:
        return expected
    healthy = peer_centre(work, expected.unequal_ns, several)
    is_measured = np.isin(work.cells["rank"].to_numpy(), several) & ~np.isnan(healthy)
    return expected._replace(work_ns=np.where(is_measured, healthy, expected.work_ns))


def stage_centre(
    work: Work, reference_ns: FloatArray, unequal_ns: FloatArray | None = None
) -> FloatArray:
    """Return, per cell, what a usual step takes there: of its peer class, and of all steps of a kind.

    The median over ranks and steps, position by position, scaled so that a step's sum is the
    median of their sums: noise adds to a step, and a single pause, which a mean would spread over all
    steps, is no part of what is usual. A rank of its own kind takes no longer than the mean of its steps: a few
    short ones are no noise, which adds. Cells that deviate from their peers keep their own reference.

    Args:
        work: The recorded work.
        reference_ns: What each cell worked, or would have.
        unequal_ns: What of it comes with its microbatch, which makes no kind of step; the centre is without.
    """
    even = reference_ns if unequal_ns is None else reference_ns - unequal_ns
    kinds = kinds_of_steps(sums_of_steps(work.cells, "peer_class", ns=even)["ns"])
    peers, rank, step, interval = (
        work.cells[name].to_numpy(np.int64) for name in ("peer_class", "rank", "step", "interval")
    )
    kind = peers
    if kinds.any():
        at = pd.MultiIndex.from_frame(work.cells[list(kinds.index.names)])
        kind = combined(peers, kinds.reindex(at).to_numpy(np.int64))
    centre = group_median(even, kind, interval)
    place, first = _numbered_runs(rank, step)
    of_step = np.bincount(place, even, len(first)).astype(np.float64)
    of_kind = combined(kind[first])
    usual = group_median(of_step, of_kind)
    mean = (np.bincount(of_kind, of_step) / np.maximum(np.bincount(of_kind), 1))[of_kind]
    usual = np.where(ranks_of_group(rank[first], of_kind) > 1, usual, np.minimum(usual, mean))
    of_centre = np.bincount(place, centre, len(first))
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = usual / of_centre
    centre = centre * np.where(np.isfinite(scale), scale, 1.0)[place]
    return np.where(peers >= 0, centre, even)


MIN_STEPS_FOR_SPREAD = 3
NOISE_FLOOR = 1e-3
"""Least noise of a step's work, as a share of it: clocks and integer stamps are not exact."""


def excess_by_rank(work: Work, peer_ns: FloatArray) -> pd.DataFrame:
    """Return how much longer each rank works than its peers, with its significance.

    Returns:
        One row a rank: rank, peer_class, peers, excess_ns and peer_ns (means per step), slowdown
        (own work over that of the peers), z (mean excess over its standard error).
        NaN without peers. The noise behind the standard error is the median over all
        ranks of their spread across steps, long stalls included: the spread of a rank
        that is slow in some of its steps only would hide it.
    """
    is_known = ~np.isnan(peer_ns)
    names = ("rank", "step", "peer_class", "interval", "alike", "work_ns")
    columns = {name: work.cells[name].to_numpy()[is_known] for name in names}
    known = pd.DataFrame({**columns, "peer_ns": peer_ns[is_known]}, copy=False)
    own = {name: known[name].to_numpy() for name in ("work_ns", "peer_ns")}
    steps = sums_of_steps(known, "peer_class", **own).reorder_levels(["rank", "step", "peer_class"])
    steps = steps.sort_index()
    excess = steps["work_ns"] - steps["peer_ns"]
    by_rank = excess.groupby(level=0)
    peer_mean = steps["peer_ns"].groupby(level=0).mean()
    spread = _spread_of_steps(excess)
    if len(numbers_in(columns["step"])) < MIN_STEPS_FOR_SPREAD:
        spread = _spread_of_cells(known)
    relative = (spread / peer_mean).dropna()
    usual_noise = (float(relative.median()) if len(relative) else np.nan) + NOISE_FLOOR
    error: pd.Series[float] = usual_noise * peer_mean / np.sqrt(by_rank.size().to_numpy())
    sums = steps.groupby(level=0).sum()
    table = pd.DataFrame(
        {
            "excess_ns": by_rank.mean(),
            "peer_ns": peer_mean,
            "slowdown": sums["work_ns"] / sums["peer_ns"],
            "z": by_rank.mean() / error,
        }
    )
    ranks = sorted(work.peer_class)
    table = table.reindex(ranks)
    table["peer_class"] = [work.peer_class[rank] for rank in ranks]
    table["peers"] = table.groupby("peer_class")["peer_class"].transform("size") - 1
    return table.rename_axis("rank").reset_index()


def _spread_of_steps(excess: pd.Series) -> pd.Series:
    """Return the spread of a step's sum by rank, among steps of one kind.

    A rank that is slow in one kind of its steps only is no noisier for it. Where too many
    steps are the only one of their kind, that between all of them.
    """
    whole = excess.groupby(level="rank")
    kinds = excess.groupby(level=["rank", "peer_class"])
    squares = ((excess - kinds.transform("mean")) ** 2).groupby(level="rank").sum()
    freedom = whole.size() - kinds.size().groupby(level="rank").size()
    enough = freedom >= MIN_STEPS_FOR_SPREAD - 1
    spread: pd.Series = np.sqrt(squares / freedom.where(enough)).where(enough, whole.std())
    return spread


def _spread_of_cells(cells: pd.DataFrame) -> pd.Series:
    """Return the spread of a step's sum by rank, from that of its cells.

    With too few steps to see their sums differ, the pieces of a step are taken as
    independent, so that their variances add up. The spread of a piece is that
    between the steps; in a single step, that between the pieces.
    """
    excess = (cells["work_ns"] - cells["peer_ns"]).to_numpy()
    steps, alike = len(numbers_in(cells["step"].to_numpy())), cells["alike"].to_numpy()
    rank, first = _numbered_runs(cells["rank"].to_numpy())
    if steps > 1:
        places = [cells["rank"].to_numpy(), cells["interval"].to_numpy()]
        squares = (excess - pd.Series(excess).groupby(places).transform("mean").to_numpy()) ** 2
    else:
        mean = np.bincount(rank, excess) / np.bincount(rank, alike)
        squares = alike * (excess - mean[rank]) ** 2
    sums = np.bincount(rank, squares, len(first))
    index = pd.Index(cells["rank"].to_numpy()[first], name="rank")
    return pd.Series(np.sqrt(sums / max(steps - 1, 1)), index)


def excess_by_class(ledger: Ledger, rank: int, peers: list[int]) -> pd.Series:
    """Return, per ledger class, how much more time the rank spends than its peers' median."""
    means = ledger.by_step.groupby("rank")[list(CLASSES)].mean()
    own = means.loc[[rank]].iloc[0]
    return own - means.loc[peers].median()
