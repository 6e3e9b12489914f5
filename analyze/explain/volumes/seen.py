"""What was recorded of a step by axis, kind and pipeline rank."""

from __future__ import annotations

import numpy as np
import pandas as pd

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Axis, CollectiveKind

from ...align.communication.elements import ELEMENT_BYTES, plain_name
from ...align.communication.rows import communication_rows
from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.trace import Trace, places_of

_SUMS = ["axis", "kind", "pp", "step"]


def seen_volumes(trace: Trace, windows: StepWindows, layout: ParallelLayout) -> pd.DataFrame:
    """Return what a rank of each pipeline position sends in each analysed step.

    Groups of one rank move nothing and are left out. Replicas lie along dp and cp together.

    Returns:
        axis, kind (``send`` for messages), pp, step, count, bytes: means over the captured ranks
        of the position; a step in which nothing was sent has zeros.
    """
    parts = [_rows(trace, windows, name, layout) for name in ("collective", "p2p")]
    rows = pd.concat(parts, ignore_index=True)
    places = places_of(trace, list(trace.ranks))
    ranks_at = places.groupby("pp").size()
    rows["pp"] = rows["rank"].map(dict(zip(places["rank"], places["pp"], strict=True)))
    sums = rows.groupby(_SUMS, observed=True)["size_bytes"].agg(["size", "sum"])
    keys = sums.reset_index()[_SUMS[:-1]].drop_duplicates()
    each = keys.merge(pd.DataFrame({"step": windows.steps}), how="cross")
    sums = sums.reindex(pd.MultiIndex.from_frame(each), fill_value=0)
    table = sums.reset_index().rename(columns={"size": "count", "sum": "bytes"})
    ranks = table["pp"].map(ranks_at).astype(float)
    return table.assign(count=table["count"] / ranks, bytes=table["bytes"] / ranks)


def _rows(trace: Trace, windows: StepWindows, name: str, layout: ParallelLayout) -> pd.DataFrame:
    rows = communication_rows(trace, windows, name)
    axis = rows["axis"].astype(str).to_numpy(dtype=object)
    if name == "p2p":
        rows = rows.assign(axis=axis, kind="send")[rows["is_send"].to_numpy(bool)]
    else:
        group = trace.frame("group")
        axes = {
            str(key): _replica_axis(layout, tuple(ranks))
            for key, ranks in zip(group["group_id"], group["ranks"], strict=True)
        }
        groups = rows["group_id"].cat
        of_group = [axes.get(str(name), "") for name in groups.categories]
        own = np.array([*of_group, ""], dtype=object)[groups.codes.to_numpy()]
        is_kept = own != _ALONE
        kind = rows["kind"].astype(str)
        # Context-parallel ranks hold the same weights: they sum gradients, attention sums nothing.
        is_sum = (axis == Axis.CP.value) & (kind == CollectiveKind.ALL_REDUCE.value).to_numpy(bool)
        is_replica = (own == Axis.DP.value) & ((axis == Axis.OTHER.value) | is_sum)
        rows = rows.assign(axis=np.where(is_replica, Axis.DP.value, axis), kind=kind)[is_kept]
    return rows[["rank", "step", "axis", "kind", "size_bytes"]]


_ALONE = "alone"


def _replica_axis(layout: ParallelLayout, ranks: tuple[int, ...]) -> str:
    """Return ``dp`` for ranks that hold the same weights, ``alone`` for one rank, else nothing."""
    if len(ranks) < 2:
        return _ALONE
    if not all(0 <= rank < layout.world_size for rank in ranks):
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
