"""What hosts receive over links that are the same in every step, by axis: the sides of steady links."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...account.links.own import crossing_bytes
from ...tables.arrays import FloatArray, IntArray
from ...tables.intervals import covered_length, pair, union
from ...tables.trace import Trace
from .one_port import ports_of_ranks

MIN_STEPS = 4
"""With fewer steps nothing is the same in every one of them."""
STEADY = 0.02
"""Mean deviation of the rate of a step, as a share of the median one, up to which a link is steady."""
FAR_LESS = 0.25
"""Part of what single transfers differ by that is left of it in the rates of steps, at most: that of transfers
which vary one by one is 1."""
LEAST_SEEN = 0.005
"""The same share from which the rates of steps must explain it."""
HOP_NS = 50_000.0
"""What a message needs besides its bytes, at most; a collective of n members has 2 (n - 1) in turn."""


class Side(NamedTuple):
    """The transfers of one axis on one host."""

    axis: str
    host: str
    rows: pd.DataFrame
    rate_bytes_per_s: float
    busy_ns: float
    """Per step."""
    hops_ns: float
    """Per step."""


def crossing_rows(
    frame: pd.DataFrame, trace: Trace, seems_disturbed_ns: FloatArray
) -> tuple[pd.DataFrame, list[str]]:
    """Return the transfers that cross hosts which are known, as a row each, and the host of each numbered port."""
    known = frame["wire_ns"].notna() & frame["end_ns"].notna() & ~frame["is_inferred"]
    known &= frame["rank"].isin([*trace.clocks])
    if len(set(trace.clocks.values())) < 2 or not known.any():
        return pd.DataFrame(), []
    crossing = crossing_bytes(trace, frame)
    moved = np.maximum(crossing.sent_bytes, crossing.received_bytes)
    port, source, hosts = _ports(frame, trace)
    # What a sender sees of a message ends where it lies in a buffer.
    is_seen = ~(frame["is_p2p"] & frame["is_send"]).to_numpy(bool)
    chosen = known.to_numpy(bool) & (moved > 0) & is_seen
    rows = pd.DataFrame(
        {
            "axis": frame["axis"].astype(str),
            "host": crossing.host,
            "group_id": frame["group_id"].astype(str),
            "join": frame["join"],
            "port": port,
            "source": source,
            "is_p2p": frame["is_p2p"].to_numpy(bool),
            "kind": frame["kind"].astype(str),
            "size_bytes": frame["size_bytes"],
            "step": frame["step"],
            "moved_bytes": moved,
            "end_ns": frame["end_ns"],
            "wire_ns": frame["wire_ns"],
            "disturbed_ns": seems_disturbed_ns,
        }
    )
    found: pd.DataFrame = rows[chosen & (rows["wire_ns"] > 0).to_numpy(bool)]
    return found, hosts


def _ports(frame: pd.DataFrame, trace: Trace) -> tuple[IntArray, IntArray, list[str]]:
    """Return the port of each member, that of who sends a message to it (-1 of a collective), and the host of each."""
    link = frame["link"].astype("category").cat
    names = [str(name).split("->") for name in link.categories]
    senders = [int(ends[0]) if len(ends) == 2 and ends[0].isdigit() else -1 for ends in names]
    source = np.array([*senders, -1], np.int64)[link.codes.to_numpy()]
    source = np.where(frame["is_p2p"].to_numpy(bool), source, -1)
    rank = frame["rank"].to_numpy(np.int64)
    ranks = np.unique(np.concatenate([rank, source[source >= 0]]))
    ports = ports_of_ranks(trace, ranks.tolist())
    numbers = {name: at for at, name in enumerate(dict.fromkeys(ports))}
    number = np.array([numbers[name] for name in ports], np.int64)
    of_source = number[np.searchsorted(ranks, np.maximum(source, ranks[0]))]
    of_member = number[np.searchsorted(ranks, rank)]
    return of_member, np.where(source < 0, -1, of_source), [host for host, _ in numbers]


def steady_sides(rows: pd.DataFrame, trace: Trace) -> Iterator[Side | None]:
    """Yield the transfers of each axis on each host, where they are those of a steady link."""
    members = dict(
        zip(
            trace.frame("group")["group_id"].astype(str),
            trace.frame("group")["ranks"].map(len),
            strict=True,
        )
    )
    for axis, of_axis in rows.groupby("axis"):
        like = of_axis.groupby(["kind", "size_bytes"])["wire_ns"].transform("median")
        varied = (of_axis["wire_ns"] - like).abs().sum() / float(like.sum())
        for host, own in of_axis.groupby("host"):
            yield _side(str(axis), str(host), own, float(varied), members)


def _side(
    axis: str, host: str, rows: pd.DataFrame, varied: float, members: dict[str, int]
) -> Side | None:
    """Return the transfers of an axis on a host; None where their rate is not the same in every step."""
    moved, busy = by_step(rows)
    if len(busy) < MIN_STEPS or busy.min() <= 0:
        return None
    rate = moved / busy
    usual = float(np.median(rate))
    spread = float(np.abs(rate / usual - 1.0).mean())
    wire = rows["wire_ns"].to_numpy(np.float64)
    # Transfers that vary one by one even out in a step, the more of them it has.
    alike = float(wire.sum() ** 2 / (wire**2).sum()) / len(busy)
    if spread > STEADY:
        return None
    is_shared = spread * np.sqrt(max(alike, 1.0)) <= FAR_LESS * varied
    is_disturbed = rows["disturbed_ns"].sum() > LEAST_SEEN * wire.sum()
    if is_disturbed and not is_shared:
        return None
    in_turn = 2 * (rows["group_id"].map(members).fillna(2) - 1)
    hops_ns = HOP_NS * float(in_turn.where(~rows["is_p2p"], 1).sum()) / len(busy)
    return Side(axis, host, rows, usual * 1e9, float(np.median(busy)), hops_ns)


def by_step(rows: pd.DataFrame) -> tuple[FloatArray, FloatArray]:
    """Return how many bytes transfers move in each step, and how long at least one is on its way, ns; steps in order."""
    moved = rows.groupby("step")["moved_bytes"].sum().to_numpy(np.float64)
    step = np.unique(rows["step"].to_numpy(), return_inverse=True)[1]
    end = rows["end_ns"].to_numpy(np.int64)
    start = end - rows["wire_ns"].to_numpy(np.int64)
    # One step after the other on one line, for the transfers of two may overlap.
    first, length = start.min(), end.max() - start.min() + 1
    place = step * length - first
    merged = union(pair(start + place, end + place))
    begin = np.arange(step.max() + 1) * length
    return moved, covered_length(merged, begin, begin + length).astype(np.float64)
