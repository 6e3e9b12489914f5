"""Peak arithmetic of known devices: dense BF16, from the vendors' data sheets.

Sparse figures (twice as high) are not used: no training reaches them. A part
that is held below its rated clock by its power limit cannot reach these either.
"""

from __future__ import annotations

import re

_BF16, _FP16 = "dense BF16", "dense FP16 tensor"
_PEAKS: tuple[tuple[str, float, str], ...] = (
    (r"\bGB300\b", 2500, _BF16),
    (r"\bGB200\b", 2500, _BF16),
    (r"\bB300\b", 2250, _BF16),
    (r"\bB200\b", 2250, _BF16),
    (r"\bGH200\b", 989, _BF16),
    (r"\bH200\b.*\bNVL\b", 835, _BF16),
    (r"\bH200\b", 989, _BF16),
    (r"\bH[18]00\b.*\bNVL\b", 835, _BF16),
    (r"\bH[18]00\b.*\b(PCIe|HBM2e)\b", 756, _BF16),
    (r"\bH[18]00\b", 989, _BF16),
    (r"\bH20\b", 148, _BF16),
    (r"\bA[18]00\b", 312, _BF16),
    (r"\bA40\b", 149.7, _BF16),
    (r"\bA30\b", 165, _BF16),
    (r"\bA10G\b", 70, _BF16),
    (r"\bA10\b", 125, _BF16),
    (r"\bL40S\b", 362, _BF16),
    (r"\bL40\b", 181, _BF16),
    (r"\bL20\b", 119.5, _BF16),
    (r"\bL4\b", 121, _BF16),
    (r"\bV100S\b", 130, _FP16),
    (r"\bV100\b.*\b(PCIE|FHHL)\b", 112, _FP16),
    (r"\bV100\b", 125, _FP16),
    (r"\bT4\b", 65, _FP16),
    (r"\bMI355X?\b", 2516.6, _BF16),
    (r"\bMI350X?\b", 2306.9, _BF16),
    (r"\bMI325X?\b", 1307.4, _BF16),
    (r"\bMI300A\b", 980.6, _BF16),
    (r"\bMI300X\b", 1307, _BF16),
    (r"\bMI250X\b", 191.5, _BF16),
    (r"\bMI250\b", 181, _BF16),
    (r"\bMI210\b", 181, _BF16),
    (r"\bMI100\b", 92.3, _BF16),
    (r"\bRTX PRO 6000 Blackwell\b(?!.*\bServer\b)", 503.8, _BF16),
    (r"\bRTX 6000 Ada\b", 364.2, _BF16),
    (r"\bRTX A6000\b", 154.8, _BF16),
    (r"\bRTX A5000\b", 111.1, _BF16),
    (r"\bRTX 5090\b(?! D)", 209.5, _BF16),
    (r"\bRTX 4090\b(?! D)", 165.2, _BF16),
    (r"\bRTX 3090 Ti\b", 80, _BF16),
    (r"\bRTX 3090\b", 71, _BF16),
)
"""Device, TFLOP/s of one device as the driver lists them, and of which numbers. Whole words only,
because a plain substring takes an H200 for an H20, and the narrower name first.

Sources: the data sheets of the vendors, dense (half of a figure "with sparsity"): NVIDIA H100, H200 and
their NVL (1,671 sparse), H20, A100, A30, A40, A10, L4, L40, L40S, L20, T4, V100; HGX B200 and B300 (36
PFLOP/s sparse for 8), GB200 and GB300 NVL72 (360 sparse for 72); H800 and A800 compute as H100 and A100
do. GeForce and RTX cards: the white papers of Ampere, Ada and Blackwell, with sums in FP32, which training
uses. AMD Instinct MI100 to MI355X: the product pages; a driver lists the two dies of an MI250 apart."""
_NO_WHOLE_DEVICE = re.compile(
    r"\bMIG\b|\bLaptop\b|\bMax-Q\b|\bvGPU\b|\bGRID\b|-\d+[ABCQ]\b|\bA100\b.*\b64GB\b", re.IGNORECASE
)
"""Parts of a device (``A40-8Q`` is one of a vGPU), or ones at another power or with other SMs, as the A100 of
64 GB has: their peaks are not in the table."""

_ARITHMETIC: tuple[tuple[str, int, int], ...] = (
    (r"\bH200\b(?!.*\bNVL\b)", 132, 4096),
    (r"\bGH200\b", 132, 4096),
    (r"\bH[18]00\b.*\b(PCIe|HBM2e)\b", 114, 4096),
    (r"\bH[18]00\b(?!.*\bNVL\b)", 132, 4096),
    (r"\bA[18]00\b", 108, 2048),
    (r"\bV100\b(?!.*\b(PCIE|FHHL)\b)", 80, 1024),
)
"""SMs, and dense FP16 or BF16 FLOPs of one SM in a clock, from the architecture white papers."""
_SAME_PEAK = 0.01
"""A stated peak is that of the data sheet up to this share."""


def datasheet_peak(device_name: str) -> tuple[float, str] | None:
    """Return peak FLOP/s and its source for a device name, None if unknown.

    >>> datasheet_peak("NVIDIA H100 80GB HBM3")
    (989000000000000.0, 'data sheet, dense BF16')
    """
    if _NO_WHOLE_DEVICE.search(device_name):
        return None
    for pattern, tera, numbers in _PEAKS:
        if re.search(pattern, device_name, re.IGNORECASE):
            return tera * 1e12, f"data sheet, {numbers}"
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
