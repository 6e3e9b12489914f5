"""Bandwidths against ceilings, pairs of ranks and overlap, as sections."""

from __future__ import annotations

from typing import Any

from ...explain.whatif.transfers import TRANSFER_NOTES, WHY_UNKNOWN
from ...wording.quantities import percent, rate, size
from ...wording.words import axis_label
from ..document import Block, Table, section
from .amounts import left_out

_MOST_ROWS = 6
_MOST_PAIRED = 16
"""Ranks of a matrix that a terminal shows."""


def bandwidth_blocks(result: dict[str, Any]) -> list[Block]:
    """Return overlap by axis, groups against their ceiling, and the matrix of pairs.

    Args:
        result: As ``collectives_to_json`` returns it.
    """
    return [
        *section("Overlap with compute", _overlap(result["overlap"])),
        *section("What other transfers would return, by replay", _changes(result["changes"])),
        *section("Bus bandwidth against ceiling", _groups(result["bandwidths"])),
        *section("Sends, GB/s from rank (row) to rank (column)", _pairs(result["pairs"])),
    ]


def _overlap(rows: list[dict[str, Any]]) -> Table:
    shown = [
        (
            axis_label(row["axis"]),
            *(_ms(row[f"{name}_ns_per_step"]) for name in ("wire", "exposed", "hidden")),
            _share(row["hidden_frac"]),
            _share(row["possible_frac"]),
        )
        for row in rows
    ]
    headers = ("axis", "wire ms/step", "exposed", "hidden", "hidden %", "at most %")
    note = "at most: if every transfer could run beside any compute of its step"
    return Table(headers, shown, notes=[note] if rows else [])


def _changes(rows: list[dict[str, Any]]) -> Table:
    order = sorted(rows, key=lambda row: -(row["gain_ns_per_step"] or 0.0))
    shown = [
        (
            axis_label(row["axis"]),
            CHANGES[row["change"]],
            row["value"],
            _ms(row["gain_ns_per_step"]),
            "unknown"
            if row["gain_ns_per_step"] is None
            else f"{_ms(row['low_ns_per_step'])} to {_ms(row['high_ns_per_step'])}",
            "unknown" if row["gain_frac"] is None else percent(row["gain_frac"]),
            f"--set {row['setting']}",
        )
        for row in order
    ]
    headers = ("axis", "change", "to", "gain ms/step", "range", "of step", "meshscope whatif RUN")
    notes = dict.fromkeys(str(TRANSFER_NOTES[row["change"]]) for row in order)
    notes |= dict.fromkeys(
        f"two levels on {axis_label(row['axis'])} unknown: {WHY_UNKNOWN[row['unknown']]}"
        for row in order
        if row["unknown"]
    )
    return Table(headers, shown, notes=list(notes))


CHANGES = {
    "dtype": "element type",
    "bucket": "gradient buckets",
    "hierarchy": "sums in two levels",
}


def _groups(rows: list[dict[str, Any]]) -> Table:
    """Return the groups furthest below the fastest like group, then below their own best."""
    order = sorted(rows, key=lambda row: (row["of_like_frac"], row["of_best_frac"]))[:_MOST_ROWS]
    shown = [
        (
            row["group_id"],
            axis_label(row["axis"]),
            row["kind"],
            size(row["size_from_bytes"]),
            row["count"],
            rate(row["median_bytes_per_s"]),
            _share(row["of_best_frac"]),
            _share(row["of_like_frac"]),
            _share(row["of_ceiling_frac"]),
        )
        for row in order
    ]
    headers = (
        *("group", "axis", "operation", "from", "count", "bus bandwidth", "of own best"),
        *("of fastest like", "of link"),
    )
    notes = left_out(len(rows) - len(shown), "rows")
    if rows and all(row["ceiling_bytes_per_s"] is None for row in rows):
        notes.append("of link: unknown; no group crosses hosts whose port speeds are known")
    return Table(headers, shown, notes=notes)


def _pairs(pairs: dict[str, Any]) -> Table:
    ranks = pairs["ranks"]
    known = any(speed is not None for row in pairs["bus_bandwidth_bytes_per_s"] for speed in row)
    if not known or len(ranks) > _MOST_PAIRED:
        return Table((), ())
    rows = [
        (rank, *("" if speed is None else f"{speed / 1e9:.3f}" for speed in row))
        for rank, row in zip(ranks, pairs["bus_bandwidth_bytes_per_s"], strict=True)
    ]
    return Table(("rank", *map(str, ranks)), rows)


def _ms(time_ns: float | None) -> str:
    return "unknown" if time_ns is None else f"{time_ns / 1e6:.2f}"


def _share(part: float | None) -> str:
    return "unknown" if part is None else percent(part, 0)
