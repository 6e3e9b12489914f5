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
