"""What is asked of the device driver, call by call, and what its refusals mean.

A call gives one or more columns of ``device_sample``. Names are those of ``pynvml``; one
that the installed binding or driver does not have is a reason like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .readings import Value

_MILLI = 1e-3
_MEGA = 1e6
_KIB = 1024
_PERCENT = 100.0

NOT_IN_BINDING = "not in the installed nvidia-ml-py"
LASTING = frozenset({"not supported", "not in this driver", "no permission", NOT_IN_BINDING})
"""Reasons that do not pass while a driver is loaded: such a call is not made again."""
LOST = "device lost"
NEEDS_RESET = "device needs a reset"
_REASONS = {
    "NVML_ERROR_NOT_SUPPORTED": "not supported",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "not in this driver",
    "NVML_ERROR_NO_PERMISSION": "no permission",
    "NVML_ERROR_GPU_IS_LOST": LOST,
    "NVML_ERROR_GPU_NOT_FOUND": LOST,
    "NVML_ERROR_RESET_REQUIRED": NEEDS_RESET,
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no driver library",
    "NVML_ERROR_DRIVER_NOT_LOADED": "driver not loaded",
    "NVML_ERROR_INVALID_ARGUMENT": "invalid argument",
    "NVML_ERROR_TIMEOUT": "the driver timed out",
    "NVML_ERROR_IRQ_ISSUE": "the driver lost an interrupt",
}

Given = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Call:
    """One call to the driver for one device."""

    name: str
    columns: tuple[str, ...]
    """What it gives; on a refusal all of them are missing."""
    read: Callable[[Any, Any], Given]
    """(pynvml, device handle) -> columns."""


def reason_of(nvml: Any, error: Exception) -> str:
    """Return in a few words why a call gave nothing.

    Args:
        nvml: The ``pynvml`` module.
        error: What it raised.
    """
    if isinstance(error, AttributeError):
        return NOT_IN_BINDING
    code = getattr(error, "value", None)
    for constant, reason in _REASONS.items():
        if code is not None and getattr(nvml, constant, None) == code:
            return reason
    return f"error {code}" if code is not None else type(error).__name__


def _memory(nvml: Any, device: Any) -> Given:
    return {"mem_used_bytes": int(nvml.nvmlDeviceGetMemoryInfo(device).used)}


def _utilization(nvml: Any, device: Any) -> Given:
    rates = nvml.nvmlDeviceGetUtilizationRates(device)
    return {"sm_util_frac": rates.gpu / _PERCENT, "mem_util_frac": rates.memory / _PERCENT}


def _power(nvml: Any, device: Any) -> Given:
    return {"power_w": nvml.nvmlDeviceGetPowerUsage(device) * _MILLI}


def _energy(nvml: Any, device: Any) -> Given:
    return {"energy_j": nvml.nvmlDeviceGetTotalEnergyConsumption(device) * _MILLI}


def _sm_clock(nvml: Any, device: Any) -> Given:
    return {"clock_hz": nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM) * _MEGA}


def _memory_clock(nvml: Any, device: Any) -> Given:
    return {"mem_clock_hz": nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_MEM) * _MEGA}


def _temperature(nvml: Any, device: Any) -> Given:
    sensor = nvml.NVML_TEMPERATURE_GPU
    return {"temperature_c": float(nvml.nvmlDeviceGetTemperature(device, sensor))}


def _throttle(nvml: Any, device: Any) -> Given:
    """Ask under the new name, and under the old one where driver or binding is older."""
    try:
        mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(device)
    except AttributeError:
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
    except nvml.NVMLError as error:
        if reason_of(nvml, error) != "not in this driver":
            raise
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
    return {"throttle_mask": int(mask)}


def _ecc(column: str, kind: str) -> Callable[[Any, Any], Given]:
    def read(nvml: Any, device: Any) -> Given:
        volatile = nvml.NVML_VOLATILE_ECC
        return {
            column: int(nvml.nvmlDeviceGetTotalEccErrors(device, getattr(nvml, kind), volatile))
        }

    return read


def _remapped(nvml: Any, device: Any) -> Given:
    corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(device)[:4]
    return {
        "remapped_rows": corrected + uncorrected,
        "remap_pending": bool(pending),
        "remap_failed": bool(failed),
    }


CALLS = (
    Call("nvmlDeviceGetMemoryInfo", ("mem_used_bytes",), _memory),
    Call("nvmlDeviceGetUtilizationRates", ("sm_util_frac", "mem_util_frac"), _utilization),
    Call("nvmlDeviceGetPowerUsage", ("power_w",), _power),
    Call("nvmlDeviceGetTotalEnergyConsumption", ("energy_j",), _energy),
    Call("nvmlDeviceGetClockInfo(SM)", ("clock_hz",), _sm_clock),
    Call("nvmlDeviceGetClockInfo(MEM)", ("mem_clock_hz",), _memory_clock),
    Call("nvmlDeviceGetTemperature", ("temperature_c",), _temperature),
    Call("nvmlDeviceGetCurrentClocksEventReasons", ("throttle_mask",), _throttle),
    Call(
        "nvmlDeviceGetTotalEccErrors(corrected)",
        ("ecc_corrected",),
        _ecc("ecc_corrected", "NVML_MEMORY_ERROR_TYPE_CORRECTED"),
    ),
    Call(
        "nvmlDeviceGetTotalEccErrors(uncorrected)",
        ("ecc_uncorrected",),
        _ecc("ecc_uncorrected", "NVML_MEMORY_ERROR_TYPE_UNCORRECTED"),
    ),
    Call(
        "nvmlDeviceGetRemappedRows", ("remapped_rows", "remap_pending", "remap_failed"), _remapped
    ),
)
"""The simple calls, in the order in which they are made."""

ALL_LINKS = 0xFFFFFFFF
"""Scope of a field value that stands for all NVLinks of a device."""
MOST_LINKS = 18
"""NVLinks of one device, up to the Hopper generation."""
FIELD_CALL = "nvmlDeviceGetFieldValues"
FIELDS: Mapping[str, tuple[str, int, int]] = {
    "nvlink_tx_bytes": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", ALL_LINKS, _KIB),
    "nvlink_rx_bytes": ("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX", ALL_LINKS, _KIB),
    "pcie_tx_bytes": ("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0, 1),
    "pcie_rx_bytes": ("NVML_FI_DEV_PCIE_COUNT_RX_BYTES", 0, 1),
}
"""Counters that one call reads together: constant, scope, and bytes of a unit."""


def field_value(value: Any) -> int | float | None:
    """Return the number in a field value, None where its type is unknown.

    The types are those of ``nvmlValueType_t``: double, unsigned int, unsigned long,
    unsigned long long, signed long long, signed int, unsigned short.
    """
    names = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    kind = value.valueType
    if not 0 <= kind < len(names):
        return None
    number: int | float = getattr(value.value, names[kind])
    return number
