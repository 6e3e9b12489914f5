"""What was recorded of a step by axis, kind and pipeline rank."""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Axis, CollectiveKind

from ...align.communication.rows import ELEMENT_BYTES, plain_name, sent_rows
from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray, numbered
from ...tables.trace import Trace, places_of

_SUMS = ["axis", "kind", "pp", "step"]


def seen_volumes(trace: Trace, windows: StepWindows, layout: ParallelLayout) -> pd.DataFrame:
    """Return what a rank of each pipeline position sends in each analysed step.

    Groups of one rank move nothing and are left out. Replicas lie along dp and cp together.

    Returns:
        axis, kind (``send`` for messages), pp, step, count, bytes: means over the captured ranks
        of the position; a step in which nothing was sent has zeros.
    """
    places = places_of(trace, list(trace.ranks))
    ranks_at = places.groupby("pp").size()
    place = np.zeros(int(places["rank"].max()) + 1, np.int64)
    place[places["rank"].to_numpy()] = places["pp"].to_numpy()
    parts = [_sums(_rows(trace, windows, name, layout), place) for name in ("collective", "p2p")]
    sums = pd.concat(parts).groupby(level=_SUMS).sum()
    keys = sums.reset_index()[_SUMS[:-1]].drop_duplicates()
    each = keys.merge(pd.DataFrame({"step": windows.steps}), how="cross")
    sums = sums.reindex(pd.MultiIndex.from_frame(each), fill_value=0)
    table = sums.reset_index().rename(columns={"size": "count", "sum": "bytes"})
    ranks = table["pp"].map(ranks_at).astype(float)
    return table.assign(count=table["count"] / ranks, bytes=table["bytes"] / ranks)


def _sums(rows: pd.DataFrame, place: IntArray) -> pd.DataFrame:
    """Return how many rows there are of each axis, kind, pipeline position and step, and their bytes."""
    keys = {name: rows[name].cat for name in ("axis", "kind")}
    of = [own.codes.to_numpy().astype(np.int64) for own in keys.values()]
    of += [place[rows["rank"].to_numpy()], rows["step"].to_numpy().astype(np.int64)]
    number = numbered(*of)
    count = np.bincount(number)
    first = np.zeros(len(count), np.int64)
    first[number[::-1]] = np.arange(len(number))[::-1]
    size = np.bincount(number, rows["size_bytes"].to_numpy(), len(count)).astype(np.int64)
    names = [
        np.asarray(own.categories, object)[code[first]]
        for own, code in zip(keys.values(), of, strict=False)
    ]
    index = pd.MultiIndex.from_arrays([*names, *(code[first] for code in of[2:])], names=_SUMS)
    return pd.DataFrame({"size": count, "sum": size}, index)


def _rows(trace: Trace, windows: StepWindows, name: str, layout: ParallelLayout) -> pd.DataFrame:
    rows = sent_rows(trace, windows, name)
    if name == "p2p":
        rows = rows[rows["is_send"].to_numpy(bool)]
    else:
        group = trace.frame("group")
        axes = {
            str(key): _replica_axis(layout, tuple(ranks))
            for key, ranks in zip(group["group_id"], group["ranks"], strict=True)
        }
        groups = rows["group_id"].cat
        of_group = [axes.get(str(name), "") for name in groups.categories]
        own, of_row = np.array([*of_group, ""], dtype=object), groups.codes.to_numpy()
        axis, kind = rows["axis"], rows["kind"]
        # Context-parallel ranks hold the same weights: they sum gradients, attention sums nothing.
        is_sum = (axis == Axis.CP.value) & (kind == CollectiveKind.ALL_REDUCE.value)
        is_replica = (own == Axis.DP.value)[of_row] & ((axis == Axis.OTHER.value) | is_sum)
        if is_replica.any():
            names = sorted({*axis.cat.categories, Axis.DP.value})
            axis = axis.cat.set_categories(names).mask(is_replica, Axis.DP.value)
        rows = rows.assign(axis=axis)[(own != _ALONE)[of_row]]
    return rows[["rank", "step", "axis", "kind", "size_bytes"]]


_ALONE = "alone"


def _replica_axis(layout: ParallelLayout, ranks: tuple[int, ...]) -> str:
    """Return ``dp`` for ranks that hold the same weights, ``alone`` for one rank, else nothing."""
    if len(ranks) < 2:
        return _ALONE
    if min(ranks) < 0 or max(ranks) >= layout.world_size:
        return ""
    for axis in (Axis.PP, Axis.TP):
        stride, size = layout.stride(axis), int(getattr(layout, axis))
        if len({rank // stride % size for rank in ranks}) > 1:
            return ""
    return Axis.DP.value


def element_sizes(trace: Trace) -> dict[tuple[str, str], int]:
    """Return the bytes of an element by axis and kind: of the type that most bytes have."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for name, kind_column in (("collective", "kind"), ("p2p", "direction")):
        table = trace.tables.get(name, TABLES[name].empty())
        keys = ["axis", kind_column, "dtype"]
        plain = table.select([*keys, "size_bytes"])
        for key in keys:
            at = plain.schema.get_field_index(key)
            plain = plain.set_column(at, key, plain[key].cast("string"))
        sums = plain.group_by(keys).aggregate([("size_bytes", "sum")]).to_pydict()
        for axis, kind, dtype, total in zip(
            *(sums[key] for key in keys), sums["size_bytes_sum"], strict=True
        ):
            size = ELEMENT_BYTES.get(plain_name(dtype))
            if size is not None and total > found.get((axis, kind), (0, 0))[0]:
                found[axis, kind] = (total, size)
    return {key: size for key, (_, size) in found.items()}


def analysed(windows: StepWindows) -> IntArray:
    """Return the analysed steps; none without step marks."""
    return windows.steps if windows.has_marks else np.zeros(0, np.int64)
