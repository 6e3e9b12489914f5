"""Devices that reported faults: errors of memory, of links, of firmware; devices that are gone."""

from __future__ import annotations

from collections.abc import Iterator

from meshscope.probe.schema.terms import FindingKind, Severity

from ...account.devices.faults import FaultClass, FaultyDevice, fault_messages, faulty_devices, when
from ...explain.run_account import Account
from ...tables.results import Finding, Where
from ...tables.trace import Trace
from ...wording.message import Message, message
from .standstill_words import where_of

_REMEDIES = {
    FaultClass.BUS: message("device_error.remedy_bus"),
    FaultClass.MEMORY: message("device_error.remedy_memory"),
    FaultClass.FIRMWARE: message("device_error.remedy_firmware"),
    FaultClass.LINK: message("device_error.remedy_link"),
    FaultClass.UNKNOWN: message("device_error.remedy_unknown"),
    FaultClass.WEAR: message("device_error.remedy_wear"),
    FaultClass.PROGRAM: message("device_error.remedy_program"),
}
_HARMLESS = (FaultClass.WEAR, FaultClass.PROGRAM)
"""Faults with which the device itself can go on."""
_MOST_SHOWN = 8


def device_errors(account: Account) -> Iterator[Finding]:
    """Devices with faults; those of one host with the same faults are one finding."""
    alike: dict[tuple[str, tuple[str, ...]], list[FaultyDevice]] = {}
    for device in faulty_devices(account.trace):
        key = device.host, tuple(str(fault.what) for fault in device.faults)
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


def _claim(devices: list[FaultyDevice], ranks: list[int]) -> Message:
    count, host, (first, *others) = len(devices), devices[0].host, devices[0].faults
    more = [message("device_error.more_kinds", kinds=len(others))] if others else []
    faults = [first.what, *more]
    if count == 1 and ranks:
        return message("device_error.of_rank", rank=ranks[0], faults=faults)
    if count == 1:
        return message("device_error.of_host", uuid=devices[0].uuid, host=host, faults=faults)
    if ranks:
        return message(
            "device_error.of_ranks", devices=count, ranks=ranks, host=host, faults=faults
        )
    return message("device_error.several", devices=count, host=host, faults=faults)


def _evidence(trace: Trace, device: FaultyDevice) -> Message:
    who = message("device_error.no_rank")
    if device.rank is not None:
        who = message("device_error.rank", rank=device.rank)
    faults = fault_messages(device.faults)
    seen = when(trace, device.rank, min(device.faults, key=lambda fault: fault.first_ns))
    if seen is None:
        return message("device_error.faults", uuid=device.uuid, who=who, faults=faults)
    return message("device_error.faults_since", uuid=device.uuid, who=who, faults=faults, when=seen)
