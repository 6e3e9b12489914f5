"""The JSON form of the use of links."""

from __future__ import annotations

from typing import Any

from ...account.links.phases import Phase
from ...account.links.use import LinkUse, PortSeries, PortUse

_MOST_INTERVALS = 500
"""Of a port; those of longer captures are pooled."""


def links_to_json(found: LinkUse) -> dict[str, Any]:
    """Return ports, axes by host, faults and traffic; rates that are not resolved are null."""
    return {
        "unknown": found.unknown,
        "step_ns": found.step_ns,
        "ports": [_port(port) for port in found.ports],
        "axes": [
            {
                "host": one.host,
                "axis": one.axis,
                "sent_bytes_per_step": one.sent_bytes,
                "busy_ns_per_step": one.busy_ns,
                "groups": list(one.groups),
            }
            for one in found.axes
        ],
        "faults": [
            {
                "host": one.host,
                "port": one.port,
                **one.counts,
                "wire_ratio": one.ratio,
                "operations": one.operations,
                "groups": list(one.groups),
            }
            for one in found.faults
        ],
        "traffic": [
            {
                "host": one.host,
                "counted_bytes_per_s": one.counted_bytes_per_s,
                "recorded_bytes_per_s": one.recorded_bytes_per_s,
                "speed_bytes_per_s": one.speed_bytes_per_s,
            }
            for one in found.traffic
        ],
    }


def _port(port: PortUse) -> dict[str, Any]:
    return {
        "host": port.host,
        "port": port.port,
        "kind": port.kind,
        "direction": port.direction,
        "speed_bytes_per_s": port.speed_bytes_per_s,
        "sample_interval_ns": port.interval_ns,
        "intervals": port.intervals,
        "mean_bytes_per_s": port.mean_bytes_per_s,
        "busiest_interval_bytes_per_s": port.peak_bytes_per_s,
        "phases": {
            phase.value: {
                "bytes_per_s": rate,
                "standard_error_bytes_per_s": port.errors[phase],
                "used_frac": port.used(rate),
            }
            for phase, rate in port.rates.items()
        },
        "series": _series(port.series.pooled(_MOST_INTERVALS)),
    }


def _series(series: PortSeries) -> dict[str, Any]:
    """Return rates and shares of the phases over time, from the begin of the first analysed step."""
    length = series.end_ns - series.begin_ns
    shares = series.phase_ns / length[:, None]
    return {
        "begin_ns": series.begin_ns.tolist(),
        "end_ns": series.end_ns.tolist(),
        "bytes_per_s": (series.moved_bytes / length * 1e9).tolist(),
        "phase_frac": {phase.value: shares[:, at].tolist() for at, phase in enumerate(Phase)},
    }
