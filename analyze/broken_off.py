"""How far each rank came in each group, in a capture of ours that broke off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.tables import PROGRESS


def progress_at_the_end(
    collectives: pa.Table,
    groups: pa.Table,
    manifests: Mapping[int, Mapping[str, Any]],
) -> pa.Table:
    """Return the ``progress`` rows; none where every rank has a close mark.

    What was complete is known only of ranks that ended in order. A member without
    a row of a group has none: its rows may be lost, unless the first collective of
    the group was its only one, so that nothing could be lost.

    Args:
        collectives: The ``collective`` table.
        groups: The ``group`` table.
        manifests: Manifests of the ranks that were read.
    """
    closed = {
        rank: manifest.get("closed_unix_ns") is not None for rank, manifest in manifests.items()
    }
    if all(closed.values()) or not collectives.num_rows:
        return PROGRESS.empty()
    rows = collectives.select(["rank", "group_id", "seq"]).to_pandas().astype({"group_id": str})
    last = rows.groupby(["group_id", "rank"])["seq"].max()
    first = rows.groupby("group_id")["seq"].agg(["min", "max"])
    only_one = set(first.index[first["min"] == first["max"]])
    never = [
        (group, rank)
        for group, ranks in zip(
            groups["group_id"].to_pylist(), groups["ranks"].to_pylist(), strict=True
        )
        if group in only_one
        for rank in ranks
        if rank in closed and (group, rank) not in last.index
    ]
    issued = {**last.to_dict(), **dict.fromkeys(never, -1)}
    frame = pd.DataFrame(
        {
            "rank": [rank for _, rank in issued],
            "group_id": [group for group, _ in issued],
            "issued_seq": list(issued.values()),
            "completed_seq": [
                seq if closed.get(rank, False) else None for (_, rank), seq in issued.items()
            ],
        }
    )
    return PROGRESS.conform(pa.Table.from_pandas(frame, preserve_index=False))
