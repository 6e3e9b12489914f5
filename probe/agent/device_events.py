"""Faults as the driver reports them, waited for in a thread of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from ctypes import c_void_p, cast
from typing import Any

from ..clock import now_ns
from ..schema.terms import DeviceEventKind
from .device_fields import reason_of
from .readings import Row

WAIT_MS = 2000
_MOST_KEPT = 4096
_MOST_FAILURES = 5
"""Failures in a row after which the driver is no longer asked."""


class EventListener(threading.Thread):
    """Waits for Xid and uncorrected memory errors of some devices.

    Waiting releases the interpreter lock, and a wait that hangs keeps only this thread.

    Attributes:
        problem: Why events are not seen, or not of all devices; empty if they are.
    """

    def __init__(self, nvml: Any, devices: Mapping[str, Any]) -> None:
        """Prepare; ``start`` begins to wait.

        Args:
            nvml: The ``pynvml`` module, initialised.
            devices: Handles by uuid.
        """
        super().__init__(name="meshscope-device-events", daemon=True)
        self._nvml = nvml
        self._devices = dict(devices)
        self._uuid_of = {_address(handle): uuid for uuid, handle in devices.items()}
        self._found: deque[Row] = deque(maxlen=_MOST_KEPT)
        self._ended = threading.Event()
        self.problem = ""

    def run(self) -> None:
        """Register for the events and wait for them until ``stop``."""
        try:
            events = self._registered()
        except Exception as error:  # noqa: BLE001 - whatever the driver raises is a reason
            self.problem = reason_of(self._nvml, error)
            return
        failures = 0
        while not self._ended.is_set() and failures < _MOST_FAILURES:
            try:
                event = self._nvml.nvmlEventSetWait_v2(events, WAIT_MS)
            except Exception as error:  # noqa: BLE001 - whatever the driver raises is a reason
                if getattr(error, "value", None) == self._nvml.NVML_ERROR_TIMEOUT:
                    failures = 0
                    continue
                failures += 1
                self.problem = reason_of(self._nvml, error)
                self._ended.wait(WAIT_MS / 1e3)
                continue
            failures = 0
            self._keep(event)

    def take(self) -> list[Row]:
        """Return the events since the last call."""
        rows = []
        while self._found:
            rows.append(self._found.popleft())
        return rows

    def stop(self) -> None:
        """Ask it to end, which it does after the wait at hand."""
        self._ended.set()

    def _registered(self) -> Any:
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError | nvml.nvmlEventTypeDoubleBitEccError
        events = nvml.nvmlEventSetCreate()
        refused: list[str] = []
        for handle in self._devices.values():
            try:
                offered = nvml.nvmlDeviceGetSupportedEventTypes(handle)
                if not wanted & offered:
                    refused.append("not supported")
                    continue
                nvml.nvmlDeviceRegisterEvents(handle, wanted & offered, events)
            except Exception as error:  # noqa: BLE001 - one device must not hide the others
                refused.append(reason_of(nvml, error))
        if refused:
            self.problem = refused[0]
        return events

    def _keep(self, event: Any) -> None:
        is_xid = bool(event.eventType & self._nvml.nvmlEventTypeXidCriticalError)
        kind = DeviceEventKind.XID if is_xid else DeviceEventKind.ECC_UNCORRECTED
        self._found.append(
            {
                "uuid": self._uuid_of.get(_address(event.device), "unknown"),
                "time_ns": now_ns(),
                "kind": kind.value,
                "code": int(event.eventData) if is_xid else None,
            }
        )


def _address(handle: Any) -> int | None:
    """Return the address in a handle, by which the driver's answer is recognised."""
    return cast(handle, c_void_p).value
