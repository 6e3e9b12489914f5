"""Which steps of which ranks are compared with each other: those that issue the same.

A trainer need not do the same in every step: one that averages its model now and then issues
nothing in most of them, one with two optimizers issues other operations in one step than in
the next. So it is steps that are alike, not ranks: a step of a rank is compared with the same
step of the ranks of its stage that issued the same operations in it, in the same order. For
example, with data parallelism over two ranks, of which rank 1 repeats a part in step 3::

    step          1        2        3
    rank 0        -        A        A        class of each step: 1, 2, and 2
    rank 1        -        A        A A      1, 2, and -1: nothing to compare it with

Where ranks of a stage issue the same in another order, and one of them is alone with its order, the order
tells nothing: they are compared place by place all the same, so that a step as a whole is right.

Where the mesh is not known, ranks may be of different kinds. A job may hold several models: one generates and others judge, one sees and another one reads. Their
ranks call the same operations in the same order, so nothing but the amounts that they reduce
tells them apart. Gradients are as large in every step, while what is exchanged between is as
long as its sequences: for example, in bytes of three steps::

    rank 0    800 4096    720 4096    910 4096      reduces 4096 in most steps
    rank 1    760 4096    880 4096    640 4096      the same kind
    rank 2    800 1024    720 1024    910 1024      another one
"""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...align.topology.pass_traffic import REDUCTIONS
from ...tables.arrays import IntArray, combined
from ...tables.sorting import order_of
from ..replay.program import Program

STEPS_AT_ONCE = 128
"""Steps of ranks whose operations are mixed at once: they stay in the cache."""
NO_CLASS = -1
"""The class of a step that cannot be compared with those of its peers."""


class PeerClasses(NamedTuple):
    """What is compared with what."""

    of_step: npt.NDArray[np.int32]
    """Class of each (rank, step) that was asked for."""
    of_rank: dict[int, int]
    """Class of each rank, by what it issues most often in steps that issue anything."""
    deviating: int
    """Steps of ranks whose operations differ from those of all their peers in the same step."""


def peer_classes(
    program: Program, rank: IntArray, step: IntArray, stage: dict[int, int]
) -> PeerClasses:
    """Group steps of ranks by their stage and by what they issue.

    Args:
        program: The replay graph.
        rank: Rank of each of the steps of ranks.
        step: Its step.
        stage: The stage of each rank, or whatever else only ranks of one kind share.
    """
    signature, content = _step_signatures(program, rank, step)
    stages = np.array([stage[own] for own in rank.tolist()], dtype=np.int64)
    kind = pd.factorize(signature)[0].astype(np.int64)
    kind = _without_lonely_orders(kind, pd.factorize(content)[0].astype(np.int64), stages, step)
    usual = _usual_kinds(rank, kind, signature != 0)
    ranks = list(usual)
    keys = pd.MultiIndex.from_arrays([[stage[own] for own in ranks], list(usual.values())])
    of_rank = dict(zip(ranks, pd.factorize(keys)[0].tolist(), strict=True))
    classes = combined(stages, kind)
    by_rank, usual_kind = (
        np.array([of[own] for own in rank.tolist()], dtype=np.int64) for of in (of_rank, usual)
    )
    # A rank without peers has its own steps as the only measure of what is usual.
    is_deviating = (_count(classes, step) < 2) & (_count(by_rank, step) > 1) & (kind != usual_kind)
    of_step = np.where(is_deviating, NO_CLASS, pd.factorize(classes)[0]).astype(np.int32)
    return PeerClasses(of_step, of_rank, int(is_deviating.sum()))


def _count(*keys: IntArray) -> IntArray:
    """Return for each row how many have the same keys."""
    group = combined(*keys)
    _, inverse, counts = np.unique(group, return_inverse=True, return_counts=True)
    return np.asarray(counts[inverse])


def _without_lonely_orders(
    kind: IntArray, content: IntArray, stage: IntArray, step: IntArray
) -> IntArray:
    """Return the kinds of steps, by what they issue alone where a rank would have no peer for its order.

    Of a stage and what it issues that holds for all steps or none: its ranks keep the same peers.

    Args:
        kind: What each step of a rank issues, in its order.
        content: The same in any order.
        stage: The stage of the rank.
        step: The number of the step.
    """
    alike = combined(stage, content)
    is_lonely = (_count(combined(stage, kind), step) < 2) & (_count(alike, step) > 1)
    unordered = np.isin(alike, alike[is_lonely])
    return np.where(unordered, kind.max(initial=0) + 1 + content, kind)


