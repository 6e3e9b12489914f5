"""Faults of the devices of a run, from the driver's events and error counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meshscope.probe.schema.terms import DeviceEventKind

from ..capture.trace import Trace
from .xids import FaultClass, xid


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault of one device."""

    fault: FaultClass
    what: str
    """What it is, in words that continue "it reported"."""
    count: int
    first_ns: int
    """When it was seen first, on the clock of the ranks of its host."""


@dataclass(frozen=True, slots=True)
class FaultyDevice:
    """A device with faults."""

    host: str
    uuid: str
    rank: int | None
    """None where no rank is known to run on it."""
    faults: tuple[Fault, ...] = field(default=())
    """The most serious first, then the earliest."""


def faulty_devices(trace: Trace) -> tuple[FaultyDevice, ...]:
    """Return the devices that reported faults while they were watched.

    Devices that other ranks of a host do not run on are left out where it is known which
    devices the ranks run on: their faults are those of other jobs.
    """
    found: dict[tuple[str, str], list[Fault]] = {}
    for key, fault in (*_events(trace), *_counters(trace)):
        found.setdefault(key, []).append(fault)
    joined = trace.frame("rank_device").astype({"host": str, "uuid": str})
    ranks = dict(zip(zip(joined["host"], joined["uuid"], strict=True), joined["rank"], strict=True))
    hosts_known = set(joined["host"])
    order = list(FaultClass)
    return tuple(
        FaultyDevice(
            host,
            uuid,
            None if (host, uuid) not in ranks else int(ranks[host, uuid]),
            tuple(sorted(faults, key=lambda one: (order.index(one.fault), one.first_ns))),
        )
        for (host, uuid), faults in sorted(found.items())
        if (host, uuid) in ranks or host not in hosts_known or uuid == _UNKNOWN_DEVICE
    )


_UNKNOWN_DEVICE = "unknown"
"""In place of a uuid, where the driver did not say whose event it is."""
_Key = tuple[str, str]


def _events(trace: Trace) -> Iterator[tuple[_Key, Fault]]:
    events = trace.frame("device_event").astype({"host": str, "uuid": str, "kind": str})
    events["code"] = events["code"].fillna(-1).astype("int64")
    for (host, uuid, kind, code), rows in events.groupby(["host", "uuid", "kind", "code"]):
        fault, what = _meaning(str(kind), int(str(code)))
        first_ns = int(rows["time_ns"].min())
        yield (str(host), str(uuid)), Fault(fault, what, len(rows), first_ns)


def _meaning(kind: str, code: int) -> tuple[FaultClass, str]:
    if kind == DeviceEventKind.XID:
        known = xid(code)
        return known.fault, f"Xid {code} ({known.meaning})"
    return {
        DeviceEventKind.ECC_UNCORRECTED.value: (FaultClass.MEMORY, "an uncorrected memory error"),
        DeviceEventKind.LOST.value: (FaultClass.BUS, "that it is lost"),
        DeviceEventKind.RESET_REQUIRED.value: (FaultClass.FIRMWARE, "that it needs a reset"),
    }.get(kind, (FaultClass.UNKNOWN, kind))


_GROWS = {
    "ecc_uncorrected": (FaultClass.MEMORY, "{} more in the count of uncorrected memory errors"),
    "remapped_rows": (FaultClass.WEAR, "{} more rows of memory that were replaced by spare ones"),
}
_IS_SET = {
    "remap_failed": (FaultClass.MEMORY, "a row of memory that could not be replaced"),
    "remap_pending": (FaultClass.WEAR, "a row of memory that waits for a reset to be replaced"),
}


def _counters(trace: Trace) -> Iterator[tuple[_Key, Fault]]:
    """Yield what counters say that grew in the run, and flags that were set in it.

    A flag that was set before the run counts too: such a device is at work in it.
    """
    samples = trace.frame("device_sample")
    if samples.empty:
        return
    samples = samples.astype({"host": str, "uuid": str}).sort_values("time_ns")
    for (host, uuid), rows in samples.groupby(["host", "uuid"], sort=False):
        key = (str(host), str(uuid))
        for column, (fault, what) in _GROWS.items():
            known = rows[rows[column].notna()]
            growth = known[column].astype("int64").diff()
            amount = int(growth[growth > 0].sum())
            if amount:
                first_ns = int(known.loc[growth > 0, "time_ns"].iloc[0])
                yield key, Fault(fault, what.format(amount), 1, first_ns)
        for column, (fault, what) in _IS_SET.items():
            is_set = rows[column].isin([True])
            if is_set.any():
                first_ns = int(rows.loc[is_set, "time_ns"].iloc[0])
                yield key, Fault(fault, what, 1, first_ns)


def faults_text(faults: tuple[Fault, ...]) -> str:
    """Return faults in words, each with how often it came."""
    return ", ".join(f"{f.what} {f.count} times" if f.count > 1 else f.what for f in faults)


def when(trace: Trace, rank: int | None, fault: Fault) -> str:
    """Return when a fault was seen first, in words; nothing where times do not compare."""
    steps = trace.frame("step")
    if steps.empty or trace.per_step_clock:
        return ""
    after_s = (fault.first_ns - int(steps["start_ns"].min())) / 1e9
    text = f"{abs(after_s):.1f} s {'after' if after_s >= 0 else 'before'} the first step began"
    own = steps[steps["rank"] == rank]
    if own.empty:
        return text
    inside = own[
        (own["start_ns"] <= fault.first_ns) & (fault.first_ns < own["start_ns"] + own["dur_ns"])
    ]
    if len(inside):
        return f"{text}, in step {int(inside['step'].iloc[0])}"
    is_over = fault.first_ns >= int((own["start_ns"] + own["dur_ns"]).max())
    return f"{text}, after the last step of rank {rank}" if is_over else text
