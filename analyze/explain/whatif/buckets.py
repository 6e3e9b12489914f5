"""Gradients summed in other buckets.

A sum of gradients is a chain of operations of one group: each begins when its bytes are there and the one
before is done, and takes ``a + b s``. Bytes become ready evenly between the recorded issues. With n
buckets of equal size the chain ends::

    end = max over j of  ready(j S / n) + (n - j + 1) (a + b S / n)

Few buckets save fixed times; many begin earlier. The recorded chain by the same formula is the measure: what
it ends earlier is taken from its last operations.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import CollectiveKind

from ...tables.arrays import BoolArray, FloatArray, IntArray
from ...tables.trace import Trace
from .transfer_model import TransferModel

KINDS = (CollectiveKind.ALL_REDUCE.value, CollectiveKind.REDUCE_SCATTER.value)
SMALL = 0.01
"""Share of the largest operation of a chain below which one is no bucket: sums of losses and norms."""
_CHAIN = ["group", "kind", "step", "pass"]


def gradient_chains(model: TransferModel, axis: str) -> pd.DataFrame:
    """Return the operations of the gradient sums of an axis, one row an operation.

    Returns:
        join, chain (number), size_bytes, start_ns (the last member's issue, less what was waited for
        those before), begin_ns (of the backward
        pass it lies in, or start_ns), wire_ns, fixed_ns, event (row of its first member in the model); in
        order of issue within a chain.
    """
    frame = model.frame
    kind = frame["kind"].astype(str)
    wanted = (
        model.of_axis(axis) & kind.isin(KINDS).to_numpy() & (frame["size_bytes"] > 0).to_numpy()
    )
    wanted &= ~frame["is_p2p"].to_numpy(bool) & np.isfinite(model.wire_ns)
    rows = pd.DataFrame(
        {
            "join": frame["join"],
            "group": frame["group_id"].astype(str),
            "kind": kind,
            "step": frame["step"],
            "rank": frame["rank"],
            "size_bytes": frame["size_bytes"],
            "start_ns": frame["start_ns"].astype(np.float64),
            "wait_end_ns": frame["wait_end_ns"],
            "wire_ns": model.wire_ns,
            "fixed_ns": model.fixed_ns,
            "event": np.arange(len(frame)),
        }
    )[wanted]
    passes, begin = _passes(model.trace, rows)
    rows = rows.assign(**{"pass": passes, "begin_ns": begin})
    one = rows.groupby("join", sort=False).agg(
        {
            **dict.fromkeys((*_CHAIN, "size_bytes", "fixed_ns", "wire_ns", "event"), "first"),
            "start_ns": "max",
            "begin_ns": "max",
            "wait_end_ns": "min",
        }
    )
    largest = one.groupby(_CHAIN)["size_bytes"].transform("max")
    one = one[one["size_bytes"] >= SMALL * largest].reset_index()
    one["chain"] = one.groupby(_CHAIN).ngroup()
    one = one.sort_values(["chain", "start_ns", "join"], kind="stable").reset_index(drop=True)
    return one.assign(start_ns=one["start_ns"] - _waited_before(one))


def _waited_before(chains: pd.DataFrame) -> pd.Series:
    """Return how long ranks stood still for operations of the chain before they issued each."""
    following = chains.groupby("chain")["start_ns"].shift(-1)
    held = (chains["wait_end_ns"] - chains["start_ns"]).where(
        chains["wait_end_ns"] <= following, 0.0
    )
    before: pd.Series = held.groupby(chains["chain"]).cumsum() - held
    return before


def _passes(trace: Trace, rows: pd.DataFrame) -> tuple[IntArray, FloatArray]:
    """Return the number of the backward pass that each operation lies in or follows, and its begin."""
    spans = trace.frame("span")
    spans = spans[spans["kind"].astype(str).str.startswith("backward")]
    number = np.zeros(len(rows), np.int64)
    begin = rows["start_ns"].to_numpy(np.float64, copy=True)
    by_rank = {
        int(str(rank)): np.sort(own["start_ns"].to_numpy(np.float64))
        for rank, own in spans.groupby("rank")
    }
    for rank, at in rows.groupby("rank").indices.items():
        starts = by_rank.get(int(str(rank)))
        if starts is None:
            continue
        number[at] = np.searchsorted(starts, begin[at], side="right")
        begin[at] = np.where(number[at] > 0, starts[np.maximum(number[at] - 1, 0)], begin[at])
    # Ranks number their passes alike within a step.
    first = pd.Series(number).groupby([rows["rank"].to_numpy(), rows["step"].to_numpy()])
    return number - first.transform("min").to_numpy(), begin


def chain_ends(
    chains: pd.DataFrame, bucket_bytes: float | None
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return for each chain when it ends as recorded and in other buckets, and the new number of buckets.

    Args:
        chains: As ``gradient_chains`` returns them.
        bucket_bytes: Most bytes of a bucket; None for one bucket.
    """
    count = int(chains["chain"].max()) + 1
    now, then, buckets = np.zeros(count), np.zeros(count), np.zeros(count, np.int64)
    sizes = chains.groupby("chain")["size_bytes"].agg(tuple)
    for pattern, alike in _alike(sizes):
        rows = chains[chains["chain"].isin(alike)]
        shape = (len(alike), len(pattern))
        start, wire, fixed = (
            rows[name].to_numpy(np.float64).reshape(shape)
            for name in ("start_ns", "wire_ns", "fixed_ns")
        )
        size = np.array(pattern, np.float64)
        number = 1 if bucket_bytes is None else int(np.ceil(size.sum() / bucket_bytes))
        each_ns = (wire - fixed).sum(axis=1, keepdims=True)
        recorded = fixed + each_ns * size / size.sum()
        now[alike] = _end(start, recorded)
        begin = np.minimum(
            rows["begin_ns"].to_numpy(np.float64).reshape(shape)[:, :1], start[:, :1]
        )
        ready = _ready(np.hstack([begin, start]), np.append(0.0, size.cumsum()), number)
        then[alike] = _end(ready, fixed.mean(axis=1, keepdims=True) + each_ns / number + 0 * ready)
        buckets[alike] = number
    return now, then, buckets


