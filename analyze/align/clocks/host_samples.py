"""Samples of hosts on the clocks of the ranks.

An agent reads the monotonic clock of its machine, as the ranks there do. The tables name
that clock as the ranks' clocks are named, so that they move with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from meshscope.probe.schema.host_tables import HOST_TABLES, SAMPLED

from .fit import SAME_CLOCK, ClockMap, moved


def named_as_clocks(
    tables: Mapping[str, pa.Table],
    host_manifests: Mapping[str, Mapping[str, Any]],
    rank_manifests: Mapping[int, Mapping[str, Any]],
    clocks: Mapping[int, str],
) -> dict[str, pa.Table]:
    """Return the host tables with each host called as the clock of its ranks is.

    They differ where the containers of one machine have names of their own, or machines
    share one. A host without ranks keeps its name.

    Args:
        tables: Any tables; only those of hosts are returned.
        host_manifests: By host.
        rank_manifests: By rank.
        clocks: Name of the clock of each rank.
    """
    by_boot = {
        boot: clocks[rank]
        for rank, manifest in rank_manifests.items()
        if rank in clocks and isinstance(boot := manifest.get("boot_id"), str)
    }
    names = {
        host: by_boot[boot]
        for host, manifest in host_manifests.items()
        if isinstance(boot := manifest.get("boot_id"), str) and by_boot.get(boot, host) != host
    }
    found = {name: table for name, table in tables.items() if name in HOST_TABLES}
    if not names:
        return found
    for name, table in found.items():
        hosts = [names.get(host, host) for host in table["host"].to_pylist()]
        at = table.column_names.index("host")
        renamed = table.set_column(at, "host", pa.array(hosts, pa.string()))
        found[name] = HOST_TABLES[name].conform(renamed)
    return found


def moved_samples(
    tables: Mapping[str, pa.Table], maps: Mapping[str, ClockMap]
) -> dict[str, pa.Table]:
    """Return the samples with their times on the reference clock.

    Args:
        tables: Any tables; only those of samples that move are returned.
        maps: What each clock that is wrong needs, by name.
    """
    found = {}
    for name in SAMPLED:
        table = tables.get(name)
        if table is None or not table.num_rows:
            continue
        hosts = table["host"].combine_chunks()
        names = hosts.dictionary.to_pylist()
        by_host = [maps.get(host, SAME_CLOCK) for host in names]
        if all(one is SAME_CLOCK for one in by_host):
            continue
        position = np.asarray(hosts.indices.to_numpy(), dtype=np.int64)
        times = moved(table["time_ns"].to_numpy(), position, by_host)
        at = table.column_names.index("time_ns")
        found[name] = table.set_column(at, table.schema.field(at), pa.array(times))
    return found
