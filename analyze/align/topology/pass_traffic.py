"""Tensor from data parallelism, by the passes in which a group reduces.

A tensor-parallel group sums activations in every forward pass and their gradients in every
backward one, in like amounts (Shoeybi et al., Megatron-LM, 2019, section 3; with sequence
parallelism it scatters and gathers in both: Korthikanti et al., 2022, section 4.2). A
data-parallel group reduces gradients of weights, which exist in the backward or after
it only; what it gathers in the forward (fully sharded) is no reduction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from meshscope.probe.schema.terms import CollectiveKind, SpanKind

from ...tables.trace import Trace

REDUCTIONS = frozenset({CollectiveKind.ALL_REDUCE.value, CollectiveKind.REDUCE_SCATTER.value})
MOST_IN_FORWARD = 0.1
"""Share of what a data-parallel group reduces that a forward pass may issue (batch statistics)."""
OF_ACTIVATIONS = (0.25, 0.75)
"""Share in the forward of what a tensor-parallel group reduces: a half, or a third where the
forward is computed again for the backward."""
LEAST_OF_GRADIENTS = 0.1
"""Least share of the largest sum of a rank: what reduces less are norms, losses and counters."""
_RANKS_ASKED = 8
"""All ranks run the same program; a few of different stages stand for them."""


def reduced_in_passes(trace: Trace) -> pd.DataFrame:
    """Return what a few ranks reduced, by group.

    Returns:
        rank, group_id, total (bytes), forward_frac (share of them that was issued within a
        forward pass); empty where no forward passes were recorded.
    """
    parts = [part for rank in _asked(trace) if len(part := _of_rank(trace, rank))]
    if not parts:
        return pd.DataFrame(columns=["rank", "group_id", "total", "forward_frac"])
    return pd.concat(parts, ignore_index=True)


def has_forwards(trace: Trace) -> bool:
    """Tell if the forward passes of a rank were recorded that would be asked what it reduced."""
    if not trace.row_count("span"):
        return False
    kinds = (trace.rank_table("span", rank, ["kind"])["kind"] for rank in _asked(trace))
    return any(SpanKind.FORWARD.value in pc.unique(own).to_pylist() for own in kinds)


def _asked(trace: Trace) -> list[int]:
    return sorted(set(trace.ranks[:: max(1, len(trace.ranks) // _RANKS_ASKED)]))


def _of_rank(trace: Trace, rank: int) -> pd.DataFrame:
    if not trace.row_count("span"):
        return pd.DataFrame()
    spans = trace.rank_frame("span", rank, ["kind", "start_ns", "dur_ns"])
    forwards = spans[spans["kind"] == SpanKind.FORWARD.value]
    rows = trace.rank_frame("collective", rank, ["group_id", "kind", "size_bytes", "issue_ns"])
    rows = rows[rows["kind"].isin(REDUCTIONS) & rows["issue_ns"].notna()]
    if forwards.empty or rows.empty:
        return pd.DataFrame()
    size = rows["size_bytes"].fillna(0).clip(lower=0).to_numpy(np.float64)
    inside = within(forwards, rows["issue_ns"].to_numpy(np.int64))
    sums = pd.DataFrame(
        {"group_id": rows["group_id"].astype(str), "total": size, "forward": size * inside}
    )
    found = sums.groupby("group_id", as_index=False).sum()
    found = found[found["total"] > 0]
    found["forward_frac"] = found["forward"] / found["total"]
    return found.assign(rank=rank)[["rank", "group_id", "total", "forward_frac"]]


def within(spans: pd.DataFrame, at_ns: np.ndarray) -> np.ndarray:
    """Tell which instants lie in a span; spans of one rank, that may follow each other anyhow."""
    starts = spans["start_ns"].to_numpy(np.int64)
    return lie_within(starts, starts + spans["dur_ns"].to_numpy(np.int64), at_ns)


def lie_within(starts: np.ndarray, ends: np.ndarray, at_ns: np.ndarray) -> np.ndarray:
    """Tell which instants lie between a start and its end."""
    begun = np.searchsorted(np.sort(starts), at_ns, side="right")
    return np.asarray(begun > np.searchsorted(np.sort(ends), at_ns, side="right"))


def tensor_groups(reduced: pd.DataFrame) -> set[str]:
    """Return the groups that reduce in forward and backward passes alike."""
    low, high = OF_ACTIVATIONS
    frac = _forward_frac(reduced)
    return set(frac.index[frac.between(low, high)])


def gradient_groups(
    reduced: pd.DataFrame, members: dict[str, tuple[int, ...]], apart: Iterable[Collection[int]]
) -> set[str]:
    """Return the groups that reduce the gradients of weights.

    Args:
        reduced: What ``reduced_in_passes`` returns.
        members: Ranks of each group.
        apart: Sets of ranks that have different weights, such as the stages of a pipeline:
            what is reduced among them is shared (tied embeddings), not replicated.
    """
    frac = _forward_frac(reduced)
    shared = {name for name, ranks in members.items() if any(set(ranks) <= set(a) for a in apart)}
    names = reduced["group_id"]
    late = reduced[names.isin(frac.index[frac <= MOST_IN_FORWARD]) & ~names.isin(shared)]
    largest = late.groupby("rank")["total"].transform("max")
    return set(late.loc[late["total"] >= LEAST_OF_GRADIENTS * largest, "group_id"])


def _forward_frac(reduced: pd.DataFrame) -> pd.Series[float]:
    weighted = (reduced["forward_frac"] * reduced["total"]).groupby(reduced["group_id"]).sum()
    return weighted / reduced.groupby("group_id")["total"].sum()
