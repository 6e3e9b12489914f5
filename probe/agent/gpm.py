"""Activity of a device's units and links, which Hopper and later count (NVML GPM).

A figure is the mean between two samples; the later one is kept for the next reading.
"""

from __future__ import annotations

from typing import Any

from .device_fields import NOT_IN_BINDING, reason_of
from .readings import Row

SAMPLE_CALL = "nvmlGpmSampleGet"
_MIB = float(1 << 20)
_PERCENT = 0.01

METRICS = {
    "sm_active_frac": ("NVML_GPM_METRIC_SM_UTIL", _PERCENT),
    "tensor_active_frac": ("NVML_GPM_METRIC_ANY_TENSOR_UTIL", _PERCENT),
    "dram_active_frac": ("NVML_GPM_METRIC_DRAM_BW_UTIL", _PERCENT),
    "nvlink_tx_rate_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC", _MIB),
    "nvlink_rx_rate_bytes_per_s": ("NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC", _MIB),
    "pcie_tx_rate_bytes_per_s": ("NVML_GPM_METRIC_PCIE_TX_PER_SEC", _MIB),
    "pcie_rx_rate_bytes_per_s": ("NVML_GPM_METRIC_PCIE_RX_PER_SEC", _MIB),
}
"""Column, metric, and what one unit of it is worth."""


class DeviceActivity:
    """The two samples of one device.

    Raises:
        NVMLError: The driver refuses; also from the other methods.
        AttributeError: The installed binding does not know the calls.
    """

    def __init__(self, nvml: Any, device: Any) -> None:
        self._nvml = nvml
        self._device = device
        self.is_supported = bool(nvml.nvmlGpmQueryDeviceSupport(device).isSupportedDevice)
        self._has_sample = False
        if not self.is_supported:
            return
        self._ask = nvml.c_nvmlGpmMetricsGet_t()
        self._ask.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._older, self._newer = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._known = [
            (column, getattr(nvml, name), worth)
            for column, (name, worth) in METRICS.items()
            if hasattr(nvml, name)
        ]
        self._ask.numMetrics = len(self._known)
        for place, (_, metric, _) in enumerate(self._known):
            self._ask.metrics[place].metricId = metric

    def read(self, row: Row) -> dict[str, str]:
        """Fill in the figures since the call before; return why others are missing, by column."""
        self._older, self._newer = self._newer, self._older
        self._ask.sample1, self._ask.sample2 = self._older, self._newer
        self._nvml.nvmlGpmSampleGet(self._device, self._newer)
        if not self._has_sample:
            self._has_sample = True
            return {}
        self._nvml.nvmlGpmMetricsGet(self._ask)
        missing = dict.fromkeys(METRICS, NOT_IN_BINDING)
        for place, (column, _, worth) in enumerate(self._known):
            metric = self._ask.metrics[place]
            if metric.nvmlReturn == self._nvml.NVML_SUCCESS and metric.value >= 0:
                row[column] = float(metric.value) * worth
                del missing[column]
            else:
                missing[column] = reason_of(self._nvml, self._nvml.NVMLError(metric.nvmlReturn))
        return missing

    def forget(self) -> None:
        """Start anew: after a failure the older sample is not the reading before."""
        self._has_sample = False
