"""The tables of a host: its devices, network ports, processor and memory over time.

The node agent fills them. A value that could not be read is null; how often and why is
in the manifest of the host.
"""

from __future__ import annotations

from .columns import RANK, Column, TableSpec


def _value(name: str, unit: str, meaning: str, dtype: str = "float64") -> Column:
    return Column(name, dtype, unit, meaning, nullable=True)


def _bytes(name: str, meaning: str) -> Column:
    return _value(name, "bytes", meaning, "int64")


def _count(name: str, meaning: str) -> Column:
    return _value(name, "1", meaning, "int64")


_HOST = Column("host", "category", "id", "machine")
_UUID = Column("uuid", "category", "id", "device")
_TIME = Column("time_ns", "int64", "ns", "when it was read")

DEVICE = TableSpec(
    "device",
    "one device of a host",
    (
        _HOST,
        _UUID,
        Column("name", "string", "1", "what its vendor calls it", nullable=True),
        _value("index", "id", "position on the host as the driver counts", "int32"),
        Column("pci_bus", "string", "id", "PCI address", nullable=True),
        _bytes("mem_total_bytes", "device memory"),
        _value("max_clock_hz", "Hz", "highest SM clock"),
        _value(
            "pcie_bytes_per_s", "bytes/s", "what PCIe carries one way, as device and slot allow"
        ),
        _value("nvlink_bytes_per_s", "bytes/s", "what all active NVLinks carry one way, together"),
    ),
)

RANK_DEVICE = TableSpec(
    "rank_device",
    "one rank and the device that it runs on",
    (
        RANK,
        _HOST,
        _UUID,
        Column("evidence", "string", "message", "how the two were brought together"),
    ),
)

DEVICE_SAMPLE = TableSpec(
    "device_sample",
    "one device at one time",
    (
        _HOST,
        _UUID,
        _TIME,
        _bytes("mem_used_bytes", "device memory in use by all processes"),
        _value("sm_util_frac", "1", "share of time with any kernel running"),
        _value("mem_util_frac", "1", "share of time in which device memory was read or written"),
        _value("power_w", "W", "power draw"),
        _value("energy_j", "J", "energy used since the driver was loaded"),
        _value("clock_hz", "Hz", "SM clock"),
        _value("mem_clock_hz", "Hz", "memory clock"),
        _value("temperature_c", "degC", "temperature of the chip"),
        _count("throttle_mask", "clock event reasons as NVML gives them"),
        _bytes("nvlink_tx_bytes", "sent over NVLink since start"),
        _bytes("nvlink_rx_bytes", "received over NVLink since start"),
        _bytes("pcie_tx_bytes", "sent over PCIe since start"),
        _bytes("pcie_rx_bytes", "received over PCIe since start"),
        _count("ecc_corrected", "memory errors that were corrected, since the driver was loaded"),
        _count("ecc_uncorrected", "memory errors that were not, since the driver was loaded"),
        _count("remapped_rows", "rows of memory that were replaced by spare ones"),
        _value("remap_pending", "1", "a row waits for a reset to be replaced", "bool"),
        _value("remap_failed", "1", "a row could not be replaced", "bool"),
        _value("sm_active_frac", "1", "share of SMs that were busy since the sample before"),
        _value("tensor_active_frac", "1", "share of time in which tensor cores worked, likewise"),
        _value("dram_active_frac", "1", "share of the memory bandwidth that was used, likewise"),
        _value("nvlink_tx_rate_bytes_per_s", "bytes/s", "sent over NVLink, likewise"),
        _value("nvlink_rx_rate_bytes_per_s", "bytes/s", "received over NVLink, likewise"),
        _value("pcie_tx_rate_bytes_per_s", "bytes/s", "sent over PCIe, likewise"),
        _value("pcie_rx_rate_bytes_per_s", "bytes/s", "received over PCIe, likewise"),
    ),
)

DEVICE_PROCESS = TableSpec(
    "device_process",
    "one process that had a context on a device",
    (
        _HOST,
        _UUID,
        _TIME,
        Column("pid", "int64", "id", "process id as the driver sees it"),
        _bytes("mem_used_bytes", "device memory of the process"),
    ),
)

DEVICE_EVENT = TableSpec(
    "device_event",
    "one fault that the driver reported of a device",
    (
        _HOST,
        _UUID,
        Column("time_ns", "int64", "ns", "when the driver reported it"),
        Column("kind", "category", "1", "what was reported (DeviceEventKind)"),
        _count("code", "number of the fault, of an Xid its number"),
    ),
)

LINK_SAMPLE = TableSpec(
    "link_sample",
    "one NIC port at one time",
    (
        _HOST,
        Column("port", "category", "id", "device and port"),
        _TIME,
        Column("layer", "category", "1", "InfiniBand or Ethernet (LinkLayer)", nullable=True),
        _value("speed_bytes_per_s", "bytes/s", "nominal rate of the port"),
        _bytes("tx_bytes", "sent since start"),
        _bytes("rx_bytes", "received since start"),
        _count("wait", "ticks with data to send and no credit, since start"),
        _count("errors", "errors since start, all counters together"),
        _count("retries", "sequence errors and time-outs that made it send again, since start"),
        _count("congestion", "congestion notifications sent and obeyed, since start"),
        _count("link_downed", "times the link went down, since start"),
    ),
)

HOST_SAMPLE = TableSpec(
    "host_sample",
    "one host at one time",
    (
        _HOST,
        _TIME,
        _value("cpus", "1", "processors that are on line", "int32"),
        _value("cpu_busy_frac", "1", "share of their time in use since the sample before"),
        _value("cpu_iowait_frac", "1", "share of their time idle with a read or write pending"),
        _value("load_1m", "1", "runnable tasks, averaged over a minute"),
        _bytes("mem_total_bytes", "memory"),
        _bytes("mem_available_bytes", "memory that could be had without swapping"),
        _bytes("swap_total_bytes", "swap space"),
        _bytes("swap_used_bytes", "swap space in use"),
        _bytes("swap_in_bytes", "read back from swap since boot"),
        _bytes("swap_out_bytes", "written to swap since boot"),
        _value("cpu_stall_frac", "1", "share of time in which some task waited for a processor"),
        _value("mem_stall_frac", "1", "share of time in which some task waited for memory"),
        _value("mem_full_stall_frac", "1", "share of time in which all tasks waited for memory"),
        _value("io_stall_frac", "1", "share of time in which some task waited for a disk"),
    ),
)

HOST_TABLES: dict[str, TableSpec] = {
    spec.name: spec
    for spec in (
        DEVICE,
        RANK_DEVICE,
        DEVICE_SAMPLE,
        DEVICE_PROCESS,
        DEVICE_EVENT,
        LINK_SAMPLE,
        HOST_SAMPLE,
    )
}
"""Every table of hosts by name."""
SAMPLED = ("device_sample", "device_process", "device_event", "link_sample", "host_sample")
"""Those that are stored in the segments of a host; the others come from manifests."""
