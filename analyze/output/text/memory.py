"""Memory by stage in a diagnosis: measured, expected, and the difference term by term."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...account.memory.by_stage import CATEGORIES
from ...tables.results import Diagnosis
from ...wording.message import Message, message
from ...wording.quantities import percent, percent_change
from ...wording.words import is_missing
from ..document import Block, Lines, Table
from .amounts import size

_NAMES = {"activations": "activations and logits", "other": "buffers and others"}


def memory_blocks(result: Diagnosis) -> Iterator[Block]:
    """Yield the section of a diagnosis; nothing where no memory was recorded."""
    if result.memory.empty:
        return
    rows = result.memory.to_dict("records")
    shown = [name for name in CATEGORIES if result.memory[f"{name}_bytes"].notna().any()]
    more = [
        (name, title)
        for name, title in (("reserved_bytes", "reserved"), ("device_used_bytes", "device used"))
        if result.memory[name].notna().any()
    ]
    table = [
        (
            _stage(row),
            row["ranks"],
            *(size(row[name]) for name in ("peak_bytes", "rss_bytes")),
            *(size(row[name]) for name, _ in more),
            "unknown" if is_missing(row["peak_frac"]) else percent(row["peak_frac"]),
            *(size(row[f"{name}_bytes"]) for name in shown),
        )
        for row in rows
    ]
    headers = ["stage", "ranks", "allocator peak", "resident set"]
    headers += [*(title for _, title in more), "of capacity", *shown]
    yield Table(headers, table)
    yield from _expected(result, rows)


def _stage(row: dict[Any, Any]) -> str:
    return "all stages" if row["stage"] < 0 else f"stage {row['stage']}"


def _expected(result: Diagnosis, rows: list[dict[Any, Any]]) -> Iterator[Block]:
    """Yield the expected memory beside the measured one, and on what it rests."""
    basis = result.expectation
    if basis.unknown_because:
        if result.memory["peak_bytes"].notna().any():
            yield Lines([message("report.memory_unknown", reason=basis.unknown_because)])
        return
    if result.memory["expected_bytes"].isna().all():
        return
    yield Lines([message("report.memory_expected")])
    table = [
        (
            _stage(row),
            f"{row['in_flight']:g}" if not is_missing(row["in_flight"]) else "unknown",
            _measured(row),
            size(row["expected_bytes"]),
            _difference(row["difference_bytes"], row["expected_bytes"]),
            _reserved(row),
            _by_term(row),
        )
        for row in rows
    ]
    headers = ("stage", "in flight", "measured", "expected", "difference")
    columns = (*headers, "expected reserved", "difference by term")
    yield Table(columns, table, notes=list(_basis(result, rows)))


def _basis(result: Diagnosis, rows: list[dict[Any, Any]]) -> Iterator[Message]:
    """Yield on what the expectation rests."""
    basis = result.expectation
    if basis.assumed:
        yield message("report.memory_assumed", settings=basis.assumed)
        yield message("report.memory_state")
    if basis.inferred:
        yield message("report.memory_inferred", settings=basis.inferred)
    if any(row["is_steady"] is False for row in rows):
        yield message("report.memory_at_most")


def _measured(row: dict[Any, Any]) -> str:
    """Return the measured peak of settled steps; marked where the first step may have set it."""
    steady = not is_missing(row["steady_bytes"])
    text = size(row["steady_bytes"] if steady else row["peak_bytes"])
    is_bound = steady and row["is_steady"] is False
    return f"at most {text}" if is_bound else text


def _difference(off: Any, expected: Any) -> str:
    return "unknown" if is_missing(off) or not expected else percent_change(off / expected)


def _reserved(row: dict[Any, Any]) -> str:
    ends = [row[f"expected_reserved_{end}_bytes"] for end in ("low", "high")]
    if any(map(is_missing, ends)):
        return "unknown"
    return " to ".join(size(end) for end in ends)


def _by_term(row: dict[Any, Any]) -> str:
    """Return measured - expected of the recorded categories, the largest first."""
    known = {name: row[f"{name}_difference_bytes"] for name in CATEGORIES}
    parts = {name: float(off) for name, off in known.items() if not is_missing(off)}
    shown = sorted(parts.items(), key=lambda pair: -abs(pair[1]))
    texts = [
        f"{_NAMES.get(name, name)} {'-' if off < 0 else '+'}{size(abs(off))}" for name, off in shown
    ]
    return ", ".join(texts) if texts else "unknown: no categories recorded"