def _step_signatures(
    program: Program, rank: IntArray, step: IntArray
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return two numbers for what each step issues, 0 for nothing.

    The first is equal for equal orders, the second for the same operations in any order.
    """
    row = np.flatnonzero(program.is_recorded_issue)
    issued = [program.marks[name].to_numpy()[row] for name in ("rank", "step")]
    is_new = np.ones(len(row), dtype=bool)
    is_new[1:] = (issued[0][1:] != issued[0][:-1]) | (issued[1][1:] != issued[1][:-1])
    opens = np.flatnonzero(is_new)
    own = pd.MultiIndex.from_arrays([rank, step])
    of_opens = own.get_indexer(pd.MultiIndex.from_arrays([key[opens] for key in issued]))
    count = np.diff(opens, append=len(row))
    event = program.marks["event"].to_numpy()[row]
    if (np.diff(of_opens) <= 0).any():
        run = np.repeat(of_opens, count)
        order = order_of(run)
        event, run = event[order], run[order]
        opens = np.flatnonzero(np.append(True, run[1:] != run[:-1]))
        of_opens, count = run[opens], np.diff(opens, append=len(row))
    codes = program.signature
    signature, content = np.zeros((2, len(rank)), np.uint64)
    for low in range(0, len(opens), STEPS_AT_ONCE):
        some = slice(low, low + STEPS_AT_ONCE)
        first, rows = opens[some] - opens[low], int(count[some].sum())
        code = codes[event[opens[low] : opens[low] + rows]]
        position = (np.arange(rows) - np.repeat(first, count[some])).astype(np.uint64)
        mixed = (code + np.uint64(1)) * (position * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1))
        signature[of_opens[some]] = np.bitwise_xor.reduceat(mixed, first)
        # Mixed before they are added up: sums of small numbers meet by chance.
        content[of_opens[some]] = np.add.reduceat(_mixed(code), first)
    return signature, content


def _mixed(code: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return numbers whose sums tell which were added (the finalizer of MurmurHash3, Appleby 2011)."""
    mixed = code + np.uint64(1)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        mixed = (mixed ^ (mixed >> np.uint64(33))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(33))


def _usual_kinds(rank: IntArray, kind: IntArray, issues: npt.NDArray[np.bool_]) -> dict[int, int]:
    """Return the most frequent kind of each rank's steps that issue anything; -1 without any.

    The first of equally frequent ones. Steps without communication tell least of what a rank is.
    """
    table = pd.DataFrame({"rank": rank, "kind": np.where(issues, kind, -1)})
    counts = table.groupby(["rank", "kind"]).size().rename("count").reset_index()
    counts["silent"] = counts["kind"] < 0
    rising = [True, True, False, True]
    counts = counts.sort_values(["rank", "silent", "count", "kind"], ascending=rising)
    usual = counts.drop_duplicates("rank")
    return dict(zip(usual["rank"].tolist(), usual["kind"].tolist(), strict=True))


_MOST = 0.5
"""An amount counts that is reduced in more than this share of the steps in which the rank reduces."""


def kinds_of_ranks(program: Program) -> dict[int, int]:
    """Return a number for each rank, equal for those that usually reduce the same amounts."""
    ranks = [int(rank) for rank in program.windows.ranks]
    frame = program.events[["rank", "step", "kind", "size_bytes"]]
    rows = frame[frame["kind"].isin(REDUCTIONS) & frame["size_bytes"].notna()]
    steps = rows.groupby("rank")["step"].nunique()
    seen = rows.groupby(["rank", "size_bytes"])["step"].nunique().rename("steps").reset_index()
    usual = seen[seen["steps"] > _MOST * seen["rank"].map(steps)]
    amounts: dict[int, frozenset[float]] = {
        cast(int, rank): frozenset(own.tolist())
        for rank, own in usual.groupby("rank")["size_bytes"]
    }
    of_rank = {rank: amounts.get(rank, frozenset()) for rank in ranks}
    number = {own: place for place, own in enumerate(dict.fromkeys(of_rank.values()))}
    return {rank: number[own] for rank, own in of_rank.items()}
