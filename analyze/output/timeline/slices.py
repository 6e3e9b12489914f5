"""The slices of one step: what each rank shows at each instant, without overlap.

The rules are those of the ledger, so that the picture and the account agree: on
a host clock a wait covers the span around it, because the thread that waits
does not compute; on a device, compute covers communication, which is then not
exposed. Worked example, one rank with a host clock, forward 0..10, waiting for
an all-reduce 4..6::

    forward 0..4 | waiting 4..6 | forward 6..10
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import StepDetail

from ...align.clocks.stamps import settled
from ...align.steps.whole_capture import WHOLE_CAPTURE
from ...tables.arrays import BoolArray
from ...tables.intervals import NO_OWNER, sweep_priority
from ...tables.trace import Trace
from .categories import Category
from .claims import claims_of, rows_of_step
from .unfinished import open_waits, unfinished_steps, with_unfinished

MARK = "\N{BLACK RIGHT-POINTING TRIANGLE} "
"""Before the label of a rank that is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSlices:
    """The drawable content of one step."""

    step: int
    ranks: tuple[int, ...]
    """Row order from top to bottom: by pipeline, data, then tensor rank where known."""
    labels: tuple[str, ...]
    """Row label of each rank, with its place in the mesh."""
    origin_ns: int
    """Earliest start of the step on any rank, on the clock of the trace."""
    length_ns: int
    """From the earliest start of the step on any rank to its latest end."""
    slices: pd.DataFrame
    """row, rank, category, start_ns, end_ns (after the earliest start), text, microbatch (-1 for none)."""
    undrawn: int
    """Communications whose waiting or end was not captured; they cannot be drawn."""
    longest_ns: int = 0
    """Longest time that a rank spends in the step; less than ``length_ns`` where ranks begin it
    at different times."""
    is_broken_off: bool = False
    """Whether the capture ends in this step, so that what is open in it is drawn to its end."""


def steps_of(trace: Trace) -> tuple[int, ...]:
    """Return the steps that can be drawn, ascending; also those in which the capture broke off."""
    every = {int(step) for step in trace.frame("step")["step"].unique()}
    drawn = every - bare_steps(trace) or every
    return tuple(sorted(drawn.union(unfinished_steps(trace)))) or (WHOLE_CAPTURE,)


def bare_steps(trace: Trace) -> frozenset[int]:
    """Return the steps of which no rank holds more than the length."""
    frame = trace.frame("step")
    is_bare = frame["detail"].eq(StepDetail.STEPS.value).fillna(value=False)
    traced = {step for steps in (trace.kernel_steps or {}).values() for step in steps}
    found = is_bare.astype(bool).groupby(frame["step"]).all()
    return frozenset(map(int, found.index[found])) - traced


def step_slices(trace: Trace, step: int, wanted: Collection[int] | None = None) -> StepSlices:
    """Return what happened in one step on every rank that has it.

    With stamps settled, as the account has them. Joins that the account infers are no record, and not drawn.

    Args:
        trace: The run.
        step: One of ``steps_of``.
        wanted: Ranks whose rows are made, None for all. The bounds of the step are those of all ranks.
    """
    if wanted is not None and step == WHOLE_CAPTURE:
        # Its bounds are known from all that was recorded.
        return of_ranks(step_slices(trace, step), wanted, ())
    trace = settled(trace).trace
    is_broken_off = step in unfinished_steps(trace)
    stood = open_waits(trace) if is_broken_off or step == WHOLE_CAPTURE else ()
    claims, undrawn = claims_of(trace, step, stood, wanted)
    windows = _windows(trace, step, claims)
    if is_broken_off:
        windows = with_unfinished(trace, step, windows)
    ranks = _row_order(trace, trace.ranks if wanted is None else wanted)
    origin = min((start for start, _ in windows.values()), default=0)
    slices = _visible(claims, windows, ranks)
    slices[["start_ns", "end_ns"]] -= origin
    return StepSlices(
        step=step,
        ranks=ranks,
        labels=tuple(_row_label(trace, rank) for rank in ranks),
        origin_ns=origin,
        length_ns=max((end for _, end in windows.values()), default=origin) - origin,
        slices=slices,
        undrawn=undrawn,
        longest_ns=max((end - start for start, end in windows.values()), default=0),
        is_broken_off=is_broken_off,
    )


