"""The links of a run: how full is each port, in which phase, and for which groups?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dash import html
from dash.development.base_component import Component

from meshscope.analyze.account.links.phases import Phase
from meshscope.analyze.account.links.words import UNKNOWN, fault_words
from meshscope.analyze.wording.words import axis_label, capitalised

from ..figures.links import port_figure
from ..plain import units
from ..runs.loaded_run import LoadedRun
from .shell import card, chart, empty, name_cell, table

Row = Mapping[str, Any]
PHASES = {
    Phase.GRADIENT_SUM.value: "gradient sum",
    Phase.OPTIMIZER.value: "optimizer",
    Phase.BACKWARD.value: "backward",
    Phase.FORWARD.value: "forward",
    Phase.WAITING.value: "waiting, host",
}
_MOST_FIGURES = 8
"""Figures are drawn one after the other in the browser; the table has all ports."""
_MOST_ROWS = 64
_WAYS = {"tx": "sends", "rx": "receives"}


def layout(run: LoadedRun) -> list[Component]:
    """Return the page of links."""
    found = run.communication()["links"]
    content: list[Component] = [
        html.H1("How full the links are", className="ms-title"),
    ]
    if found["unknown"]:
        content.append(empty("Use of links unknown", capitalised(f"{UNKNOWN[found['unknown']]}.")))
        return content
    content += [
        *_figures(found["ports"]),
        _ports(found["ports"]),
        _axes(found["axes"]),
        _faults(found["faults"]),
        _traffic(found["traffic"]),
    ]
    return content


def _figures(ports: Sequence[Row]) -> list[Component]:
    """Draw the busiest ports: of those with a known speed by share, then by rate."""
    by_port: dict[tuple[str, str], list[Row]] = {}
    for port in ports:
        by_port.setdefault((port["host"], port["port"]), []).append(port)
    order = sorted(by_port.values(), key=lambda own: -max(map(_busy, own)))
    found = []
    for at, own in enumerate(order[:_MOST_FIGURES]):
        host, name = own[0]["host"], own[0]["port"]
        means = ", ".join(
            f"{_WAYS[port['direction']]} {units.rate(port['mean_bytes_per_s'], 'B/s')}"
            for port in own
        )
        speed = own[0]["speed_bytes_per_s"]
        of = f"; speed {units.rate(speed, 'B/s')} (dashed)" if speed else "; speed unknown"
        caption = (
            f"Mean: {means}{of}. One sample every {units.duration(own[0]['sample_interval_ns'])}."
        )
        figure = chart(port_figure(own, PHASES), caption, f"port-graph-{at}")
        found.append(card(f"{host}: {name}", [figure]))
    return found


def _busy(port: Row) -> float:
    speed = port["speed_bytes_per_s"]
    return float(port["mean_bytes_per_s"] / speed if speed else port["mean_bytes_per_s"] / 1e15)


def _ports(ports: Sequence[Row]) -> Component:
    rows = [
        [
            name_cell(f"{port['host']}: {port['port']}"),
            _WAYS[port["direction"]],
            units.rate(port["mean_bytes_per_s"], "B/s"),
            units.rate(port["busiest_interval_bytes_per_s"], "B/s"),
            *(_phase(port["phases"][phase]) for phase in PHASES),
        ]
        for port in ports[:_MOST_ROWS]
    ]
    columns = ["Port", "Way", "Mean", "Busiest", *(word.capitalize() for word in PHASES.values())]
    note = "Rates in phases are fitted over all samples; ? where the standard error is above 10 % of the peak."
    if len(ports) > len(rows):
        note += f" {len(rows)} of {len(ports)} rows; the JSON has all."
    return card("Rates by phase of the step", [table(columns, rows, numeric_from=2)], note=note)


def _phase(found: Row) -> str:
    if found["bytes_per_s"] is None:
        return "?"
    used = "" if found["used_frac"] is None else f" ({units.percent(found['used_frac'], 0)})"
    return units.rate(found["bytes_per_s"], "B/s") + used


def _axes(axes: Sequence[Row]) -> Component:
    title = "Recorded bytes that leave each host"
    if not axes:
        return card(
            title,
            [empty("No axis crosses hosts", "No recorded operation has members on two hosts.")],
        )
    rows = [
        [
            name_cell(row["host"]),
            axis_label(row["axis"]),
            units.size(row["sent_bytes_per_step"]),
            units.duration(row["busy_ns_per_step"]),
            len(row["groups"]),
        ]
        for row in axes[:_MOST_ROWS]
    ]
    columns = ["Host", "Axis", "Sent a step", "On the wire a step", "Groups"]
    return card(title, [table(columns, rows, numeric_from=2)])


def _faults(faults: Sequence[Row]) -> Component:
    title = "Errors and pauses beside slow operations"
    if not faults:
        return card(
            title,
            [
                empty(
                    "No errors",
                    "No port counted errors, retransmissions, link failures or pauses beside slow operations.",
                )
            ],
        )
    rows = [
        [
            name_cell(f"{row['host']}: {row['port']}"),
            fault_words(row),
            "unknown" if row["wire_ratio"] is None else f"{row['wire_ratio']:.1f} x",
            row["operations"],
        ]
        for row in faults[:_MOST_ROWS]
    ]
    columns = ["Port", "Counted", "Wire time of similar operations", "Operations"]
    return card(title, [table(columns, rows, numeric_from=2)])


def _traffic(traffic: Sequence[Row]) -> Component:
    title = "Counted and recorded traffic"
    if not traffic:
        return card(title, [empty("No network ports", "No network port was sampled.")])
    rows = [
        [
            name_cell(row["host"]),
            units.rate(row["counted_bytes_per_s"], "B/s"),
            units.rate(row["recorded_bytes_per_s"], "B/s"),
            units.rate(row["speed_bytes_per_s"], "B/s"),
        ]
        for row in traffic[:_MOST_ROWS]
    ]
    note = "Counted far above recorded: other jobs, checkpoints, storage or data loading."
    return card(title, [table(["Host", "Counted", "Recorded", "Speed"], rows)], note=note)
