"""The JSON form of bandwidths against ceilings, of pairs of ranks and of overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas as pd

from ...account.ledger.overlap import Overlap
from ...explain.whatif.returns import TransferReturn


class Pair(NamedTuple):
    """What one rank sent to another."""

    source: int
    target: int
    total_bytes: int
    bytes_per_s: float | None
    """Bus bandwidth; None unknown."""


def group_rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return ``group_bandwidths`` as rows; shares are of the ceiling, else null."""
    rows: list[dict[str, Any]] = []
    for row in table.to_dict("records"):
        ceiling = row["ceiling_bytes_per_s"]
        is_known = ceiling == ceiling and row["best_bytes_per_s"] <= ceiling
        rows.append(
            {
                **{str(name): value for name, value in row.items()},
                "ceiling_bytes_per_s": ceiling if ceiling == ceiling else None,
                "of_ceiling_frac": row["median_bytes_per_s"] / ceiling if is_known else None,
                "of_best_frac": row["median_bytes_per_s"] / row["best_bytes_per_s"],
                "of_like_frac": row["median_bytes_per_s"] / row["like_best_bytes_per_s"],
            }
        )
    return rows


def pair_matrix(transfers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what each rank sent to each other one: total bytes, and the bus bandwidth.

    Args:
        transfers: Rows by group and pair: source, target, total_bytes, count,
            bus_bandwidth_p50_bytes_per_s (None unknown).

    Returns:
        ranks, and two matrices (source, target) with null where nothing was sent or is known. Of a
        pair in several groups the bandwidth is that of the group with most bytes.
    """
    pairs = pair_rows(transfers)
    ranks = sorted({end for pair in pairs for end in pair[:2]})
    at = {rank: place for place, rank in enumerate(ranks)}
    amount: list[list[int | None]] = [[None] * len(ranks) for _ in ranks]
    speed: list[list[float | None]] = [[None] * len(ranks) for _ in ranks]
    for pair in pairs:
        amount[at[pair.source]][at[pair.target]] = pair.total_bytes
        speed[at[pair.source]][at[pair.target]] = pair.bytes_per_s
    return {"ranks": ranks, "total_bytes": amount, "bus_bandwidth_bytes_per_s": speed}


def pair_rows(transfers: Sequence[dict[str, Any]]) -> list[Pair]:
    """Return the pairs of the same that sent, by source and target: of many ranks these are few."""
    found: dict[tuple[int, int], Pair] = {}
    for row in sorted(transfers, key=lambda one: one["total_bytes"] or 0):
        key = row["source"], row["target"]
        before = found[key].total_bytes if key in found else 0
        total = before + (row["total_bytes"] or 0)
        found[key] = Pair(*key, total, row["bus_bandwidth_p50_bytes_per_s"])
    return [found[key] for key in sorted(found)]


def overlap_rows(found: Sequence[Overlap]) -> list[dict[str, Any]]:
    """Return the overlap by axis; null where the wire time is unknown."""
    return [
        {
            "axis": one.axis.value,
            "wire_ns_per_step": one.wire_ns,
            "exposed_ns_per_step": one.exposed_ns,
            "hidden_ns_per_step": one.hidden_ns,
            "possible_ns_per_step": one.possible_ns,
            "hidden_frac": one.hidden_frac,
            "possible_frac": one.possible_frac,
        }
        for one in found
    ]


def transfer_returns_to_json(
    found: Sequence[TransferReturn], step_ns: float
) -> list[dict[str, Any]]:
    """Return the changes of transfers with what they return; null where it is unknown."""
    return [
        {
            "axis": one.axis,
            "change": one.change.value,
            "value": one.value,
            "setting": f"{one.change.value}.{one.axis}={one.value}",
            "bytes_now": one.bytes_now,
            "bytes_then": one.bytes_then,
            "operations_now": one.operations_now,
            "operations_then": one.operations_then,
            "gain_ns_per_step": None if one.gain is None else one.gain.gain_ns,
            "low_ns_per_step": None if one.gain is None else one.gain.low_ns,
            "high_ns_per_step": None if one.gain is None else one.gain.high_ns,
            "gain_frac": None if one.gain is None else one.gain.gain_ns / step_ns,
            "unknown": one.unknown,
        }
        for one in found
    ]
