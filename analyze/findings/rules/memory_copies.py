"""Copies and fills of device memory that no compute hides."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from meshscope.probe.schema.printable import printable
from meshscope.probe.schema.terms import FindingKind, KernelCategory

from ...explain.run_account import Account
from ...tables.results import Finding
from ...wording.message import Message, message
from .bad_steps import all_steps, per_step
from .grading import MIN_COST, severity

_CLASS = "exposed_memcpy"
_CATEGORIES = (KernelCategory.MEMCPY.value, KernelCategory.MEMSET.value)
_USED = ["step", "category", "name_id", "start_ns", "dur_ns", "size_bytes"]
_SHOWN = 3
_NAME_CHARACTERS = 60


def memory_copies(account: Account) -> Iterator[Finding]:
    """Time in which devices only copy or fill memory."""
    cost = account.class_frac(_CLASS)
    if cost < MIN_COST or not account.trace.row_count("kernel"):
        return
    kinds = _kinds(account)
    if kinds.empty:
        return
    rank_steps = max(len(account.windows.frame), 1)
    each = per_step(account.windows)
    yield Finding(
        kind=FindingKind.MEMORY_COPY,
        severity=severity(cost),
        where=all_steps(account.windows).where,
        claim=message("memory_copy.claim", cost=cost),
        cost_frac=cost,
        removal_gain_frac=None,
        confidence=0.8,
        evidence=tuple(
            _of_kind(row, rank_steps, each) for row in kinds.head(_SHOWN).to_dict("records")
        ),
        remedy=_remedy(str(kinds["name"].iloc[0])),
    )


def _of_kind(row: Mapping[Hashable, Any], rank_steps: int, each: Message) -> Message:
    """Return how long the copies of one kind take, and how much they move where that was recorded."""
    known = {
        "name": printable(str(row["name"])[:_NAME_CHARACTERS]),
        "time_ns": float(row["dur_ns"]) / rank_steps,
        "each": each,
        "copies": int(row["copies"]),
    }
    size_bytes = int(row["size_bytes"])
    if not size_bytes:
        return message("memory_copy.of_kind", **known)
    return message("memory_copy.of_kind_sized", **known, size_bytes=size_bytes)


def _kinds(account: Account) -> pd.DataFrame:
    """Return time, count and bytes of the copies of the analysed steps by name, the longest first."""
    trace, parts = account.trace, []
    for rank in account.windows.ranks.tolist():
        kernel = trace.rank_frame("kernel", int(rank), _USED)
        kernel = kernel[kernel["category"].isin(_CATEGORIES)].assign(rank=int(rank))
        kernel = account.windows.select(kernel)
        if kernel.empty:
            continue
        names = trace.rank_frame("name", int(rank)).drop_duplicates("name_id").set_index("name_id")
        parts.append(kernel.assign(name=kernel["name_id"].map(names["name"]).astype(str)))
    if not parts:
        return pd.DataFrame()
    rows = pd.concat(parts, ignore_index=True)
    rows = rows.assign(size_bytes=rows["size_bytes"].astype("float64").fillna(0.0), copies=1)
    by_name = rows.groupby("name")[["dur_ns", "copies", "size_bytes"]].sum().reset_index()
    return by_name.sort_values("dur_ns", ascending=False)


def _remedy(name: str) -> Message:
    """Return what helps against the copies of a kind, which the profilers name alike."""
    if "HtoD" in name or "HostToDevice" in name or "Host-to-Device" in name:
        return message("memory_copy.remedy_to_device")
    if "DtoH" in name or "DeviceToHost" in name or "Device-to-Host" in name:
        return message("memory_copy.remedy_to_host")
    if "PtoP" in name or "PeerToPeer" in name or "Peer-to-Peer" in name:
        return message("memory_copy.remedy_between_devices")
    return message("memory_copy.remedy_on_device")
