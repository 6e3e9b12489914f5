"""Faults of the devices of a run, from the driver's events and error counters.

What the driver's fault messages (Xids) mean is by NVIDIA. Source: NVIDIA, *XID Errors* (docs.nvidia.com/deploy/xid-errors), its list of Xids with
their usual causes. A number that is not here is reported as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec

from meshscope.probe.schema.terms import DeviceEventKind

from ...tables.trace import Trace
from ...wording.message import Message, Text, message


class FaultClass(StrEnum):
    """Where to look for the cause of a fault, the most serious first."""

    BUS = "bus"
    MEMORY = "memory"
    FIRMWARE = "firmware"
    LINK = "link"
    UNKNOWN = "unknown"
    WEAR = "wear"
    """Rows of memory that go bad without harm so far."""
    PROGRAM = "program"


class Xid(NamedTuple):
    """One number."""

    meaning: str
    fault: FaultClass


_LINKS = {number: Xid("an error of NVLink", FaultClass.LINK) for number in range(144, 151)}
XIDS: dict[int, Xid] = {
    13: Xid("an exception of the graphics engine", FaultClass.PROGRAM),
    31: Xid("a memory page fault, an access to an illegal address", FaultClass.PROGRAM),
    32: Xid("an invalid or damaged command buffer", FaultClass.BUS),
    43: Xid("a kernel that was stopped after an error of the program", FaultClass.PROGRAM),
    45: Xid("work that was cleared away, after an earlier fault or a kill", FaultClass.PROGRAM),
    48: Xid("an uncorrected memory error", FaultClass.MEMORY),
    61: Xid("a halt of the device's microcontroller", FaultClass.FIRMWARE),
    62: Xid("a halt of the device's microcontroller", FaultClass.FIRMWARE),
    63: Xid("a row of memory that was marked for replacement", FaultClass.WEAR),
    64: Xid("a row of memory that could not be marked for replacement", FaultClass.MEMORY),
    69: Xid("an error of the graphics engine's class", FaultClass.PROGRAM),
    74: Xid("an error of NVLink", FaultClass.LINK),
    79: Xid("a device that fell off the bus", FaultClass.BUS),
    92: Xid("a high rate of corrected memory errors", FaultClass.WEAR),
    94: Xid("an uncorrected memory error that was contained", FaultClass.MEMORY),
    95: Xid("an uncorrected memory error that was not contained", FaultClass.MEMORY),
    109: Xid("a switch of contexts that did not end in time", FaultClass.FIRMWARE),
    119: Xid("a system processor (GSP) that does not answer", FaultClass.FIRMWARE),
    120: Xid("an error of the system processor (GSP)", FaultClass.FIRMWARE),
    121: Xid("an error of the chip-to-chip link", FaultClass.LINK),
    140: Xid("a memory error from which the device did not recover", FaultClass.MEMORY),
    **_LINKS,
}


def xid(number: int) -> Xid:
    """Return what a number means, also of one that is not in the list."""
    return XIDS.get(number, Xid("a fault that is not in the list", FaultClass.UNKNOWN))


class Fault(msgspec.Struct, frozen=True):
    """One kind of fault of one device."""

    fault: FaultClass
    what: Text
    """What it is, in words that continue "it reported"."""
    count: int
    first_ns: int
    """When it was seen first, on the clock of the ranks of its host."""


class FaultyDevice(msgspec.Struct, frozen=True):
    """A device with faults."""

    host: str
    uuid: str
    rank: int | None
    """None where no rank is known to run on it."""
    faults: tuple[Fault, ...] = ()
    """The most serious first, then the earliest."""


def faulty_devices(trace: Trace) -> tuple[FaultyDevice, ...]:
    """Return the devices that reported faults while they were watched.

    Devices that other ranks of a host do not run on are left out where it is known which
    devices the ranks run on: their faults are those of other jobs.
    """
    found: dict[tuple[str, str], list[Fault]] = {}
    for key, fault in (*_events(trace), *_counters(trace)):
        found.setdefault(key, []).append(fault)
    if not found:
        return ()
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
    if not trace.row_count("device_event"):
        return
    events = trace.frame("device_event").astype({"host": str, "uuid": str, "kind": str})
    events["code"] = events["code"].fillna(-1).astype("int64")
    for (host, uuid, kind, code), rows in events.groupby(["host", "uuid", "kind", "code"]):
        fault, what = _meaning(str(kind), int(str(code)))
        first_ns = int(rows["time_ns"].min())
        yield (str(host), str(uuid)), Fault(fault, what, len(rows), first_ns)


_MEANINGS: dict[str, tuple[FaultClass, Message]] = {
    DeviceEventKind.ECC_UNCORRECTED.value: (
        FaultClass.MEMORY,
        message("device_fault.ecc_uncorrected"),
    ),
    DeviceEventKind.LOST.value: (FaultClass.BUS, message("device_fault.lost")),
    DeviceEventKind.RESET_REQUIRED.value: (
        FaultClass.FIRMWARE,
        message("device_fault.reset_required"),
    ),
}


def _meaning(kind: str, code: int) -> tuple[FaultClass, Text]:
    if kind == DeviceEventKind.XID:
        known = xid(code)
        return known.fault, message("device_fault.xid", xid=code, meaning=known.meaning)
    return _MEANINGS.get(kind, (FaultClass.UNKNOWN, kind))


_GROWS: dict[str, tuple[FaultClass, Callable[[int], Message]]] = {
    "ecc_uncorrected": (
        FaultClass.MEMORY,
        lambda errors: message("device_fault.more_ecc_uncorrected", errors=errors),
    ),
    "remapped_rows": (
        FaultClass.WEAR,
        lambda rows: message("device_fault.remapped_rows", rows=rows),
    ),
}
_IS_SET = {
    "remap_failed": (FaultClass.MEMORY, message("device_fault.remap_failed")),
    "remap_pending": (FaultClass.WEAR, message("device_fault.remap_pending")),
}


def _counters(trace: Trace) -> Iterator[tuple[_Key, Fault]]:
    """Yield what counters say that grew in the run, and flags that were set in it.

    A flag that was set before the run counts too: such a device is at work in it.
    """
    if not trace.row_count("device_sample"):
        return
    samples = trace.frame("device_sample").astype({"host": str, "uuid": str}).sort_values("time_ns")
    for (host, uuid), rows in samples.groupby(["host", "uuid"], sort=False):
        key = (str(host), str(uuid))
        for column, (fault, grown) in _GROWS.items():
            known = rows[rows[column].notna()]
            growth = known[column].astype("int64").diff()
            amount = int(growth[growth > 0].sum())
            if amount:
                first_ns = int(known.loc[growth > 0, "time_ns"].iloc[0])
                yield key, Fault(fault, grown(amount), 1, first_ns)
        for column, (fault, what) in _IS_SET.items():
            is_set = rows[column].isin([True])
            if is_set.any():
                first_ns = int(rows.loc[is_set, "time_ns"].iloc[0])
                yield key, Fault(fault, what, 1, first_ns)


def fault_messages(faults: tuple[Fault, ...]) -> list[Text]:
    """Return faults, each with how often it came."""
    return [
        message("device_fault.repeated", what=one.what, times=one.count)
        if one.count > 1
        else one.what
        for one in faults
    ]


def when(trace: Trace, rank: int | None, fault: Fault) -> Message | None:
    """Return when a fault was seen first; None where times do not compare."""
    steps = trace.frame("step")
    if steps.empty or trace.per_step_clock:
        return None
    after_ns = fault.first_ns - int(steps["start_ns"].min())
    if after_ns < 0:
        return message("device_fault.before", before_ns=-after_ns)
    text = message("device_fault.after", after_ns=after_ns)
    own = steps[steps["rank"] == rank]
    if own.empty:
        return text
    ends_ns = own["start_ns"] + own["dur_ns"]
    inside = own[(own["start_ns"] <= fault.first_ns) & (fault.first_ns < ends_ns)]
    if len(inside):
        step = int(inside["step"].iloc[0])
        return message("device_fault.in_step", when=text, step=step)
    if fault.first_ns >= int(ends_ns.max()):
        return message("device_fault.after_last_step", when=text, rank=rank)
    return text
