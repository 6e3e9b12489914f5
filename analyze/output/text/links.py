"""The use of links as sections."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...account.links.phases import Phase
from ...account.links.words import UNKNOWN, fault_words
from ...wording.quantities import percent
from ...wording.words import axis_label
from ..document import Block, Lines, Table, section
from .amounts import left_out

_MOST_PORTS = 32
_LEAST_GB = 0.1
"""Below it the rates of a table in GB/s would all read 0.0."""
_PHASES = [phase.value for phase in Phase]


def link_blocks(result: dict[str, Any]) -> list[Block]:
    """Return ports by phase, what each axis sends between hosts, and faults.

    Args:
        result: As ``links_to_json`` returns it.
    """
    if result["unknown"] is not None:
        return section("Links", Lines([f"Use of links unknown: {UNKNOWN[result['unknown']]}."]))
    ports = sorted(result["ports"], key=lambda port: -port["mean_bytes_per_s"])[:_MOST_PORTS]
    unit, scale = _unit(port["busiest_interval_bytes_per_s"] for port in ports)
    headers = ("port", "way", unit, "busiest", *(name.replace("_", " ") for name in _PHASES))
    notes = [*left_out(len(result["ports"]) - len(ports), "ports"), *_resolution(result)]
    of_axes, by = _unit(
        one["sent_bytes_per_step"] / max(one["busy_ns_per_step"], 1.0) * 1e9
        for one in result["axes"]
    )
    titles = ("host", "axis", "MB/step", "ms/step on the wire", f"{of_axes} meanwhile", "groups")
    axes = Table(titles, [_axis(one, by) for one in result["axes"]])
    return [
        *section("Links", Table(headers, [_port(port, scale) for port in ports], notes=notes)),
        *section("Sent to other hosts, as recorded", axes),
        *([Lines(faults)] if (faults := list(_faults(result))) else []),
    ]


def _unit(rates: Iterable[float]) -> tuple[str, float]:
    """Return the unit of a column of rates, and its bytes/s: GB/s, or MB/s where all are below a tenth of it."""
    return ("GB/s", 1e9) if max(rates, default=1e9) >= _LEAST_GB * 1e9 else ("MB/s", 1e6)


def _faults(result: dict[str, Any]) -> Iterator[str]:
    for one in result["faults"]:
        ratio = one["wire_ratio"]
        slow = "" if ratio is None else f"; operations meanwhile take {ratio:.2f} x as long"
        yield f"{one['host']} {one['port']}: {fault_words(one)}{slow}"


def _port(port: dict[str, Any], scale: float) -> tuple[object, ...]:
    phases = (port["phases"][name] for name in _PHASES)
    speed = port["speed_bytes_per_s"]
    mean, most = (
        f"{port[name] / scale:.3f}" + (f" ({percent(port[name] / speed, 0)})" if speed else "")
        for name in ("mean_bytes_per_s", "busiest_interval_bytes_per_s")
    )
    shown = (
        "?"
        if one["bytes_per_s"] is None
        else f"{one['bytes_per_s'] / scale:.3f}"
        + ("" if one["used_frac"] is None else f" ({percent(one['used_frac'], 0)})")
        for one in phases
    )
    return (f"{port['host']} {port['port']}", port["direction"], mean, most, *shown)


def _resolution(result: dict[str, Any]) -> Iterator[str]:
    """Say what samples of that interval resolve."""
    if not result["ports"]:
        return
    interval = max(port["sample_interval_ns"] for port in result["ports"]) / 1e9
    yield (
        f"Samples every {interval:.2f} s, steps of {result['step_ns'] / 1e9:.3f} s. "
        "Rates in phases are fitted over all samples"
    )
    if any(
        port["phases"][name]["bytes_per_s"] is None for port in result["ports"] for name in _PHASES
    ):
        yield (
            "?: not resolved, the standard error is above 10 % of the peak. "
            "Inside a step rely on the recorded bytes"
        )


def _axis(one: dict[str, Any], scale: float) -> tuple[object, ...]:
    sent, busy = one["sent_bytes_per_step"], one["busy_ns_per_step"]
    rate = f"{sent / busy * 1e9 / scale:.3f}" if busy else "unknown"
    count = len(one["groups"])
    return (
        one["host"],
        axis_label(one["axis"]),
        f"{sent / 1e6:,.3f}",
        f"{busy / 1e6:.2f}",
        rate,
        count,
    )
