"""Processor, memory, swap and pressure of the host, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..clock import now_ns
from .readings import Reading, Row

PROC = Path("/proc")
_MOST_BYTES = 1 << 16
_KIB = 1024
_PRESSURES = {
    "cpu_stall_frac": ("pressure/cpu", "some"),
    "mem_stall_frac": ("pressure/memory", "some"),
    "mem_full_stall_frac": ("pressure/memory", "full"),
    "io_stall_frac": ("pressure/io", "some"),
}
"""Column, file and line of each pressure stall figure."""
_IDLE, _IOWAIT = 3, 4
_CPU_FIELDS = 8
"""user nice system idle iowait irq softirq steal; guest time is within user (proc(5))."""


class HostReader:
    """Reads the figures of a whole machine.

    Args:
        root: Where the proc file system is mounted.
    """

    name = "host"

    def __init__(self, root: Path = PROC) -> None:
        self._root = root
        self._files: dict[str, int] = {}
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._jiffies: list[int] | None = None
        self._stalled: dict[str, tuple[int, int]] = {}

    def read(self) -> Reading:
        """Read everything once; shares of time are those since the reading before."""
        reading = Reading(source=self.name, time_ns=now_ns())
        row: Row = {"time_ns": reading.time_ns}
        with _noting(reading, "cpu_busy_frac"):
            self._processors(row)
        with _noting(reading, "load_1m"):
            row["load_1m"] = float(self._text("loadavg").split()[0])
        with _noting(reading, "mem_available_bytes"):
            self._memory(row)
        with _noting(reading, "swap_in_bytes"):
            pages = _pairs(self._text("vmstat"))
            row["swap_in_bytes"] = pages["pswpin"] * self._page_bytes
            row["swap_out_bytes"] = pages["pswpout"] * self._page_bytes
        for column in _PRESSURES:
            with _noting(reading, column):
                self._pressure(column, row)
        reading.rows["host_sample"] = [row]
        return reading

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files = {}

    def _text(self, name: str) -> str:
        if name not in self._files:
            self._files[name] = os.open(self._root / name, os.O_RDONLY | os.O_CLOEXEC)
        return os.pread(self._files[name], _MOST_BYTES, 0).decode("ascii", errors="replace")

    def _processors(self, row: Row) -> None:
        lines = self._text("stat").splitlines()
        if not lines or not lines[0].startswith("cpu "):
            raise ValueError
        row["cpus"] = sum(line.startswith("cpu") for line in lines) - 1
        now = [int(field) for field in lines[0].split()[1 : 1 + _CPU_FIELDS]]
        before, self._jiffies = self._jiffies, now
        if before is None:
            return
        passed = [new - old for new, old in zip(now, before, strict=True)]
        total = sum(passed)
        # The kernel's count of waiting for a disk may step back.
        if total > 0 and min(passed) >= 0:
            row["cpu_busy_frac"] = 1 - (passed[_IDLE] + passed[_IOWAIT]) / total
            row["cpu_iowait_frac"] = passed[_IOWAIT] / total

    def _memory(self, row: Row) -> None:
        sizes = _pairs(self._text("meminfo"))
        row["mem_total_bytes"] = sizes["MemTotal:"] * _KIB
        row["mem_available_bytes"] = sizes["MemAvailable:"] * _KIB
        row["swap_total_bytes"] = sizes["SwapTotal:"] * _KIB
        row["swap_used_bytes"] = (sizes["SwapTotal:"] - sizes["SwapFree:"]) * _KIB

    def _pressure(self, column: str, row: Row) -> None:
        file, word = _PRESSURES[column]
        text = self._text(file)
        line = next(line for line in text.splitlines() if line.startswith(word))
        total_us = int(line.rpartition("total=")[2])
        time_ns = now_ns()
        before = self._stalled.get(column)
        self._stalled[column] = (time_ns, total_us)
        if before is not None and time_ns > before[0] and total_us >= before[1]:
            # The two clocks are not read at the same moment.
            row[column] = min(1.0, (total_us - before[1]) * 1000 / (time_ns - before[0]))


@contextmanager
def _noting(reading: Reading, column: str) -> Iterator[None]:
    """Count what could not be read or understood."""
    try:
        yield
    except OSError as error:
        reading.lacks(column, error.strerror or "cannot be read")
    except (ValueError, IndexError, KeyError, StopIteration):
        reading.lacks(column, "has another form than expected")


def _pairs(text: str) -> dict[str, int]:
    found = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[1].isdecimal():
            found[words[0]] = int(words[1])
    return found
