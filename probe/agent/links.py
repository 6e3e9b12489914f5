"""InfiniBand, RoCE and Ethernet counters from sysfs.

The files are opened once and read with ``pread``: opening costs more than ten times as
much as reading. A port that is taken away fails its next read; it is then dropped, and
looked for again with the others from time to time.

Counters that wrap are made to grow on where that is beyond doubt. A 32-bit counter of a network port wraps within seconds at full rate. A fall from just
below a power of two to just above zero is a wrap; any other fall is a reset (the driver
was loaded again, the device came back), after which the counter starts anew, as what
happened in between is not known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from ..clock import now_ns
from ..schema.terms import LinkLayer
from .readings import Reading, Row

_WIDTHS = (32, 64)
_NEAR = 4
"""A wrap is from the last quarter of the range to its first."""


class GrowingCounters:
    """The last raw value of each counter and what its wraps add up to.

    Attributes:
        resets: How often a counter fell without having wrapped.
    """

    def __init__(self) -> None:
        self.resets = 0
        self._last: dict[str, int] = {}
        self._added: dict[str, int] = {}

    def grown(self, name: str, raw: int) -> int:
        """Return the value of a counter with its wraps undone."""
        last = self._last.get(name)
        self._last[name] = raw
        if last is not None and raw < last:
            width = _wrapped_width(last, raw)
            if width:
                self._added[name] = self._added.get(name, 0) + (1 << width)
            else:
                self._added.pop(name, None)
                self.resets += 1
        return raw + self._added.get(name, 0)

    def forget(self, prefix: str) -> None:
        """Drop the counters whose name begins like that: their device is gone."""
        for known in (self._last, self._added):
            for name in [name for name in known if name.startswith(prefix)]:
                del known[name]


def _wrapped_width(last: int, raw: int) -> int:
    """Return the width in bits at which a counter wrapped, 0 if it did not."""
    for width in _WIDTHS:
        end = 1 << width
        if end - end // _NEAR <= last < end and raw < end // _NEAR:
            return width
    return 0


SYSFS = Path("/sys")
_RESCAN_NS = 30_000_000_000
_MOST_BYTES = 64
_LANE_BYTES = 4
"""InfiniBand counts data in units of four bytes (IBTA specification, PortCounters)."""
_BITS_PER_BYTE = 8

Counters = dict[str, tuple[str, ...]]
Enter = Callable[[str], None]
"""Told the name of each thing before it is read, so that a hang can be blamed."""

INFINIBAND_COUNTERS: Counters = {
    "tx_bytes": ("counters/port_xmit_data",),
    "rx_bytes": ("counters/port_rcv_data",),
    "wait": ("counters/port_xmit_wait",),
    "link_downed": ("counters/link_downed",),
    "errors": (
        "counters/symbol_error",
        "counters/port_rcv_errors",
        "counters/port_xmit_discards",
        "counters/local_link_integrity_errors",
        "counters/link_error_recovery",
    ),
    "retries": (
        "hw_counters/out_of_sequence",
        "hw_counters/packet_seq_err",
        "hw_counters/local_ack_timeout_err",
        "hw_counters/rnr_nak_retry_err",
    ),
    "congestion": ("hw_counters/np_cnp_sent", "hw_counters/rp_cnp_handled"),
}
ETHERNET_COUNTERS: Counters = {
    "tx_bytes": ("statistics/tx_bytes",),
    "rx_bytes": ("statistics/rx_bytes",),
    "link_downed": ("carrier_down_count",),
    "errors": (
        "statistics/tx_errors",
        "statistics/rx_errors",
        "statistics/tx_dropped",
        "statistics/rx_dropped",
    ),
}
"""Files of each column below the folder of a port; those that are there are added up."""


class Port:
    """One port with its files open."""

    def __init__(
        self, name: str, folder: Path, layer: LinkLayer | None, counters: Counters
    ) -> None:
        self.name = name
        self.layer = layer
        # The speed of an end of a container's cable is made up.
        self.speed_bytes_per_s = _speed(folder) if _has_hardware(folder, counters) else None
        self.scale = _LANE_BYTES if counters is INFINIBAND_COUNTERS else 1
        self.open: dict[str, list[tuple[str, int]]] = {}
        for column, paths in counters.items():
            self.open[column] = [
                (path, descriptor)
                for path in paths
                if (descriptor := _opened(folder / path)) is not None
            ]

    def close(self) -> None:
        """Close its files."""
        for files in self.open.values():
            for _, descriptor in files:
                os.close(descriptor)
        self.open = {}


class LinkReader:
    """Reads every physical port of a host.

    Args:
        root: Where sysfs is mounted.
        enter: Told the port before each one is read.
        skip: Names of ports that are left out.
    """

    name = "links"

    def __init__(
        self,
        root: Path = SYSFS,
        *,
        enter: Enter = lambda _: None,
        skip: frozenset[str] = frozenset(),
    ) -> None:
        self._root = root
        self._enter = enter
        self._skip = skip
        self._ports: dict[str, Port] = {}
        self._counters = GrowingCounters()
        self._scanned_ns: int | None = None
        self._reported: dict[str, object] = {}

    def read(self) -> Reading:
        """Read every port once."""
        reading = Reading(source=self.name, time_ns=now_ns())
        if self._scanned_ns is None or reading.time_ns - self._scanned_ns >= _RESCAN_NS:
            self._scan()
            self._scanned_ns = reading.time_ns
        rows = [row for port in list(self._ports.values()) if (row := self._row(port, reading))]
        reading.rows["link_sample"] = rows
        for name in self._skip:
            reading.lacks(name, "its driver did not answer")
        facts: dict[str, object] = {
            "ports": [
                {"port": p.name, "layer": p.layer, "speed_bytes_per_s": p.speed_bytes_per_s}
                for p in self._ports.values()
            ],
            "counter_resets": self._counters.resets,
        }
        if facts != self._reported:
            self._reported = reading.facts = facts
        return reading

    def close(self) -> None:
        """Close all files."""
        for port in self._ports.values():
            port.close()
        self._ports = {}

    def _scan(self) -> None:
        found = {name: place for name, place in self._places() if name not in self._skip}
        for name in self._ports.keys() - found.keys():
            self._drop(self._ports[name])
        for name, (folder, layer, counters) in found.items():
            if name not in self._ports:
                self._enter(name)
                self._ports[name] = Port(name, folder, layer, counters)

    def _places(self) -> Iterator[tuple[str, tuple[Path, LinkLayer | None, Counters]]]:
        """Yield name, folder, layer and files of each port that sysfs shows now."""
        for device in _listed(self._root / "class" / "infiniband"):
            for port in _listed(device / "ports"):
                layer = _LAYERS.get((_text(port / "link_layer") or "").lower())
                yield f"{device.name}/{port.name}", (port, layer, INFINIBAND_COUNTERS)
        devices = _listed(self._root / "class" / "net")
        # Only what has hardware behind it: no loopback, bridge or tunnel.
        cards = [device for device in devices if (device / "device").exists()]
        ports = [device for device in cards if _text(device / "type") != _IPOIB]
        for device in ports or ([] if cards else filter(_leads_out, devices)):
            yield device.name, (device, LinkLayer.ETHERNET, ETHERNET_COUNTERS)

    def _row(self, port: Port, reading: Reading) -> Row | None:
        self._enter(port.name)
        row: Row = {"port": port.name, "layer": port.layer, "time_ns": now_ns()}
        row["speed_bytes_per_s"] = port.speed_bytes_per_s
        try:
            for column, files in port.open.items():
                if not files:
                    reading.lacks(column, "no such counter")
                    continue
                values = [self._value(port, path, descriptor) for path, descriptor in files]
                if None in values:
                    reading.lacks(column, "not a number")
                    continue
                scale = port.scale if column.endswith("_bytes") else 1
                row[column] = scale * sum(value for value in values if value is not None)
        except OSError as error:
            reading.lacks(port.name, f"taken away ({error.strerror})")
            self._drop(port)
            self._scanned_ns = None
            return None
        return row

    def _value(self, port: Port, path: str, descriptor: int) -> int | None:
        text = os.pread(descriptor, _MOST_BYTES, 0)
        try:
            return self._counters.grown(f"{port.name}:{path}", int(text))
        except ValueError:
            return None

    def _drop(self, port: Port) -> None:
        port.close()
        del self._ports[port.name]
        self._counters.forget(f"{port.name}:")


_LAYERS = {"infiniband": LinkLayer.INFINIBAND, "ethernet": LinkLayer.ETHERNET}
_IPOIB = "32"
"""ARPHRD_INFINIBAND: its traffic is in the counters of the port beneath."""


_ETHERNET = "1"
"""ARPHRD_ETHER."""


def _leads_out(device: Path) -> bool:
    """Return whether a device is the inner end of a cable into another namespace: all that a container has."""
    is_cable = _text(device / "type") == _ETHERNET
    ends = _text(device / "iflink"), _text(device / "ifindex")
    return is_cable and None not in ends and ends[0] != ends[1]


def _has_hardware(folder: Path, counters: Counters) -> bool:
    return counters is INFINIBAND_COUNTERS or (folder / "device").exists()


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES).decode("ascii", errors="replace").strip()
    except OSError:
        return None


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _speed(folder: Path) -> float | None:
    """Return the nominal rate in bytes/s: ``400 Gb/sec (4X NDR)``, or Mbit/s of a net device."""
    rate, megabits = _text(folder / "rate"), _text(folder / "speed")
    try:
        if rate:
            return float(rate.split()[0]) * 1e9 / _BITS_PER_BYTE
        if megabits and int(megabits) > 0:
            return int(megabits) * 1e6 / _BITS_PER_BYTE
    except (ValueError, IndexError):
        pass
    return None
