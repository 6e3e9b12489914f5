"""Growth of the byte and error counters of every port between samples."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import pandas as pd

from ...align.steps.windows import StepWindows
from ...tables.trace import Trace
from .ceiling import port_speed, stated_speeds

FAULTS = ("errors", "retries", "link_downed")
PAUSES = ("congestion", "wait")
_KEY = ["host", "port"]
_COUNTED = ("tx_bytes", "rx_bytes", *FAULTS, *PAUSES)


class PortKind(StrEnum):
    """What a port connects."""

    NETWORK = "network"
    NVLINK = "nvlink"
    PCIE = "pcie"


def growth(trace: Trace, windows: StepWindows) -> pd.DataFrame:
    """Return what each counter grew by between two samples that lie within the analysed steps.

    Returns:
        host, port, kind (PortKind), speed_bytes_per_s (NaN unknown), begin_ns, end_ns (on the time
        line of the windows), tx_bytes, rx_bytes, errors, retries, link_downed, congestion, wait
        (floats, NaN unknown); sorted by host, port and time.
    """
    parts = [_network(trace), *_devices(trace)]
    rows = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    rows = rows.sort_values([*_KEY, "time_ns"], kind="stable").drop_duplicates([*_KEY, "time_ns"])
    time = rows["time_ns"].to_numpy(np.int64) + windows.default_shift_ns
    rows = rows.assign(end_ns=time.astype(np.float64))
    by_port = rows.groupby(_KEY, sort=False)
    found = rows[[*_KEY, "kind", "speed_bytes_per_s", "end_ns"]].assign(
        begin_ns=by_port["end_ns"].shift()
    )
    for name in _COUNTED:
        grown = by_port[name].diff()
        found[name] = grown.where(grown >= 0)
    frame = windows.frame
    is_inside = (found["begin_ns"] >= frame["start_ns"].min()) & (
        found["end_ns"] <= frame["end_ns"].max()
    )
    inside: pd.DataFrame = found[is_inside.to_numpy(bool)].reset_index(drop=True)
    return inside


def _network(trace: Trace) -> pd.DataFrame:
    rows = trace.frame("link_sample")
    numbers = {name: rows[name].astype("float64") for name in (*_COUNTED, "speed_bytes_per_s")}
    names = {name: rows[name].astype(str) for name in _KEY}
    stated = stated_speeds(trace)
    if stated:
        keys = zip(names["host"], names["port"], strict=True)
        known = [port_speed(stated, host, port) for host, port in keys]
        speed = pd.Series(known, index=rows.index).fillna(numbers["speed_bytes_per_s"])
        numbers["speed_bytes_per_s"] = speed
    return pd.DataFrame(
        {**names, "time_ns": rows["time_ns"], **numbers, "kind": PortKind.NETWORK.value}
    )


def _devices(trace: Trace) -> list[pd.DataFrame]:
    """Return the counters of NVLink and PCIe of each device, which have no errors."""
    rows, device = trace.frame("device_sample"), trace.frame("device").drop_duplicates("uuid")
    by_uuid = device.set_index(device["uuid"].astype(str))
    found = []
    for kind in (PortKind.NVLINK, PortKind.PCIE):
        sent, received = (rows[f"{kind}_{way}_bytes"].astype("float64") for way in ("tx", "rx"))
        part = pd.DataFrame(
            {
                "host": rows["host"].astype(str),
                "port": rows["uuid"].astype(str) + f" {kind}",
                "time_ns": rows["time_ns"],
                "tx_bytes": sent,
                "rx_bytes": received,
                **dict.fromkeys((*FAULTS, *PAUSES), np.nan),
                "speed_bytes_per_s": rows["uuid"]
                .astype(str)
                .map(by_uuid[f"{kind}_bytes_per_s"].astype("float64")),
                "kind": kind.value,
            }
        )
        found.append(part[sent.notna() | received.notna()])
    return found
