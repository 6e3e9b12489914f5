"""What the links of a device carry at most, each way, as the driver states it."""

from __future__ import annotations

from typing import Any

from .device_fields import MOST_LINKS, field_value, reason_of

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
