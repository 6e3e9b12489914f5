"""How fast the devices of the ranks ran, and what held them back, from samples of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...tables.trace import Trace

Floats = npt.NDArray[np.float64]

THROTTLES = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x04: "software power cap",
}
"""Clock event reasons that hold a working device back (NVML, nvmlClocksEventReasons)."""
POWER_CAP = 0x04
FAULTS = 0x08 | 0x20 | 0x40 | 0x80
"""Those that no healthy device shows; at its power cap every busy device arrives."""
BUSY = 0.5
"""Share of time with a kernel running from which a sample tells how fast a device can be."""
LEAST_SAMPLES = 3
LEAST_PEERS = 2
"""Of two devices of different speed it cannot be known which one is slow."""


def device_health(trace: Trace, begin_ns: int, end_ns: int) -> pd.DataFrame:
    """Return one row for each rank whose device was sampled while it worked.

    Args:
        trace: A capture on one clock.
        begin_ns: Begin of the analysed time.
        end_ns: Its end.

    Returns:
        rank, host, uuid, name (of the device), samples, clock_hz (median), peer_hz (median
        over the devices of the same name on other ranks, null with fewer than two),
        throttled_frac (share of samples with a reason of ``FAULTS``), capped_frac (at the
        power cap), mask (all reasons seen in a tenth of the samples), temperature_c and
        power_w (highest).
    """
    samples = trace.frame("device_sample")
    joined = trace.frame("rank_device")
    if samples.empty or joined.empty:
        return pd.DataFrame(columns=_COLUMNS)
    inside = samples["time_ns"].between(begin_ns, end_ns)
    busy = samples["sm_util_frac"].isna() | (samples["sm_util_frac"] >= BUSY)
    rows = samples[inside & busy].astype({"host": str, "uuid": str})
    if rows.empty:
        return pd.DataFrame(columns=_COLUMNS)
    by_device = _by_device(rows)
    names = trace.frame("device").astype({"host": str, "uuid": str})[["host", "uuid", "name"]]
    keys = ["host", "uuid"]
    found = joined.astype({"host": str, "uuid": str})[["rank", *keys]]
    found = found.merge(by_device, on=keys).merge(names, on=keys, how="left")
    found = found[found["samples"] >= LEAST_SAMPLES].reset_index(drop=True)
    found["name"] = found["name"].fillna("")
    found["peer_hz"] = _peers(found)
    return found[_COLUMNS]


_COLUMNS = [
    "rank",
    "host",
    "uuid",
    "name",
    "samples",
    "clock_hz",
    "peer_hz",
    "throttled_frac",
    "capped_frac",
    "mask",
    "temperature_c",
    "power_w",
]
_LASTING = 0.1
"""Share of samples from which a reason counts."""


def _by_device(rows: pd.DataFrame) -> pd.DataFrame:
    known = rows["throttle_mask"].notna()
    mask = rows["throttle_mask"].fillna(0).astype(np.int64).to_numpy()
    flags = pd.DataFrame(
        {bit: np.where(known, (mask & bit) != 0, np.nan) for bit in THROTTLES}, index=rows.index
    )
    table = rows.assign(
        throttled_frac=np.where(known, (mask & FAULTS) != 0, np.nan),
        capped_frac=flags[POWER_CAP],
        **{f"bit{bit}": flags[bit] for bit in THROTTLES},
    )
    means = {name: (name, "mean") for name in ("throttled_frac", "capped_frac")}
    bits = {f"bit{bit}": (f"bit{bit}", "mean") for bit in THROTTLES}
    found = table.groupby(["host", "uuid"], as_index=False).agg(
        samples=("time_ns", "size"),
        clock_hz=("clock_hz", "median"),
        temperature_c=("temperature_c", "max"),
        power_w=("power_w", "max"),
        **means,
        **bits,
    )
    lasting = [np.where(found[f"bit{bit}"] >= _LASTING, bit, 0) for bit in THROTTLES]
    return found.assign(mask=np.sum(lasting, axis=0).astype(np.int64))


def _peers(found: pd.DataFrame) -> pd.Series:
    """Return, for each rank, the median clock of the other devices of its kind."""
    clocks = found["clock_hz"].to_numpy(float)
    names, devices = found["name"].to_numpy(), found["uuid"].to_numpy()
    peers = np.full(len(found), np.nan)
    for name in np.unique(names):
        own = np.flatnonzero((names == name) & ~np.isnan(clocks))
        if len(np.unique(devices[own])) > LEAST_PEERS:
            order = np.sort(clocks[own])
            place = np.searchsorted(order, clocks[own])
            peers[own] = _median_without(order, place)
    return pd.Series(peers, index=found.index)


def _median_without(order: Floats, place: npt.NDArray[np.int64]) -> Floats:
    """Return the median of sorted values without the one at each place."""
    rest = len(order) - 1
    low, high = (rest - 1) // 2, rest // 2
    at_low, at_high = low + (place <= low), high + (place <= high)
    return np.asarray((order[at_low] + order[at_high]) / 2, dtype=np.float64)
