"""What the device of each rank did in each step: SM clock, and memory bandwidth against arithmetic.

A sample holds from halfway to the one before until halfway to the next, and no longer than
``HOLD_NS`` on either side. A step of which busy samples cover less than ``MIN_COVERED`` is one
of which nothing is known: an idle device lowers its clock by design.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...align.steps.windows import StepWindows
from ...formulas.peaks import rated_clock
from ...tables.arrays import FloatArray, IntArray
from ...tables.centres import median_of_others
from ...tables.trace import Trace
from ...wording.message import Text, message
from ..kernels.coverage import common_kernel_steps, has_kernels
from .health import BUSY, LEAST_PEERS, LEAST_SAMPLES

HOLD_NS = 2_000_000_000
"""How long a sample holds at most: twice the usual interval. Clocks follow heat and power, slowly."""
SLOW_SAMPLING = 1.5
"""It holds that many usual intervals of its device where they are longer."""
MIN_COVERED = 0.5
MEMORY_BOUND = 0.6
"""Share of the memory bandwidth from which a sample is bound by it, if it is also more than the
share of time in which tensor cores worked. A choice: with less of either, latency is what a kernel
commonly waits for."""
NO_AGENT = message("why.no_agent")
NO_DEVICE = message("why.no_device")
NOT_COUNTED = message("why.not_counted")
_COLUMNS = ("clock_hz", "peer_hz", "clock_lost_frac", "bound_frac", "memory_lost_frac")


class DeviceSteps(NamedTuple):
    """What samples tell of the devices of the ranks, step by step."""

    frame: pd.DataFrame
    """One row a rank and step, as the windows have them: rank, step, and, NaN where not known,
    clock_hz (mean); peer_hz (median over the same step of others of its model, with two or more);
    clock_lost_frac (share of time that a clock below ``reference`` costs what is bound by it);
    bound_frac (share of time bound by memory bandwidth); memory_lost_frac (what it takes longer
    than its arithmetic, as a share of time)."""
    reference: str
    """Which clock counts as full; empty if none is known."""
    clock_unknown: Text
    """Why of no step it is known what a low clock costs; empty if of any."""
    memory_unknown: Text
    """Why of no step it is known what memory bandwidth bounds; empty if of any."""
    hosts: Mapping[int, str]
    """The host of each rank's device, where that was sampled."""


class _Device(NamedTuple):
    """One device with its samples, in order of time."""

    time_ns: FloatArray
    is_busy: np.ndarray
    clock_hz: FloatArray
    dram_frac: FloatArray
    tensor_frac: FloatArray
    reference_hz: float


def device_steps(trace: Trace, windows: StepWindows, peak_flops: float | None) -> DeviceSteps:
    """Return the clocks and the memory use of devices over the analysed steps.

    Args:
        trace: The capture.
        windows: Its analysed steps.
        peak_flops: The peak that MFU is measured against; the clock that it assumes counts as full.
    """
    frame = windows.frame[["rank", "step"]].copy()
    frame[list(_COLUMNS)] = np.nan
    why = _unknown(trace, windows)
    if why:
        return DeviceSteps(frame, "", why, why, {})
    begin_ns = int(windows.frame["start_ns"].min()) - windows.default_shift_ns
    end_ns = int(windows.frame["end_ns"].max()) - windows.default_shift_ns
    devices = _devices(trace, (begin_ns - HOLD_NS, end_ns + HOLD_NS), peak_flops)
    values = np.full((len(frame), len(_COLUMNS)), np.nan)
    rank = windows.frame["rank"].to_numpy(np.int64)
    borders = windows.frame[["start_ns", "end_ns"]].to_numpy(np.float64)
    own_device = _device_of_ranks(trace)
    for number, place in own_device.items():
        if place in devices.samples:
            rows = slice(*np.searchsorted(rank, (number, number + 1)).tolist())
            shift = windows.default_shift_ns
            values[rows] = _of_steps(devices.samples[place], borders[rows] - shift)
    frame[list(_COLUMNS)] = values
    frame.loc[~_is_device_time(trace, windows), list(_COLUMNS)] = np.nan
    frame["peer_hz"] = _peers(frame, {n: devices.names.get(p, "") for n, p in own_device.items()})
    clock, memory = (
        "" if frame[name].notna().any() else _why(frame, otherwise)
        for name, otherwise in (
            ("clock_lost_frac", message("why.no_full_clock")),
            ("bound_frac", NOT_COUNTED),
        )
    )
    hosts = {n: host for n, (host, _) in own_device.items()}
    return DeviceSteps(frame, "" if clock else devices.reference, clock, memory, hosts)


def _unknown(trace: Trace, windows: StepWindows) -> Text:
    if not trace.row_count("device_sample") or trace.per_step_clock:
        return NO_DEVICE if trace.row_count("host_sample") else NO_AGENT
    if not trace.row_count("rank_device"):
        return message("why.no_device_of_ranks")
    if not _is_device_time(trace, windows).any():
        return message("why.timed_on_host")
    return ""


def _is_device_time(trace: Trace, windows: StepWindows) -> npt.NDArray[np.bool_]:
    """Return for each row of the windows whether its computing is that of a device.

    In a capture of ours on a GPU it is where spans or kernels were timed there.
    """
    step = windows.frame["step"]
    name = str(trace.run.get("device_name") or "")
    on_host = trace.capabilities.is_timed_on_host and name and not name.startswith("CPU")
    if not on_host or trace.frame("span")["device_dur_ns"].notna().any():
        return np.ones(len(step), dtype=bool)
    return has_kernels(trace, step, common_kernel_steps(trace, windows.ranks))


def _why(frame: pd.DataFrame, otherwise: Text) -> Text:
    """Return why samples do not tell something of any step."""
    covered = bool(frame["clock_hz"].notna().any())
    return otherwise if covered else message("why.not_covered")


