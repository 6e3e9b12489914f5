"""The collectives as a document, with the volumes expected of them."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from meshscope.probe.schema.printable import listed

from ...explain.volumes.job import Unknown
from ...explain.volumes.reasons import UNKNOWN, ReasonCode, reason_message
from ...wording.quantities import percent_change
from ...wording.words import axis_label, counted
from ..document import Block, Lines, Table, section
from .amounts import left_out, limits_section, milliseconds
from .bandwidth import bandwidth_blocks
from .links import link_blocks

TITLE = "Expected and seen, per step of one pipeline"
_MOST_STEPS = 8


def expected_blocks(result: dict[str, Any]) -> list[Block]:
    """Return the comparison, or why there is none.

    Args:
        result: As ``expected_to_json`` returns it.
    """
    if result["unknown"] is not None:
        why = UNKNOWN[Unknown(result["unknown"])]
        return section(TITLE, Lines([f"Expected volumes unknown: {why}."]))
    rows = [_row(row) for row in result["rows"]]
    headers = (
        *("axis", "operation", "expected", "expected MB", "seen", "seen MB"),
        *("differs", "likely reason"),
    )
    notes = [_assumed(result["assumed"]), *_steps_apart(result["rows"])]
    return section(TITLE, Table(headers, rows, notes=notes))


def _steps_apart(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        if row["steps_apart"]:
            steps = listed(row["steps_apart"], most=_MOST_STEPS)
            place = f"{axis_label(row['axis'])} {row['kind']}"
            yield f"{place} differs from its median in steps {steps}"


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    differs, code = row["difference_frac"], row["reason"]
    text = ""
    if code is not None:
        amount = row["reason_amount"]
        text = str(reason_message(ReasonCode(code), row["kind"], amount, row["element_bytes"]))
    elif differs is None:
        text = "small"
    return (
        axis_label(row["axis"]),
        row["kind"],
        f"{row['expected_count_per_step']:,.0f}",
        f"{row['expected_bytes_per_step'] / 1e6:,.3f}",
        f"{row['seen_count_per_step']:,.0f}",
        f"{row['seen_bytes_per_step'] / 1e6:,.3f}",
        "not expected" if differs is None else percent_change(round(differs, 3) + 0.0),
        text,
    )


def _assumed(assumed: dict[str, Any]) -> str:
    """Return how the settings that no capture holds were chosen."""
    parts = [
        f"volumes as with ZeRO {assumed['zero']}",
        f"recomputation {assumed['recompute']}",
        f"{'' if assumed['sequence_parallel'] else 'no '}sequence parallelism",
        f"{assumed['element_bytes']} bytes per activation",
    ]
    how = "" if assumed["element_bytes_recorded"] else "; the type is not recorded"
    return f"Settings read from the traffic: {', '.join(parts)}{how}"


_MOST_RANKS = 32
_MOST_GROUPS = 12
_MOST_ARRIVALS = 4
_MOST_TRANSFERS = 16
_UNITS = ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB"))


def collectives_document(result: dict[str, Any]) -> list[Block]:
    """Return who waited and who came last, by rank; then groups, sizes and transfers.

    Of many ranks and groups only those that matter most are shown: who came last most often,
    and what was on the wire longest.
    """
    tables = [block for title, table in _tables(result) for block in section(title, table)]
    if not tables:
        return [Lines(["No collectives."]), *limits_section(result["limits"])]
    return [
        *tables,
        *expected_blocks(result["expected"]),
        *bandwidth_blocks(result),
        *link_blocks(result["links"]),
        *limits_section(result["limits"]),
    ]


def _tables(result: dict[str, Any]) -> Iterator[tuple[str, Table]]:
    """Yield title and table of each part that has rows."""
    ranks = _ranks(result)
    rest = [*left_out(len(result["ranks"]) - len(ranks), "ranks"), *_about_waits(result)]
    headers = ("rank", "waited ms/step", "waited ms in all", "arrived last", "tied", "not known")
    if ranks:
        yield "Ranks", Table(headers, ranks, notes=rest)
    by_group = _collectives_by_group(result)
    groups = _groups(result, by_group)
    columns = ("group", "axis", "ranks", "collectives", "wire ms in all", "GB/s (bus, median)")
    yield "Groups", Table(columns, groups, notes=left_out(len(by_group) - len(groups), "groups"))
    wire = ("wire us p50", "p95", "GB/s (algorithm)", "GB/s (bus)")
    yield (
        "Message sizes",
        Table(("axis", "operation", "size", "count", "total", *wire), _sizes(result)),
    )
    transfers = _transfers(result)
    pairs = ("group", "axis", "from", "to", "count", "total", "wire us p50", "GB/s (bus)")
    rest = left_out(len(result["transfers"]) - len(transfers), "pairs")
    yield "Sends and receives", Table(pairs, transfers, notes=rest)
    late = ("group", "axis", "operation", "count", "apart ms p50", "p95", "mostly last", "last")
    arrivals = _arrivals_by_group(result)
    rest = left_out(len(result["arrivals_by_group"]) - len(arrivals), "rows")
    yield "Arrivals", Table(late, arrivals, notes=rest)


def _ranks(result: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return the ranks; of many, those that came last most often."""
    shown = list(result["ranks"].items())
    if len(shown) > _MOST_RANKS:
        shown = sorted(shown, key=lambda item: -item[1]["arrived_last"])[:_MOST_RANKS]
    return [
        (
            rank,
            milliseconds(row["wait_per_step_ns"]),
            milliseconds(row["wait_ns"]),
            _arrivals(row),
            max(0, row["undecided"] - row["unknown"]),
            row["unknown"],
        )
        for rank, row in shown
    ]


