"""Peak arithmetic of known devices: dense BF16, from the vendors' data sheets.

Sparse figures (twice as high) are not used: no training reaches them. A part
that is held below its rated clock by its power limit cannot reach these either.
"""

from __future__ import annotations

import re

_PEAKS: tuple[tuple[str, float], ...] = (
    (r"\bGB200\b", 2500e12),
    (r"\bB200\b", 2250e12),
    (r"\bH200\b", 989e12),
    (r"\bH20\b", 148e12),
    (r"\bH100\b.*\bNVL\b", 835e12),
    (r"\bH100\b.*\bPCIe\b", 756e12),
    (r"\bH100\b", 989e12),
    (r"\bA100\b", 312e12),
    (r"\bL40S\b", 362e12),
    (r"\bMI300X\b", 1307e12),
    (r"\bMI250X\b", 191.5e12),
    (r"\bV100\b", 125e12),
)
"""Whole words only, because a plain substring takes an H200 for an H20."""

_ARITHMETIC: tuple[tuple[str, int, int], ...] = (
    (r"\bH200\b", 132, 4096),
    (r"\bH100\b.*\bPCIe\b", 114, 4096),
    (r"\bH100\b(?!.*\bNVL\b)", 132, 4096),
    (r"\bA100\b", 108, 2048),
    (r"\bV100\b", 80, 1024),
)
"""SMs, and dense FP16 or BF16 FLOPs of one SM in a clock, from the architecture white papers."""
_SAME_PEAK = 0.01
"""A stated peak is that of the data sheet up to this share."""


def datasheet_peak(device_name: str) -> tuple[float, str] | None:
    """Return peak FLOP/s and its source for a device name, None if unknown.

    >>> datasheet_peak("NVIDIA H100 80GB HBM3")
    (989000000000000.0, 'data sheet, dense BF16')
    """
    for pattern, peak in _PEAKS:
        if re.search(pattern, device_name, re.IGNORECASE):
            precision = "dense FP16 tensor" if "V100" in pattern else "dense BF16"
            return peak, f"data sheet, {precision}"
    return None


def rated_clock(device_name: str, peak_flops: float | None) -> float | None:
    """Return the SM clock that a device needs for its data-sheet peak, Hz.

    ``peak = SMs x FLOPs of an SM in a clock x clock``. None where the device is not known, or
    where MFU is measured against another peak: one that was measured assumes no clock.

    >>> round(rated_clock("NVIDIA H100 80GB HBM3", 989e12) / 1e6)
    1829
    """
    known = datasheet_peak(device_name)
    if known is None or peak_flops is None or abs(peak_flops / known[0] - 1.0) > _SAME_PEAK:
        return None
    for pattern, sms, flops_in_a_clock in _ARITHMETIC:
        if re.search(pattern, device_name, re.IGNORECASE):
            return known[0] / (sms * flops_in_a_clock)
    return None
