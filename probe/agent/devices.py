"""The devices of a host, read through NVML.

Every refusal is noted for its column and device, and the rest goes on. A call that can
never succeed is not made again; a device that is lost is asked once a reading. What the
links of a device carry at most is as the driver states it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..clock import now_ns
from ..schema.terms import DeviceEventKind
from .device_events import EventListener
from .device_fields import (
    ALL_LINKS,
    CALLS,
    FIELD_CALL,
    FIELDS,
    LASTING,
    LOST,
    MOST_LINKS,
    NEEDS_RESET,
    field_value,
    reason_of,
)
from .gpm import METRICS, SAMPLE_CALL, DeviceActivity
from .readings import Reading, Row

_LANE_BYTES_PER_S = {
    1: 2.5e9 * 8 / 10 / 8,
    2: 5e9 * 8 / 10 / 8,
    3: 8e9 * 128 / 130 / 8,
    4: 16e9 * 128 / 130 / 8,
    5: 32e9 * 128 / 130 / 8,
    6: 64e9 * 242 / 256 / 8,
}
"""One lane one way, by generation: transfers a second less the line code (PCI Express Base Specification)."""
_SPEED_FIELD = "NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON"


def pcie_speed(nvml: Any, handle: Any) -> float | None:
    """Return what PCIe carries one way, at the generation and width that device and slot allow; None of an unknown one.

    The current generation is no measure: a device at rest lowers it.
    """
    lane = _LANE_BYTES_PER_S.get(int(nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle)))
    lanes = int(nvml.nvmlDeviceGetMaxPcieLinkWidth(handle))
    return lane * lanes if lane and lanes > 0 else None


def nvlink_speed(nvml: Any, handle: Any) -> float | None:
    """Return what all active NVLinks carry together one way; None where there is none."""
    active = sum(_is_active(nvml, handle, link) for link in range(MOST_LINKS))
    if not active:
        return None
    (answer,) = nvml.nvmlDeviceGetFieldValues(handle, [getattr(nvml, _SPEED_FIELD)])
    if answer.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(answer.nvmlReturn)
    each = field_value(answer)
    return None if not each or each < 0 else float(each) * 1e6 * active


def _is_active(nvml: Any, handle: Any, link: int) -> bool:
    """Return whether a link is up; one that the device does not have is not."""
    try:
        return bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
    except nvml.NVMLError as error:
        if reason_of(nvml, error) in ("not in this driver",):
            raise
        return False


PROCESSES_CALL = "nvmlDeviceGetComputeRunningProcesses"
INIT_CALL = "nvmlInit"
HANG = "the driver did not answer"
_PROCESSES_EVERY = 10
"""Processes come and go slowly: they are listed in one of so many readings."""
_FAULTS = {LOST: DeviceEventKind.LOST, NEEDS_RESET: DeviceEventKind.RESET_REQUIRED}
"""Refusals that are faults of the device; the first of each is an event."""

Enter = Callable[[str], None]


@dataclass(slots=True)
class Device:
    """One device and what it refuses for good."""

    uuid: str
    handle: Any
    refused: dict[str, str] = field(default_factory=dict)
    """Reasons by column."""
    activity: DeviceActivity | None = None
    field_ids: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """(field, scope) pairs whose values add up to each counter."""
    faults: set[DeviceEventKind] = field(default_factory=set)
    """Those that were reported."""


@dataclass(frozen=True, slots=True)
class _Look:
    """One device in one reading."""

    nvml: Any
    device: Device
    reading: Reading
    enter: Enter
    skip: frozenset[str]

    def attempt(
        self, name: str, columns: tuple[str, ...], work: Callable[[], Row], row: Row
    ) -> str:
        """Make a call and fill in what it gives; return why it gave nothing, or nothing."""
        reason = self.device.refused.get(name, "")
        label = f"{self.device.uuid} {name}"
        if not reason and label in self.skip:
            reason = HANG
        if not reason:
            self.enter(label)
            try:
                row.update(work())
                return ""
            except Exception as error:  # noqa: BLE001 - whatever the driver raises is a reason
                reason = reason_of(self.nvml, error)
                if reason in LASTING:
                    self.device.refused[name] = reason
                if reason in _FAULTS:
                    self._tell_once(_FAULTS[reason])
                if name == SAMPLE_CALL and self.device.activity is not None:
                    self.device.activity.forget()
        self.lack(columns, reason)
        return reason

    def _tell_once(self, kind: DeviceEventKind) -> None:
        if kind in self.device.faults:
            return
        self.device.faults.add(kind)
        event: Row = {"uuid": self.device.uuid, "time_ns": now_ns(), "kind": kind.value}
        self.reading.rows.setdefault("device_event", []).append(event)

    def lack(self, columns: tuple[str, ...], reason: str) -> None:
        """Count columns that could not be read."""
        for column in columns:
            self.reading.lacks(column, reason)


class DeviceReader:
    """Reads every device of this host.

    Args:
        enter: Told the name of each call before it is made, so that a hang can be blamed.
        skip: ``<uuid> <call>`` names of calls that are left out.
    """

    name = "devices"

    def __init__(
        self, *, enter: Enter = lambda _: None, skip: frozenset[str] = frozenset()
    ) -> None:
        self._enter = enter
        self._skip = skip
        self._nvml: Any = None
        self._devices: list[Device] = []
        self._events: EventListener | None = None
        self._facts: dict[str, Any] = {}
        self._readings = 0

    def read(self) -> Reading:
        """Read every device once; the first time, find them."""
        reading = Reading(source=self.name, time_ns=now_ns())
        if self._nvml is None:
            reading.facts = self._begin(reading)
        rows = reading.rows.setdefault("device_sample", [])
        for device in self._devices:
            rows.append(self._sample(device, reading))
        if self._readings % _PROCESSES_EVERY == 0:
            reading.rows["device_process"] = self._processes(reading)
        self._readings += 1
        if self._events is not None:
            if events := self._events.take():
                reading.rows.setdefault("device_event", []).extend(events)
            if self._events.problem:
                reading.lacks("device events", self._events.problem)
        return reading

    def close(self) -> None:
        """Stop waiting for events. The driver is left as it is: shutting it down may hang."""
        if self._events is not None:
            self._events.stop()

    def _begin(self, reading: Reading) -> dict[str, Any]:
        """Load the driver library and find the devices; return the facts of both."""
        if INIT_CALL in self._skip:
            return {"unavailable": HANG}
        self._enter(INIT_CALL)
        try:
            import pynvml as nvml
        except ImportError:
            return {"unavailable": "nvidia-ml-py is not installed"}
        try:
            nvml.nvmlInit()
            count = nvml.nvmlDeviceGetCount()
        except Exception as error:  # noqa: BLE001 - whatever the driver raises is a reason
            return {"unavailable": reason_of(nvml, error)}
        self._nvml = nvml
        problems: dict[str, str] = {}
        found = (self._find(index, problems, reading) for index in range(count))
        listed = [facts for facts in found if facts]
        self._events = EventListener(nvml, {d.uuid: d.handle for d in self._devices})
        self._events.start()
        return {"devices": listed, "devices_not_found": problems, **_versions(nvml, reading)}

    def _find(
        self, index: int, problems: dict[str, str], reading: Reading
    ) -> dict[str, Any] | None:
        nvml, place = self._nvml, f"device {index}"
        if place in self._skip:
            problems[place] = HANG
            return None
        self._enter(place)
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            device = Device(nvml.nvmlDeviceGetUUID(handle), handle)
        except Exception as error:  # noqa: BLE001 - whatever the driver raises is a reason
            problems[place] = reason_of(nvml, error)
            return None
        self._devices.append(device)
        return {"uuid": device.uuid, "index": index, **_lasting_facts(nvml, handle, reading)}

    def _sample(self, device: Device, reading: Reading) -> Row:
        row: Row = {"uuid": device.uuid, "time_ns": now_ns()}
        look = _Look(self._nvml, device, reading, self._enter, self._skip)
        for at, call in enumerate(CALLS):
            if (
                look.attempt(
                    call.name, call.columns, partial(call.read, self._nvml, device.handle), row
                )
                == LOST
            ):
                for other in CALLS[at + 1 :]:
                    look.lack(other.columns, LOST)
                look.lack((*FIELDS, *METRICS), LOST)
                return row
        look.attempt(FIELD_CALL, tuple(FIELDS), partial(self._counters, device, reading), row)
        look.attempt(SAMPLE_CALL, tuple(METRICS), partial(self._activity, device, reading), row)
        return row

    def _counters(self, device: Device, reading: Reading) -> Row:
        """Return the byte counters; of those that are refused the reason is noted."""
        nvml = self._nvml
        if not device.field_ids:
            device.field_ids = self._field_ids(device)
        asked = [pair for pairs in device.field_ids.values() for pair in pairs]
        answers = iter(nvml.nvmlDeviceGetFieldValues(device.handle, asked) if asked else ())
        row: Row = {}
        for column, (_, _, unit) in FIELDS.items():
            pairs = device.field_ids.get(column, [])
            given = [next(answers) for _ in pairs]
            good = [field_value(v) for v in given if v.nvmlReturn == nvml.NVML_SUCCESS]
            if good and None not in good:
                row[column] = unit * int(sum(value for value in good if value is not None))
            else:
                code = given[0].nvmlReturn if given else nvml.NVML_ERROR_NOT_SUPPORTED
                reading.lacks(column, reason_of(nvml, nvml.NVMLError(code)))
        return row

    def _field_ids(self, device: Device) -> dict[str, list[tuple[int, int]]]:
        """Return what to ask for each counter: all links at once, or one by one where refused."""
        nvml = self._nvml
        wanted = {
            column: (getattr(nvml, constant), scope)
            for column, (constant, scope, _) in FIELDS.items()
            if hasattr(nvml, constant)
        }
        answers = nvml.nvmlDeviceGetFieldValues(device.handle, list(wanted.values()))
        found: dict[str, list[tuple[int, int]]] = {}
        for (column, (number, scope)), answer in zip(wanted.items(), answers, strict=True):
            found[column] = [(number, scope)]
            if scope == ALL_LINKS and answer.nvmlReturn != nvml.NVML_SUCCESS:
                single = [(number, link) for link in range(MOST_LINKS)]
                values = nvml.nvmlDeviceGetFieldValues(device.handle, single)
                good = [s for s, v in zip(single, values, strict=True) if not v.nvmlReturn]
                found[column] = good or found[column]
        return found

    def _activity(self, device: Device, reading: Reading) -> Row:
        """Return what the device's units did since the reading before."""
        if device.activity is None:
            device.activity = DeviceActivity(self._nvml, device.handle)
        if not device.activity.is_supported:
            device.refused[SAMPLE_CALL] = "not supported"
            raise self._nvml.NVMLError(self._nvml.NVML_ERROR_NOT_SUPPORTED)
        row: Row = {}
        for column, reason in device.activity.read(row).items():
            reading.lacks(column, reason)
        return row

    def _processes(self, reading: Reading) -> list[Row]:
        rows: list[Row] = []
        for device in self._devices:
            look = _Look(self._nvml, device, reading, self._enter, self._skip)
            look.attempt(PROCESSES_CALL, ("device_process",), partial(self._list, device, rows), {})
        return rows

    def _list(self, device: Device, rows: list[Row]) -> Row:
        time_ns = now_ns()
        for process in self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(device.handle):
            used = process.usedGpuMemory
            rows.append(
                {
                    "uuid": device.uuid,
                    "time_ns": time_ns,
                    "pid": int(process.pid),
                    "mem_used_bytes": None if used is None else int(used),
                }
            )
        return {}


def _lasting_facts(nvml: Any, handle: Any, reading: Reading) -> dict[str, Any]:
    """Return what a device is; what it refuses to say is counted as lacking, with the reason."""
    asked: dict[str, Callable[[], Any]] = {
        "name": lambda: nvml.nvmlDeviceGetName(handle),
        "pci_bus": lambda: _decoded(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "mem_total_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        "max_clock_hz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
        "pcie_bytes_per_s": partial(pcie_speed, nvml, handle),
        "nvlink_bytes_per_s": partial(nvlink_speed, nvml, handle),
    }
    return _answers(nvml, asked, reading)


def _versions(nvml: Any, reading: Reading) -> dict[str, Any]:
    version = {"driver_version": lambda: _decoded(nvml.nvmlSystemGetDriverVersion())}
    return _answers(nvml, version, reading)


def _answers(nvml: Any, asked: dict[str, Callable[[], Any]], reading: Reading) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, ask in asked.items():
        try:
            answer = ask()
        except Exception as error:  # noqa: BLE001 - whatever the driver raises is a reason
            reading.lacks(key, reason_of(nvml, error))
        else:
            found |= {} if answer is None else {key: answer}
    return found


def _decoded(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