def _about_waits(result: dict[str, Any]) -> list[str]:
    """Return of which steps the waits are, and why those of a diagnosis are smaller."""
    steps = result["analysed_steps"]
    if not steps:
        return ["per step: not known, as the capture has no step marks"]
    return [
        f"per step: of the {counted(steps, 'step')} that diagnose accounts for; in all: of the whole capture. "
        "A wait here lasts from the issue of an operation. diagnose counts it from where the rank stood still",
    ]


def _arrivals(row: dict[str, Any]) -> str:
    known = row["count"] - row["unknown"]
    return "unknown" if row["count"] and not known else f"{row['arrived_last']}/{row['count']}"


def _arrivals_by_group(result: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return how far apart members come and who comes last, by group and operation; the widest first."""
    return [
        (
            row["group_id"],
            row["axis"],
            row["kind"],
            row["count"],
            milliseconds(row["spread_p50_ns"]),
            milliseconds(row["spread_p95_ns"]),
            _mostly_last(row),
            f"{row['last_count']}/{row['decided']}",
        )
        for row in result["arrivals_by_group"][:_MOST_ARRIVALS]
    ]


def _mostly_last(row: dict[str, Any]) -> str:
    """Return who comes last in more than half of the collectives; fewer say nothing of one rank."""
    if row["last_rank"] is None:
        return "unknown"
    return f"rank {row['last_rank']}" if 2 * row["last_count"] > row["decided"] else "varies"


def _collectives_by_group(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the collectives of the groups that have any; the others say nothing here."""
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in result["collectives"]:
        by_group.setdefault(row["group_id"], []).append(row)
    return by_group


def _groups(
    result: dict[str, Any], by_group: dict[str, list[dict[str, Any]]]
) -> list[tuple[object, ...]]:
    """Return the groups; of many, those with most time on the wire."""
    members = {group["group_id"]: group for group in result["groups"]}
    wires = {
        group_id: sum(row["wire_ns"] or 0 for row in own) for group_id, own in by_group.items()
    }
    shown = list(wires)
    if len(shown) > _MOST_GROUPS:
        shown = sorted(shown, key=lambda group_id: -wires[group_id])[:_MOST_GROUPS]
    rows: list[tuple[object, ...]] = []
    for group_id in shown:
        ranks = members[group_id]["ranks"] if group_id in members else []
        own = by_group[group_id]
        speeds = [row["bus_bandwidth_bytes_per_s"] for row in own]
        known = [speed for speed in speeds if speed is not None]
        speed = _speed(median(known) if known else None)
        rows.append(
            (group_id, own[0]["axis"], len(ranks) or "unknown", len(own), _wire(own), speed)
        )
    return rows


def _wire(collectives: list[dict[str, Any]]) -> str:
    """Return how long some collectives were on the wire together, as far as that is known."""
    known = [row["wire_ns"] for row in collectives if row["wire_ns"] is not None]
    if not known:
        return "unknown"
    return ("" if len(known) == len(collectives) else "at least ") + milliseconds(sum(known))


def _sizes(result: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (
            row["axis"],
            row["kind"],
            _range(row["size_from_bytes"], row["size_below_bytes"]),
            row["count"],
            _total(row["total_bytes"]),
            _microseconds(row["wire_p50_ns"]),
            _microseconds(row["wire_p95_ns"]),
            _speed(row["algorithm_bandwidth_p50_bytes_per_s"]),
            _speed(row["bus_bandwidth_p50_bytes_per_s"]),
        )
        for row in result["sizes"]
    ]


def _transfers(result: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return the pairs that sent most, as many as a person reads."""
    most = sorted(result["transfers"], key=lambda row: -row["total_bytes"])[:_MOST_TRANSFERS]
    return [
        (
            row["group_id"],
            row["axis"],
            row["source"],
            row["target"],
            row["count"],
            _total(row["total_bytes"] or None),
            _microseconds(row["wire_p50_ns"]),
            _speed(row["bus_bandwidth_p50_bytes_per_s"]),
        )
        for row in most
    ]


def _range(low: int | None, high: int | None) -> str:
    if low is None or high is None:
        return "unknown"
    return f"{_binary(low)} to {_binary(high)}"


def _total(value: int | None) -> str:
    if value is None:
        return "unknown"
    for power, unit in _UNITS:
        if value >= 1 << power:
            return f"{value / (1 << power):.1f} {unit}"
    return f"{value} B"


def _binary(value: int) -> str:
    for power, unit in _UNITS:
        if value >= 1 << power:
            return f"{value >> power} {unit}"
    return f"{value} B"


def _microseconds(time_ns: float | None) -> str:
    return "unknown" if time_ns is None else f"{time_ns / 1e3:.1f}"


def _speed(bytes_per_s: float | None) -> str:
    """Return 10**9 bytes per second."""
    return "unknown" if bytes_per_s is None else f"{bytes_per_s / 1e9:.3f}"
