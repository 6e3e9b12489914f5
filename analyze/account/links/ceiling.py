"""Bus bandwidth of each group by size beside what its links carry and what it reached at best.

A ring over hosts enters and leaves each host once, so its bus bandwidth is at most what the slowest
host's network ports carry together. Inside a host the speed of the links is not recorded: there the
best group of the same axis, operation and size is the measure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pandas as pd

from ...tables.trace import Trace

BEST = 0.95
"""Quantile that counts as the best: one lucky operation is no ceiling."""
_LIKE = ["axis", "kind", "size_from_bytes"]


def group_bandwidths(trace: Trace, collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the bandwidth of each group by operation and size.

    Args:
        trace: The capture.
        collectives: group_id, axis, kind, size_bytes, bus_bandwidth_bytes_per_s (NA unknown).

    Returns:
        group_id, axis, kind, size_from_bytes (a power of two), count, median_bytes_per_s,
        best_bytes_per_s (of this group), like_best_bytes_per_s (median of the fastest group of the
        axis, operation and size), ceiling_bytes_per_s (NaN unknown), hosts (number).
    """
    speed = collectives["bus_bandwidth_bytes_per_s"].astype("Float64").astype("float64")
    known = collectives[(speed > 0).to_numpy(bool)]
    size = np.maximum(known["size_bytes"].to_numpy(np.float64), 1)
    rows = pd.DataFrame(
        {
            "group_id": known["group_id"].astype(str),
            "axis": known["axis"].astype(str),
            "kind": known["kind"].astype(str),
            "size_from_bytes": (1 << (np.frexp(size)[1] - 1).astype(np.int64)),
            "speed": speed[known.index],
        }
    )
    by_group = rows.groupby(["group_id", *_LIKE])["speed"]
    table = pd.DataFrame(
        {
            "count": by_group.size(),
            "median_bytes_per_s": by_group.median(),
            "best_bytes_per_s": by_group.quantile(BEST),
        }
    ).reset_index()
    table["like_best_bytes_per_s"] = table.groupby(_LIKE)["median_bytes_per_s"].transform("max")
    hosts = _hosts(trace)
    port_speed = port_speeds(trace)
    table["hosts"] = [len(hosts.get(name, ())) for name in table["group_id"]]
    table["ceiling_bytes_per_s"] = [
        float(np.min([port_speed.get(host, np.nan) for host in own]))
        if len(own := hosts.get(name, frozenset())) > 1
        else np.nan
        for name in table["group_id"]
    ]
    return table


def _hosts(trace: Trace) -> dict[str, frozenset[str]]:
    group = trace.frame("group")
    return {
        str(name): frozenset(trace.clock_of(rank) for rank in ranks)
        for name, ranks in zip(group["group_id"], group["ranks"], strict=True)
    }


def port_speeds(trace: Trace) -> dict[str, float]:
    """Return what all network ports of a host carry together; hosts of an unknown speed are left out.

    The cards that a topology file states go before the ports that were sampled.
    """
    rows = trace.frame("link_sample")
    speeds = rows["speed_bytes_per_s"].groupby([rows["host"].astype(str), rows["port"].astype(str)])
    by_port = speeds.median()
    by_host = by_port.groupby(level=0)
    sampled = by_host.sum()[by_host.count() == by_host.size()]
    total = {str(host): float(speed) for host, speed in sampled.items() if speed > 0}
    stated: dict[str, float] = defaultdict(float)
    for (host, _), speed in stated_speeds(trace).items():
        stated[host] += speed
    return total | stated


def stated_speeds(trace: Trace) -> dict[tuple[str, str], float]:
    """Return the speed of each card of a topology file, by host and name; none of a host where one is not stated.

    A host has the name that counters and clocks have, which need not be the one in the file.
    """
    found: dict[tuple[str, str], float] = {}
    for machine in trace.machines:
        hosts = {trace.clock_of(rank) for rank in machine.ranks}
        speeds = {card.name: card.bytes_per_s for card in machine.cards}
        if len(hosts) == 1 and None not in speeds.values():
            host = hosts.pop()
            found |= {(host, name): speed for name, speed in speeds.items() if speed is not None}
    return found


def port_speed(stated: Mapping[tuple[str, str], float], host: str, port: str) -> float:
    """Return the stated speed of a port, which may be one of several of a card (``mlx5_0/1``); NaN without one.

    >>> port_speed({("node1", "mlx5_0"): 5e10}, "node1", "mlx5_0/1")
    50000000000.0
    """
    card = port.partition("/")[0]
    return stated.get((host, port), stated.get((host, card), float("nan")))
