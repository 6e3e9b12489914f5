"""Devices that reported faults: errors of memory, of links, of firmware; devices that are gone."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ..account import Account
from ..capture.trace import Trace
from ..devices.faults import FaultyDevice, faults_text, faulty_devices, when
from ..devices.xids import FaultClass
from ..labels import rank_words
from ..results import Finding, Where
from .standstill_words import where_of

_REMEDIES = {
    FaultClass.BUS: "Take the host out of the job, see dmesg for the Xid and AER messages around it, and "
    "reset or reseat the device; if it comes again, replace it",
    FaultClass.MEMORY: "Take the host out of the job and reset the device, so that bad rows are "
    "replaced (nvidia-smi -q -d ROW_REMAPPER); if that fails or it comes again, replace it",
    FaultClass.FIRMWARE: "Take the host out of the job and reset the device or reboot; if it comes "
    "again, look for a driver or firmware with a fix (nvidia-bug-report.sh)",
    FaultClass.LINK: "Look at the links (nvidia-smi nvlink -s and -e), the fabric manager and the seating "
    "of the device; collectives over such a link are slow or fail",
    FaultClass.UNKNOWN: "Look the number up in the driver's list of Xids, and see dmesg around it",
    FaultClass.WEAR: "Reset the device when the job pauses, so that bad rows are replaced "
    "(nvidia-smi -q -d ROW_REMAPPER), and watch whether more come",
    FaultClass.PROGRAM: "Look for the error in the program first: the exception in the log of the rank, "
    "then CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; if only this device shows it, test the device",
}
_HARMLESS = (FaultClass.WEAR, FaultClass.PROGRAM)
"""Faults with which the device itself can go on."""
_MOST_SHOWN = 8


def device_errors(account: Account) -> Iterator[Finding]:
    """Devices with faults; those of one host with the same faults are one finding."""
    alike: dict[tuple[str, tuple[str, ...]], list[FaultyDevice]] = {}
    for device in faulty_devices(account.trace):
        key = device.host, tuple(fault.what for fault in device.faults)
        alike.setdefault(key, []).append(device)
    for devices in alike.values():
        yield _finding(account.trace, devices)


def _finding(trace: Trace, devices: list[FaultyDevice]) -> Finding:
    first = devices[0].faults[0]
    ranks = [device.rank for device in devices if device.rank is not None]
    is_harmless = first.fault in _HARMLESS
    return Finding(
        kind=FindingKind.DEVICE_ERROR,
        severity=Severity.WARNING if is_harmless else Severity.CRITICAL,
        where=_where(trace, devices[0].host, ranks),
        claim=_claim(devices, ranks),
        cost_frac=None,
        removal_gain_frac=None,
        confidence=0.8 if is_harmless else 0.95,
        evidence=tuple(_evidence(trace, device) for device in devices[:_MOST_SHOWN]),
        remedy=_REMEDIES[first.fault],
    )


def _where(trace: Trace, host: str, ranks: list[int]) -> Where:
    if not ranks:
        return {"host": host}
    where: Where = {**where_of(ranks, trace), "host": host}
    if len(ranks) == 1:
        del where["ranks"]
        where["rank"] = ranks[0]
    return where


def _claim(devices: list[FaultyDevice], ranks: list[int]) -> str:
    what = devices[0].faults[0].what
    others = len(devices[0].faults) - 1
    more = f", and {others} more kind{'s' if others > 1 else ''} of faults" if others else ""
    if len(devices) > 1:
        whose = f"of {rank_words(ranks)} " if ranks else ""
        return f"{len(devices)} devices {whose}on {devices[0].host} reported {what}{more}"
    whose = f"of {rank_words(ranks)}" if ranks else f"{devices[0].uuid} of {devices[0].host}"
    return f"The device {whose} reported {what}{more}"


def _evidence(trace: Trace, device: FaultyDevice) -> str:
    who = "no rank is known to run on it" if device.rank is None else f"rank {device.rank}"
    seen = when(trace, device.rank, min(device.faults, key=lambda fault: fault.first_ns))
    return f"{device.uuid} ({who}): {faults_text(device.faults)}{f'; first {seen}' if seen else ''}"
