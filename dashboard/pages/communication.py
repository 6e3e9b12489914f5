"""The communication of a run: how fast, how well hidden, as much as planned, and what would help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from meshscope.analyze.explain.volumes.job import Unknown
from meshscope.analyze.explain.volumes.reasons import UNKNOWN, ReasonCode, reason_message
from meshscope.analyze.output.json.bandwidth import Pair, pair_rows
from meshscope.analyze.output.text.bandwidth import CHANGES
from meshscope.analyze.wording.words import axis_label, capitalised

from ..figures.communication import (
    MOST_PAIRS,
    bandwidth_figure,
    pair_figure,
    pair_ranks_each,
)
from ..plain import units
from ..runs.loaded_run import LoadedRun
from .shell import card, chart, empty, name_cell, table

Row = Mapping[str, Any]
_MOST_ROWS = 64
_NONE = "\N{EN DASH}"


def layout(run: LoadedRun) -> list[Component]:
    """Return the page of communication."""
    result = run.communication()
    content: list[Component] = [
        html.H1("How the ranks communicate", className="ms-title"),
    ]
    if result["collective_count"] or result["transfers"]:
        content += [
            _overlap(result["overlap"]),
            _changes(result["changes"]),
            _expected(result["expected"]),
            _bandwidths(result["bandwidths"]),
            _pairs(pair_rows(result["transfers"])),
            _arrivals(result["arrivals"]),
            *_arrivals_by_group(result["arrivals_by_group"]),
            _last(result["ranks"]),
        ]
    else:
        why = "The capture contains no collective and no message between ranks."
        content.append(empty("No communication was recorded", why))
    if result["limits"]:
        listed = html.Ul([html.Li(limit) for limit in result["limits"]], className="ms-limits")
        content.append(card("What this result could not see", [listed]))
    return content


def _overlap(found: Sequence[Row]) -> Component:
    title = "Overlap with compute"
    if not found:
        return card(title, [empty("Overlap unknown", "The capture has no step marks.")])
    rows = [
        [
            axis_label(row["axis"]),
            *(units.duration(row[f"{name}_ns_per_step"]) for name in ("wire", "exposed", "hidden")),
            units.percent(row["hidden_frac"]),
            units.percent(row["possible_frac"]),
        ]
        for row in found
    ]
    columns = ["Axis", "On the wire", "Exposed", "Hidden", "Hidden share", "At most"]
    note = "Per rank and step. Upper bound: every transfer runs beside any compute of its step."
    return card(title, [table(columns, rows)], note=note)


def _changes(found: Sequence[Row]) -> Component:
    title = "What other transfers would return, by replay"
    if not found:
        return card(
            title, [empty("Nothing to change", "No transfer of known size, type and time.")]
        )
    order = sorted(found, key=lambda row: -(row["gain_ns_per_step"] or 0.0))
    rows = [
        [
            axis_label(row["axis"]),
            CHANGES[row["change"]],
            row["value"],
            units.duration(row["gain_ns_per_step"]),
            _range(row),
            units.percent(row["gain_frac"]),
        ]
        for row in order
    ]
    columns = ["Axis", "Change", "To", "Gain a step", "Range", "Of step"]
    note = "Try one: meshscope whatif RUN --set " + str(order[0]["setting"])
    return card(title, [table(columns, rows, numeric_from=3)], note=note)


def _range(row: Row) -> str:
    if row["gain_ns_per_step"] is None:
        return units.UNKNOWN
    return f"{units.duration(row['low_ns_per_step'])} to {units.duration(row['high_ns_per_step'])}"


def _expected(found: Row) -> Component:
    title = "Expected and seen, per step of one pipeline"
    if found["unknown"]:
        why = capitalised(f"{UNKNOWN[Unknown(found['unknown'])]}.")
        return card(title, [empty("Expected volumes unknown", why)])
    rows = [
        [
            axis_label(row["axis"]),
            row["kind"],
            _count(row["expected_count_per_step"]),
            units.size(row["expected_bytes_per_step"]),
            _count(row["seen_count_per_step"]),
            units.size(row["seen_bytes_per_step"]),
            _NONE
            if row["difference_frac"] is None
            else units.signed_percent(row["difference_frac"]),
            _reason(row),
        ]
        for row in found["rows"]
    ]
    columns = ["Axis", "Operation", "Expected", "Bytes", "Seen", "Bytes", "Differs"]
    return card(title, [table([*columns, "Likely reason"], rows, numeric_from=2)])


def _reason(row: Row) -> str:
    if row["reason"] is None:
        return _NONE
    code = ReasonCode(row["reason"])
    return str(reason_message(code, row["kind"], row["reason_amount"], row["element_bytes"]))


def _bandwidths(found: Sequence[Row]) -> Component:
    title = "Bandwidth against message size"
    if not found:
        return card(title, [empty("No bandwidth is known", "It needs sizes, members and ends.")])
    alike = Counter(map(_like, found))
    compared = [row for row in found if alike[_like(row)] > 1]
    caption = "No two groups have the same operation and size: none is compared with another."
    if compared:
        low = min(compared, key=lambda row: (row["of_like_frac"], row["of_best_frac"]))
        caption = (
            f"Slowest against similar groups: group {low['group_id']} ({axis_label(low['axis'])} {low['kind']}) "
            f"at {units.percent(low['of_like_frac'], 0)} of the fastest such group."
        )
    order = sorted(found, key=lambda row: (row["of_like_frac"], row["of_best_frac"]))
    rows = [
        [
            name_cell(row["group_id"]),
            axis_label(row["axis"]),
            row["kind"],
            units.size(row["size_from_bytes"]),
            f"{row['count']:,}",
            units.rate(row["median_bytes_per_s"], "B/s"),
            units.percent(row["of_best_frac"], 0),
            # A lone group is not compared with itself.
            units.percent(row["of_like_frac"], 0) if alike[_like(row)] > 1 else _NONE,
            units.percent(row["of_ceiling_frac"], 0),
        ]
        for row in order[:_MOST_ROWS]
    ]
    columns = ["Group", "Axis", "Operation", "From", "Count", "Median", "Of own best"]
    columns += ["Of fastest like", "Of link"]
    note = "Bus bandwidth, as the NCCL tests define it."
    if len(order) > len(rows):
        note += f" The lowest {len(rows)} of {len(order)} rows; the JSON has all."
    figure = chart(bandwidth_figure(found), caption, "bandwidth-graph")
    return card(title, [figure, table(columns, rows, numeric_from=3)], note=note)


def _like(row: Row) -> tuple[str, str, int]:
    """Return what groups that are compared have in common."""
    return row["axis"], row["kind"], row["size_from_bytes"]


def _pairs(pairs: Sequence[Pair]) -> Component:
    title = "Sends from rank to rank"
    if not pairs:
        return card(
            title, [empty("No messages", "No send or receive with a named peer was recorded.")]
        )
    sent = sum(pair.total_bytes for pair in pairs)
    ranks = {end for pair in pairs for end in pair[:2]}
    if not sent:
        why = f"{len(ranks)} ranks sent messages; the capture has no sizes."
        return card(title, [empty("Sizes not recorded", why)])
    caption = f"{len(ranks)} ranks sent {units.size(sent)} in messages."
    if (each := pair_ranks_each(pairs)) > 1:
        caption += f" A cell shows the worst pair of {each} by {each} ranks."
    if len(pairs) > MOST_PAIRS:
        caption += f" The table has the worst {MOST_PAIRS:,} of {len(pairs):,} pairs."
    return card(title, [chart(pair_figure(pairs), caption, "pairs-graph")])


def _arrivals(found: Sequence[Row]) -> Component:
    title = "How far apart the members arrive"
    if not found:
        return card(title, [empty("Arrivals unknown", "Members of a group have no common clock.")])
    rows = [
        [
            axis_label(row["axis"]),
            row["kind"],
            f"{row['count']:,}",
            *(units.duration(row[f"spread_{name}_ns"]) for name in ("p50", "p95", "max")),
        ]
        for row in found
    ]
    columns = ["Axis", "Operation", "Count", "Median", "p95", "Most"]
    note = "From the start of the first member to that of the last, on aligned clocks."
    return card(title, [table(columns, rows, numeric_from=2)], note=note)


def _arrivals_by_group(found: Sequence[Row]) -> list[Component]:
    """Return the arrivals of each group and who comes last, the widest first; nothing without any."""
    if not found:
        return []
    rows = [
        [
            axis_label(row["axis"]),
            row["group_id"],
            row["kind"],
            f"{row['count']:,}",
            *(units.duration(row[f"spread_{name}_ns"]) for name in ("p50", "p95")),
            "unknown" if row["last_rank"] is None else f"rank {row['last_rank']}",
            f"{row['last_count']:,} of {row['decided']:,}",
        ]
        for row in found[:_MOST_ROWS]
    ]
    columns = ["Axis", "Group", "Operation", "Count", "Median", "p95", "Mostly last", "Last"]
    note = "Last arrivals count only where a single member was last."
    if len(found) > len(rows):
        note += f" The widest {len(rows)} of {len(found)} rows; the JSON has all."
    return [card("Arrivals by group", [table(columns, rows, numeric_from=3)], note=note)]


def _last(ranks: Mapping[str, Row]) -> Component:
    late = sorted(ranks.items(), key=lambda item: -item[1]["arrived_last"])[:_MOST_ROWS]
    rows = [
        [
            f"rank {rank}",
            f"{row['arrived_last']:,} of {row['count']:,}",
            units.percent(row["arrived_last_frac"]),
            units.duration(row["wait_per_step_ns"]),
        ]
        for rank, row in late
    ]
    note = "Blocking collectives only: no member leaves before all have arrived."
    if len(ranks) > len(late):
        note += f" {len(late)} of {len(ranks)} ranks; the JSON has all."
    columns = ["Rank", "Arrived last", "Share", "Waited a step"]
    return card("Who arrives last", [table(columns, rows)], note=note)


def _count(value: float) -> str:
    return f"{value:,.0f}"