def step_outline(trace: Trace, step: int) -> StepSlices:
    """Return a step with all its rows, and no slices: nothing of a large run need be read for it."""
    ranks = _row_order(trace, trace.ranks)
    labels = tuple(_row_label(trace, rank) for rank in ranks)
    return replace(step_slices(trace, step, ()), ranks=ranks, labels=labels)


def in_window(slices: pd.DataFrame, window_ns: tuple[int, int]) -> pd.DataFrame:
    """Return the slices that touch a time window; where these are all, the very same."""
    is_seen = is_in_window(slices, window_ns)
    return slices if is_seen.all() else slices[is_seen]


def is_in_window(slices: pd.DataFrame, window_ns: tuple[int, int]) -> BoolArray:
    """Return which slices touch a time window: to count a million is quick, to copy them is not."""
    start, end = slices["start_ns"].to_numpy(), slices["end_ns"].to_numpy()
    found: BoolArray = (end > window_ns[0]) & (start < window_ns[1])
    return found


def ranks_around(
    ranks: tuple[int, ...], rank: int, layout: ParallelLayout | None
) -> tuple[int, ...]:
    """Return a rank and its groups among others, in their order: they differ in one axis of the mesh.

    The rank alone where the mesh is not known.
    """
    return tuple(other for other in ranks if _distance(layout, rank, other) <= 1)


def with_marks(step: StepSlices, marked: Collection[int]) -> StepSlices:
    """Return a step in which some ranks have a sign before the label."""
    labels = zip(step.ranks, step.labels, strict=True)
    return replace(step, labels=tuple(MARK * (rank in marked) + label for rank, label in labels))


def of_ranks(step: StepSlices, ranks: Collection[int], marked: Collection[int]) -> StepSlices:
    """Return a step with the rows of some ranks; those that are marked have a sign before the label."""
    wanted = set(ranks)
    kept = [at for at, other in enumerate(step.ranks) if other in wanted]
    row = pd.Index(kept).get_indexer(pd.Index(step.slices["row"]))
    return replace(
        step,
        ranks=tuple(step.ranks[at] for at in kept),
        labels=tuple(f"{MARK * (step.ranks[at] in marked)}{step.labels[at]}" for at in kept),
        slices=step.slices.assign(row=row)[row >= 0].reset_index(drop=True),
    )


def without_categories(step: StepSlices, hidden: Collection[Category]) -> StepSlices:
    """Return a step without the slices of some categories; its rows stay."""
    if not hidden:
        return step
    shown = ~np.isin(step.slices["category"].to_numpy(), list(hidden))
    return replace(step, slices=step.slices[shown].reset_index(drop=True))


def with_pinned(step: StepSlices, pinned: StepSlices) -> StepSlices:
    """Return a step with some ranks in the first rows, whether it shows them or not.

    Args:
        step: The rows that are shown.
        pinned: The rows of these ranks.
    """
    if not pinned.ranks:
        return step
    first = with_marks(pinned, pinned.ranks)
    rest = of_ranks(step, set(step.ranks).difference(first.ranks), ())
    below = rest.slices.assign(row=rest.slices["row"] + len(first.ranks))
    return replace(
        step,
        ranks=(*first.ranks, *rest.ranks),
        labels=(*first.labels, *rest.labels),
        slices=pd.concat([first.slices, below], ignore_index=True),
    )