_Place = tuple[str, str]
"""Host and uuid of a device."""


class _Devices(NamedTuple):
    samples: dict[_Place, _Device]
    names: dict[_Place, str]
    reference: str


def _device_of_ranks(trace: Trace) -> dict[int, _Place]:
    joined = trace.frame("rank_device")
    places = zip(joined["host"].astype(str), joined["uuid"].astype(str), strict=True)
    return dict(zip(joined["rank"].tolist(), places, strict=True))


def _devices(trace: Trace, around: tuple[int, int], peak_flops: float | None) -> _Devices:
    """Return the samples near some time of every device that has enough, and its full clock."""
    found, names, sources = dict[_Place, _Device](), dict[_Place, str](), set[str]()
    full = dict[_Place, float]()
    stated = str(trace.run.get("device_name") or "")
    listed = trace.frame("device").astype({"host": str, "uuid": str})
    for row in listed.to_dict("records"):
        place = (row["host"], row["uuid"])
        names[place] = str(row["name"] or stated)
        rated = rated_clock(names[place], peak_flops)
        if rated is not None:
            full[place] = rated
            sources.add("the clock that the peak FLOP/s assumes")
        elif row["max_clock_hz"] > 0:
            full[place] = float(row["max_clock_hz"])
            sources.add("the highest clock of the device")
    rows = trace.frame("device_sample").astype({"host": str, "uuid": str})
    rows = rows[rows["time_ns"].between(*around)]
    rows = rows.sort_values("time_ns", kind="stable").drop_duplicates(["host", "uuid", "time_ns"])
    for (host, uuid), own in rows.groupby(["host", "uuid"]):
        place = (str(host), str(uuid))
        device = _device(own, full.get(place, np.nan))
        if device.is_busy.sum() >= LEAST_SAMPLES:
            found[place] = device
    return _Devices(found, names, " or ".join(sorted(sources)))


def _device(rows: pd.DataFrame, reference_hz: float) -> _Device:
    busy = rows["sm_util_frac"].isna() | (rows["sm_util_frac"] >= BUSY)
    return _Device(
        time_ns=rows["time_ns"].to_numpy(np.float64),
        is_busy=busy.to_numpy(bool),
        clock_hz=rows["clock_hz"].to_numpy(np.float64),
        dram_frac=rows["dram_active_frac"].to_numpy(np.float64),
        tensor_frac=rows["tensor_active_frac"].to_numpy(np.float64),
        reference_hz=reference_hz,
    )


def _of_steps(device: _Device, borders: FloatArray) -> FloatArray:
    """Return the values of ``_COLUMNS`` over some steps of one rank; peers are not known yet."""
    clock, dram, tensor = device.clock_hz, device.dram_frac, device.tensor_frac
    clocked = device.is_busy & (clock > 0)
    active = device.is_busy & ~np.isnan(dram) & ~np.isnan(tensor)
    bound = active & (dram >= MEMORY_BOUND) & (dram > tensor)
    lost = np.where(bound, 0.0, np.maximum(0.0, 1.0 - clock / device.reference_hz))
    table = np.empty((len(borders), len(_COLUMNS)))
    # A clock without a reference is known all the same: its peers may be compared with it.
    table[:, 0] = _mean(device, clocked, clock, borders)
    table[:, 1] = np.nan
    table[:, 2] = _mean(device, clocked & ~np.isnan(lost), lost, borders)
    table[:, 3] = _mean(device, active, bound.astype(np.float64), borders)
    table[:, 4] = _mean(device, active, np.where(bound, dram - tensor, 0.0), borders)
    return table


def _mean(
    device: _Device, known: np.ndarray, values: FloatArray, borders: FloatArray
) -> FloatArray:
    """Return the mean of a sampled value over each step, NaN where too little of it is known."""
    total = _integral(device.time_ns, np.where(known, values, 0.0), borders)
    seen = _integral(device.time_ns, known.astype(np.float64), borders)
    length = borders[:, 1] - borders[:, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((seen > 0) & (seen >= MIN_COVERED * length), total / seen, np.nan)


def _integral(time_ns: FloatArray, values: FloatArray, borders: FloatArray) -> FloatArray:
    """Return the integral over intervals of a value that each sample holds around its time.

    Samples at 0, 10 and 20 of values 1, 2 and 3 hold until 5, until 15, and after that: over
    (0, 10) that is 5 x 1 + 5 x 2.
    """
    gaps = np.diff(time_ns)
    hold = max(float(HOLD_NS), SLOW_SAMPLING * float(np.median(gaps)))
    half = np.minimum(gaps / 2, hold)
    low = time_ns - np.append(hold, half)
    high = time_ns + np.append(half, hold)
    edges = np.column_stack([low, high]).ravel()
    area = np.zeros(len(edges))
    area[1::2] = values * (high - low)
    whole = np.interp(borders, edges, np.cumsum(area))
    return np.asarray(whole[:, 1] - whole[:, 0])


def _peers(frame: pd.DataFrame, names: dict[int, str]) -> FloatArray:
    """Return the median clock of the other ranks whose device is of the same model, by step."""
    peers = np.full(len(frame), np.nan)
    known = np.flatnonzero(frame["clock_hz"].notna())
    kind: IntArray = pd.factorize(frame["rank"].map(names).fillna(""))[0][known]
    step = frame["step"].to_numpy(np.int64)[known]
    clock = frame["clock_hz"].to_numpy(np.float64)[known]
    size = pd.Series(clock).groupby([kind, step]).transform("size").to_numpy()
    peers[known] = np.where(
        size > LEAST_PEERS, median_of_others(clock, kind.astype(np.int64), step), np.nan
    )
    return peers
