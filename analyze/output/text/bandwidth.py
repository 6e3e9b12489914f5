"""Bandwidths against ceilings, pairs of ranks and overlap, as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...explain.whatif.transfers import TRANSFER_NOTES, WHY_UNKNOWN
from ...wording.labels import axis_label
from ...wording.quantities import rate, size
from ...wording.text_table import text_table
from .amounts import left_out

_MOST_ROWS = 6
_MOST_PAIRED = 16
"""Ranks of a matrix that a terminal shows."""


def bandwidth_lines(result: dict[str, Any], *, markdown: bool = False) -> Iterator[str]:
    """Yield overlap by axis, groups against their ceiling, and the matrix of pairs.

    Args:
        result: As ``collectives_to_json`` returns it.
        markdown: Whether headings and tables are Markdown.
    """
    yield from _overlap(result["overlap"], markdown=markdown)
    yield from _changes(result["changes"], markdown=markdown)
    yield from _groups(result["bandwidths"], markdown=markdown)
    yield from _pairs(result["pairs"], markdown=markdown)


def _heading(title: str, *, markdown: bool) -> list[str]:
    return ["", f"### {title}", ""] if markdown else ["", title]


def _overlap(rows: list[dict[str, Any]], *, markdown: bool) -> Iterator[str]:
    if not rows:
        return
    yield from _heading("Overlap with compute", markdown=markdown)
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
    yield from text_table(headers, shown, markdown=markdown)
    yield from ("", "  at most: if every transfer could run beside any compute of its step")


def _changes(rows: list[dict[str, Any]], *, markdown: bool) -> Iterator[str]:
    if not rows:
        return
    yield from _heading("What other transfers would return, by replay", markdown=markdown)
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
            "unknown" if row["gain_frac"] is None else f"{row['gain_frac']:.1%}",
            f"--set {row['setting']}",
        )
        for row in order
    ]
    headers = ("axis", "change", "to", "gain ms/step", "range", "of step", "meshscope whatif RUN")
    yield from text_table(headers, shown, markdown=markdown)
    notes = dict.fromkeys(TRANSFER_NOTES[row["change"]] for row in order)
    notes |= dict.fromkeys(
        f"two levels on {axis_label(row['axis'])} unknown: {WHY_UNKNOWN[row['unknown']]}"
        for row in order
        if row["unknown"]
    )
    yield from ("", *(f"  {note}" for note in notes))


CHANGES = {
    "dtype": "element type",
    "bucket": "gradient buckets",
    "hierarchy": "sums in two levels",
}


def _groups(rows: list[dict[str, Any]], *, markdown: bool) -> Iterator[str]:
    """Show the groups furthest below the fastest like group, then below their own best."""
    if not rows:
        return
    order = sorted(rows, key=lambda row: (row["of_like_frac"], row["of_best_frac"]))[:_MOST_ROWS]
    yield from _heading("Bus bandwidth against ceiling", markdown=markdown)
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
    yield from text_table(headers, shown, markdown=markdown)
    yield from left_out(len(rows) - len(shown), "rows")
    if all(row["ceiling_bytes_per_s"] is None for row in rows):
        yield from ("", "  of link: unknown; no group crosses hosts whose port speeds were sampled")


def _pairs(pairs: dict[str, Any], *, markdown: bool) -> Iterator[str]:
    ranks = pairs["ranks"]
    known = any(speed is not None for row in pairs["bus_bandwidth_bytes_per_s"] for speed in row)
    if not known or len(ranks) > _MOST_PAIRED:
        return
    yield from _heading("Sends, GB/s from rank (row) to rank (column)", markdown=markdown)
    rows = [
        (rank, *("" if speed is None else f"{speed / 1e9:.3f}" for speed in row))
        for rank, row in zip(ranks, pairs["bus_bandwidth_bytes_per_s"], strict=True)
    ]
    yield from text_table(("rank", *map(str, ranks)), rows, markdown=markdown)


def _ms(time_ns: float | None) -> str:
    return "unknown" if time_ns is None else f"{time_ns / 1e6:.2f}"


def _share(part: float | None) -> str:
    return "unknown" if part is None else f"{part:.0%}"