def worst_ranks(
    ranks: tuple[int, ...], most: int, badness: Mapping[int, float], named: Collection[int]
) -> tuple[int, ...]:
    """Return the ranks of at most so many rows: where ranks share one, the worst of them is shown.

    Dominance by share would hide a slow rank among healthy ones; a row of its own does not.

    Args:
        ranks: Of all rows.
        most: Rows that there are pixels for.
        badness: Of each rank; the highest of a row is shown, unknown is lowest.
        named: Ranks of findings: they come before all others.
    """
    each = -(-len(ranks) // most)
    if each <= 1:
        return ranks
    weight = np.array([badness.get(rank, -np.inf) for rank in ranks])
    weight[np.isin(ranks, list(named))] = np.inf
    weight = np.where(np.isnan(weight), -np.inf, weight)
    padded = np.full(-(-len(weight) // each) * each, -np.inf)
    padded[: len(weight)] = weight
    best = padded.reshape(-1, each).argmax(axis=1) + np.arange(len(padded) // each) * each
    return tuple(ranks[at] for at in best.tolist())


def _distance(layout: ParallelLayout | None, rank: int, other: int) -> int:
    """Return in how many axes two ranks differ; more than one where that is not known."""
    if rank == other or layout is None or max(rank, other) >= layout.world_size:
        return 0 if rank == other else 2
    pairs = zip(*(layout.coordinates(one).values() for one in (rank, other)), strict=True)
    return sum(here != there for here, there in pairs)


def _visible(
    claims: pd.DataFrame, windows: dict[int, tuple[int, int]], ranks: tuple[int, ...]
) -> pd.DataFrame:
    """Return the pieces of the ranks' claims that nothing covers, inside the window of each rank.

    The ranks are laid end to end with all that they claim, so that one sweep is for all of them.
    """
    drawn = [(row, rank, *windows[rank]) for row, rank in enumerate(ranks) if rank in windows]
    row, rank, begin, end = np.array(drawn, dtype=np.int64).reshape(-1, 4).T
    at = pd.Index(rank).get_indexer(pd.Index(claims["rank"]))
    claims, at = claims[at >= 0], at[at >= 0]
    times = claims[["start_ns", "end_ns"]].to_numpy(np.int64)
    first, last = begin.copy(), np.maximum(begin, end)
    np.minimum.at(first, at, times[:, 0])
    np.maximum.at(last, at, times[:, 1])
    moved = np.append(0, np.cumsum(last - first)) - np.append(first, 0)
    laid = times + moved[at, None]
    priority = claims["priority"].to_numpy(np.int64)
    swept = sweep_priority(laid, priority, (0, int(moved[-1])))
    owner = swept.owner[swept.owner != NO_OWNER]
    place = at[owner]
    bounds = np.stack([swept.start, swept.end])[:, swept.owner != NO_OWNER] - moved[place]
    start, stop = np.clip(bounds, begin[place], end[place])
    pieces = pd.DataFrame(
        {
            "row": row[place],
            "rank": rank[place],
            "category": claims["category"].to_numpy(np.int64)[owner],
            "start_ns": start,
            "end_ns": stop,
            "text": claims["text"].to_numpy(object)[owner],
            "microbatch": claims["microbatch"].to_numpy(np.int32)[owner],
        }
    )
    is_seen = pieces["end_ns"] > pieces["start_ns"]
    return pieces[is_seen].reset_index(drop=True)


def _windows(trace: Trace, step: int, claims: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """Return the window of the step on each rank; without steps, the span of its claims."""
    frame = rows_of_step(trace, "step", step)
    if step == WHOLE_CAPTURE:
        bounds = claims.groupby("rank").agg(first=("start_ns", "min"), last=("end_ns", "max"))
        return {int(r): (int(a), int(b)) for r, a, b in bounds.itertuples()}
    ends = frame["start_ns"] + frame["dur_ns"]
    return {
        int(rank): (int(start), int(end))
        for rank, start, end in zip(frame["rank"], frame["start_ns"], ends, strict=True)
    }


def _row_order(trace: Trace, ranks: Collection[int]) -> tuple[int, ...]:
    """Return some ranks with pipeline stages together, so that a bubble reads as a diagonal."""
    layout = trace.layout
    if layout is None or max(trace.ranks, default=0) >= layout.world_size:
        return tuple(sorted(ranks))
    return tuple(sorted(ranks, key=lambda rank: tuple(layout.coordinates(rank).values())))


def _row_label(trace: Trace, rank: int) -> str:
    layout = trace.layout
    if layout is None or rank >= layout.world_size:
        return f"rank {rank}"
    at = layout.coordinates(rank)
    place = " ".join(f"{axis}{at[axis]}" for axis in at if getattr(layout, axis) > 1)
    return f"rank {rank} · {place}" if place else f"rank {rank}"