def _alike(sizes: pd.Series) -> list[tuple[tuple[int, ...], IntArray]]:
    """Return the chains that have the same sizes in the same order."""
    codes, patterns = pd.factorize(sizes)
    chain = sizes.index.to_numpy(np.int64)
    return [(tuple(pattern), chain[codes == code]) for code, pattern in enumerate(patterns)]


def _end(ready: FloatArray, taken: FloatArray) -> FloatArray:
    """Return when chains end, ``(chains,)``, of operations in turn, ``(chains, operations)``."""
    left = taken[:, ::-1].cumsum(axis=1)[:, ::-1]
    return np.asarray((ready + left).max(axis=1))


def _ready(time: FloatArray, amount: FloatArray, number: int) -> FloatArray:
    """Return when equal buckets are complete, from the times at which amounts are, ``(chains, number)``."""
    wanted = amount[-1] * np.arange(1, number + 1) / number
    after = np.clip(np.searchsorted(amount, wanted - 1e-6), 1, len(amount) - 1)
    part = (wanted - amount[after - 1]) / (amount[after] - amount[after - 1])
    part = np.clip(part, 0.0, 1.0)
    return np.asarray(time[:, after - 1] * (1 - part) + time[:, after] * part)


def bucket_shares(
    model: TransferModel,
    axis: str,
    bucket_bytes: float | None,
    chains: pd.DataFrame | None = None,
) -> FloatArray:
    """Return the share of each event's wire time that other buckets take away, ``(events,)``.

    Args:
        model: Transfers with their fixed times.
        axis: Of which the buckets are changed.
        bucket_bytes: Most bytes of a bucket; None for one bucket.
        chains: Those of the axis where they are known, of a model that may have other fixed times.
    """
    if chains is None:
        chains = gradient_chains(model, axis)
    else:
        chains = chains.assign(fixed_ns=model.fixed_ns[chains["event"].to_numpy()])
    shares = np.zeros(len(model.frame))
    if chains.empty:
        return shares
    now, then, _ = chain_ends(chains, bucket_bytes)
    gain = (now - then)[chains["chain"].to_numpy()]
    wire = chains["wire_ns"].to_numpy(np.float64)
    by_chain = chains.groupby("chain")["wire_ns"]
    after = (by_chain.transform("sum") - by_chain.cumsum()).to_numpy(np.float64)
    taken = np.clip(gain - after, 0.0, wire)
    is_last = _is_last(chains)
    taken[is_last] = np.minimum(gain, wire)[is_last]
    by_join = pd.Series(np.divide(taken, wire, out=np.zeros(len(wire)), where=wire > 0))
    by_join.index = pd.Index(chains["join"])
    found = by_join.reindex(model.frame["join"]).to_numpy(np.float64)
    return np.where(model.of_axis(axis), np.nan_to_num(found), 0.0)


def _is_last(chains: pd.DataFrame) -> BoolArray:
    chain = chains["chain"].to_numpy()
    return np.append(chain[1:] != chain[:-1], True)
