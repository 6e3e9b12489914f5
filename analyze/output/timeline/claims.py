"""What claims the time of a step: spans, kernels and waits, before any covers another."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import COMPUTE_KINDS, WAIT_SOURCES, Axis, KernelCategory, SpanKind

from ...align.communication.kernels import axis_by_launch
from ...align.steps.last_records import last_record_ns
from ...align.steps.whole_capture import WHOLE_CAPTURE
from ...tables.arrays import BoolArray
from ...tables.trace import Trace
from ...wording.quantities import size
from ...wording.words import axis_label
from .categories import OF_AXIS, OF_SPAN, Category
from .unfinished import OpenWait

_NO_STEP = -1
"""Step of what was recorded outside all steps, or before it was known."""

# Lower covers higher, as in the ledger.
_GC, _DEVICE_COMPUTE, _COMMUNICATION, _MEMCPY, _HOST, _RECOMPUTE, _COMPUTE = -1, 0, 1, 2, 3, 4, 5
_OPEN = 6
_KERNELS = {
    KernelCategory.COMPUTE.value: (Category.COMPUTE, _DEVICE_COMPUTE),
    KernelCategory.UNKNOWN.value: (Category.UNKNOWN, _MEMCPY),
    KernelCategory.MEMCPY.value: (Category.HOST, _MEMCPY),
    KernelCategory.MEMSET.value: (Category.HOST, _MEMCPY),
}
_MOVING = {axis.value: (OF_AXIS.get(axis.value, Category.COMM_OTHER), _MEMCPY) for axis in Axis}
_CLAIM = ["rank", "category", "priority", "start_ns", "end_ns", "text", "microbatch"]


def claims_of(
    trace: Trace, step: int, stood: tuple[OpenWait, ...], wanted: Collection[int] | None = None
) -> tuple[pd.DataFrame, int]:
    """Return every interval that asks for a place in the step, and how many have no interval.

    Args:
        trace: The run.
        step: Which step.
        stood: Operations that had not ended.
        wanted: Ranks whose intervals are wanted, None for all.
    """
    has_kernels = _has_kernels(trace, step)
    spans = rows_of_step(trace, "span", step, wanted)
    parts = [_span_claims(spans, has_kernels=has_kernels)]
    if has_kernels:
        parts.append(_kernel_claims(trace, rows_of_step(trace, "kernel", step, wanted)))
    undrawn = 0
    for table in ("collective", "p2p"):
        rows = _once(rows_of_step(trace, table, step, wanted))
        claims = _communication_claims(rows, table)
        known = claims["start_ns"].notna() & claims["end_ns"].notna()
        still_open = _is_open(rows, stood)
        undrawn += int((~known & ~still_open & (rows["step"] == step).to_numpy()).sum())
        parts.append(claims[known])
    parts.append(_open_claims(trace, stood))
    if trace.per_step_clock:
        parts[0].loc[parts[0]["priority"] >= _RECOMPUTE, "priority"] = _DEVICE_COMPUTE
    filled = [part for part in parts if len(part)]
    claims = pd.concat(filled, ignore_index=True) if filled else pd.DataFrame(columns=_CLAIM)
    # Only spans have a microbatch; there may be none of them.
    claims = claims.reindex(columns=_CLAIM).fillna({"microbatch": -1})
    return claims.astype(
        {"start_ns": np.int64, "end_ns": np.int64, "microbatch": np.int32}
    ), undrawn


def _has_kernels(trace: Trace, step: int) -> bool:
    """Return whether kernels tell what the devices of all ranks did in a step."""
    if trace.kernel_steps is None:
        return trace.row_count("kernel") > 0
    return all(step in trace.kernel_steps.get(rank, ()) for rank in trace.ranks)


def _span_claims(spans: pd.DataFrame, *, has_kernels: bool) -> pd.DataFrame:
    """Return the claims of spans; beside kernels only host spans claim time."""
    kind = spans["kind"].astype(str)
    if has_kernels:
        spans = spans[~kind.isin(COMPUTE_KINDS)]
        kind = kind[~kind.isin(COMPUTE_KINDS)]
    is_compute = kind.isin(COMPUTE_KINDS)
    choices = [kind == SpanKind.GC, kind == SpanKind.RECOMPUTE, is_compute]
    return pd.DataFrame(
        {
            "rank": spans["rank"],
            "category": _once_each(spans, ["kind"], _span_category).astype(np.int64),
            "priority": np.select(choices, [_GC, _RECOMPUTE, _COMPUTE], default=_HOST),
            "start_ns": spans["start_ns"],
            "end_ns": spans["start_ns"] + spans["dur_ns"],
            "text": _once_each(spans, ["kind", "stage", "microbatch"], _span_text),
            "microbatch": spans["microbatch"],
        }
    )


def _once_each(
    rows: pd.DataFrame, columns: list[str], make: Callable[[pd.DataFrame], pd.Series[Any]]
) -> pd.Series[Any]:
    """Return what is made of each row, made once for all rows that are alike in some columns.

    A step has a million rows and some hundred texts: rows share them.
    """
    group = rows.groupby(columns, observed=True, sort=False, dropna=False).ngroup().to_numpy()
    first = ~pd.Series(group).duplicated().to_numpy()
    made = pd.Series(make(rows[first]).to_numpy(object), index=group[first])
    return pd.Series(made.reindex(group).to_numpy(object), index=rows.index)


def _span_category(spans: pd.DataFrame) -> pd.Series[Any]:
    kind = spans["kind"].astype(str)
    return kind.map(lambda name: int(OF_SPAN.get(name, Category.HOST)))


def _span_text(spans: pd.DataFrame) -> pd.Series[Any]:
    kind = spans["kind"].astype(str).str.replace("_", " ")
    place = _suffix(", stage ", spans["stage"]) + _suffix(", microbatch ", spans["microbatch"])
    return kind + place


def _suffix(words: str, number: pd.Series[int]) -> pd.Series[str]:
    return (words + number.astype(str)).where(number >= 0, "")


def _kernel_claims(trace: Trace, kernels: pd.DataFrame) -> pd.DataFrame:
    category = kernels["category"].astype(str)
    # What an operator launched is taken for compute, as in the ledger.
    launched = (category == KernelCategory.UNKNOWN) & (kernels["op_id"] >= 0)
    category = category.mask(launched, KernelCategory.COMPUTE.value)
    if trace.kernel_steps is not None:
        category = _with_axes(trace, kernels, category)
    places = _KERNELS | _MOVING
    is_drawn = category.isin(places)
    kernels, place = kernels[is_drawn], category[is_drawn].map(places)
    names = trace.frame("name").set_index(["rank", "name_id"])["name"]
    keys = pd.MultiIndex.from_frame(kernels[["rank", "name_id"]])
    return pd.DataFrame(
        {
            "rank": kernels["rank"],
            "category": place.map(lambda pair: int(pair[0])),
            "priority": place.map(lambda pair: int(pair[1])),
            "start_ns": kernels["start_ns"],
            "end_ns": kernels["start_ns"] + kernels["dur_ns"],
            "text": names.reindex(keys).fillna("unnamed kernel").to_numpy(),
        }
    )


def _with_axes(trace: Trace, kernels: pd.DataFrame, category: pd.Series[str]) -> pd.Series[str]:
    """Return the categories with the axis in place of communication.

    The operations of such a run are those that the probe saw on the host, not these kernels.
    """
    moving = kernels[category == KernelCategory.COMMUNICATION.value]
    for rank in moving["rank"].unique().tolist():
        rows = moving[moving["rank"] == rank]
        axis = axis_by_launch(trace, rank, rows["launch_ns"])
        category = category.mask(category.index.isin(rows.index), None)
        category = category.fillna(pd.Series(axis, index=rows.index, dtype=str))
    return category


def _communication_claims(rows: pd.DataFrame, table: str) -> pd.DataFrame:
    """Return the wait on a host clock, else the operation from start to end."""
    on_host = rows["source"].astype(str).isin(WAIT_SOURCES)
    still_open = ["kind", "axis"] if table == "collective" else ["direction", "peer"]
    return pd.DataFrame(
        {
            "rank": rows["rank"],
            "category": _once_each(rows, ["axis"], _axis_category).astype(np.int64),
            "priority": _COMMUNICATION,
            "start_ns": rows["wait_start_ns"].where(on_host, rows["start_ns"]),
            "end_ns": rows["wait_end_ns"].where(on_host, rows["end_ns"]),
            "text": _once_each(
                rows, ["source", *still_open, "size_bytes"], lambda alike: _operation(alike, table)
            ),
        }
    )


def _axis_category(rows: pd.DataFrame) -> pd.Series[Any]:
    axis = rows["axis"].astype(str)
    return axis.map(lambda name: int(OF_AXIS.get(name, Category.COMM_OTHER)))


def _is_open(rows: pd.DataFrame, stood: tuple[OpenWait, ...]) -> BoolArray:
    """Return which operations are among those that ranks stood in."""
    is_open = np.zeros(len(rows), dtype=bool)
    for wait in stood:
        is_same = rows["rank"].eq(wait.rank) & rows["issue_ns"].eq(wait.since_ns)
        is_open |= (is_same & rows["group_id"].eq(wait.group_id)).to_numpy(bool, na_value=False)
    return is_open


def _open_claims(trace: Trace, stood: tuple[OpenWait, ...]) -> pd.DataFrame:
    """Return the claims of operations that had not ended; whatever else is known covers them."""
    end_ns = last_record_ns(trace) if stood else 0
    rows = [
        (
            wait.rank,
            int(OF_AXIS.get(wait.axis, Category.COMM_OTHER)),
            _OPEN,
            wait.since_ns,
            max(end_ns, wait.since_ns),
            f"{wait.kind.replace('_', '-')} over {axis_label(wait.axis)}, had not ended when the records end",
        )
        for wait in stood
    ]
    return pd.DataFrame(rows, columns=_CLAIM[:-1])


def _operation(rows: pd.DataFrame, table: str) -> pd.Series[Any]:
    on_host = rows["source"].astype(str).isin(WAIT_SOURCES)
    begin = on_host.map({True: "waiting for ", False: ""})
    words = {count: f", {size(count)}" if count > 0 else "" for count in set(rows["size_bytes"])}
    of_size = rows["size_bytes"].map(words)
    if table == "collective":
        kind = rows["kind"].astype(str).str.replace("_", "-")
        return begin + kind + " over " + rows["axis"].astype(str).str.upper() + of_size
    way = rows["direction"].astype(str).map({"send": "send to", "recv": "receive from"})
    return begin + way + " rank " + rows["peer"].astype(str) + of_size


def rows_of_step(
    trace: Trace, table: str, step: int, wanted: Collection[int] | None = None
) -> pd.DataFrame:
    """Return the rows that may be seen in a step: its own and those that reach into it.

    Args:
        trace: The run.
        table: Name of the table.
        step: Which step.
        wanted: Ranks whose rows are wanted, None for all.
    """
    if trace.stored(table) is None:
        frame = trace.frame(table) if wanted is None else trace.frame_of(table, wanted)
        return _near(frame, trace, table, step)
    # Rank by rank, so that only the rows of this step are held for all ranks.
    ranks = trace.ranks if wanted is None else tuple(wanted)
    parts = [_near(trace.rank_frame(table, rank), trace, table, step) for rank in ranks]
    return pd.concat(parts, ignore_index=True) if parts else trace.frame(table)


def _near(frame: pd.DataFrame, trace: Trace, table: str, step: int) -> pd.DataFrame:
    if step == WHOLE_CAPTURE:
        return frame
    is_alone = trace.per_step_clock or table == "step"
    steps = [step] if is_alone else [step - 1, step, step + 1, _NO_STEP]
    return _where(frame, frame["step"].isin(steps).to_numpy())


def _once(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of each event of a rank."""
    return _where(rows, ~rows.duplicated(["rank", "event_id"], keep="last").to_numpy())


def _where(rows: pd.DataFrame, is_wanted: BoolArray) -> pd.DataFrame:
    """Return some rows; where these are all, the very same: a copy of a million takes a while."""
    return rows if is_wanted.all() else rows[is_wanted]
