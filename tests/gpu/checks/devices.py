"""What the device's driver tells: which fields, how fast, and whether they make sense."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from meshscope.probe.agent.devices import DeviceReader
from meshscope.probe.agent.readings import Reading, reading_from_json
from meshscope.probe.agent.recording import RecordingWriter
from meshscope.probe.clock import now_ns

from .context import Context, NotHere, microseconds

ALWAYS = ("mem_used_bytes", "sm_util_frac", "power_w", "clock_hz", "temperature_c", "energy_j")
"""What every data centre device tells."""
ACTIVITY = ("sm_active_frac", "tensor_active_frac", "dram_active_frac")
RECORDING = "nvml.jsonl.gz"
_INTERVAL_S = 0.2
_ALIAS = "GPU-00000000-0000-0000-0000-{:012d}"


def devices(context: Context) -> None:
    """Read a quiet and a busy device, time every call, keep the series as a recording.

    Raises:
        NotHere: There is no driver to ask.
    """
    looks = _Looks()
    facts = looks.read().facts
    context.figure("facts", {key: value for key, value in facts.items() if key != "devices"})
    if not facts.get("devices"):
        raise NotHere(f"no device: {facts.get('unavailable') or facts.get('devices_not_found')}")
    quiet = looks.series(10)
    with _busy(context.device):
        busy = looks.series(25)
    after = looks.series(10)
    looks.reader.close()
    context.figure("call_us", {name: microseconds(t) for name, t in looks.calls.items()})
    context.figure("reading_us", microseconds(looks.readings_ns))
    _fields(context, busy)
    _energy(context, busy)
    _keep(context, [looks.first, *quiet, *busy, *after])


class _Looks:
    """A reader whose calls are timed."""

    def __init__(self) -> None:
        self.calls: dict[str, list[int]] = defaultdict(list)
        self.readings_ns: list[int] = []
        self._entered: tuple[str, int] | None = None
        self.reader = DeviceReader(enter=self._enter)
        self.first: Reading | None = None

    def _enter(self, label: str) -> None:
        """End the time of the call before; labels are ``<uuid> <call>``, or a call alone."""
        now = now_ns()
        if self._entered is not None:
            name, since = self._entered
            self.calls[name].append(now - since)
        self._entered = (label.rpartition(" ")[2] if label.startswith("GPU-") else label, now)

    def read(self) -> Reading:
        """Read once."""
        begin = now_ns()
        reading = self.reader.read()
        self._enter("between readings")
        self._entered = None
        if self.first is None:
            # It holds the start of the driver's library, which is no reading of a device.
            self.first = reading
            self.calls.clear()
        else:
            self.readings_ns.append(now_ns() - begin)
        return reading

    def series(self, count: int) -> list[Reading]:
        """Read some times, evenly apart."""
        found = []
        for _ in range(count):
            found.append(self.read())
            time.sleep(_INTERVAL_S)
        return found


@contextmanager
def _busy(device: str) -> Iterator[None]:
    """Have the device multiply matrices for the body of a ``with`` statement."""
    if device != "cuda":
        yield
        return
    x = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    over = threading.Event()

    def multiply() -> None:
        while not over.is_set():
            for _ in range(20):
                torch.mm(x, x)
            torch.cuda.synchronize()

    worker = threading.Thread(target=multiply)
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()


def _fields(context: Context, busy: list[Reading]) -> None:
    """Tell which columns were there, why others were not, and what the last values are."""
    rows = [reading.rows["device_sample"][0] for reading in busy]
    context.figure("missing", busy[-1].missing)
    context.figure("last", {k: v for k, v in rows[-1].items() if k != "uuid"})
    seen = {column for row in rows for column, value in row.items() if value is not None}
    absent = [name for name in ALWAYS if name not in seen]
    context.expect(not absent, f"not read from a real device: {absent}")
    for name in ACTIVITY:
        values = [float(v) for row in rows[5:] if (v := row.get(name)) is not None]
        if values:
            context.figure(f"busy_{name}", round(sorted(values)[len(values) // 2], 4))
            context.expect(max(values) <= 1.05, f"{name} is more than all: {max(values)}")
    activity = context.figures.get("busy_sm_active_frac")
    if activity is not None and context.device == "cuda":
        context.expect(activity > 0.3, f"a device full of work is active {activity} of the time")


def _energy(context: Context, busy: list[Reading]) -> None:
    """Compare the energy counter with the power that was read over the same time."""
    rows = [reading.rows["device_sample"][0] for reading in busy[3:]]
    energies = [(row["time_ns"], row.get("energy_j"), row.get("power_w")) for row in rows]
    whole = [(int(t or 0), float(e), float(p)) for t, e, p in energies if e and p]
    if len(whole) < 5:
        return
    span_s = (whole[-1][0] - whole[0][0]) / 1e9
    counted_w = (whole[-1][1] - whole[0][1]) / span_s
    sampled_w = sum(p for _, _, p in whole) / len(whole)
    context.figure("power_by_counter_w", round(counted_w, 1))
    context.figure("power_sampled_w", round(sampled_w, 1))


def _keep(context: Context, readings: list[Reading | None]) -> None:
    """Write the readings as the agent's recording mode does, under a made-up device name."""
    given = [reading for reading in readings if reading is not None]
    names: dict[str, str] = {}
    for reading in given:
        for row in reading.rows.get("device_sample", []):
            names.setdefault(str(row["uuid"]), _ALIAS.format(len(names)))
    path = context.out / RECORDING
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path)
    for reading in given:
        text = reading.to_json()
        for name, alias in names.items():
            text = text.replace(name, alias)
        writer.add(reading_from_json(text))
    writer.close()
    context.figure("recording_bytes", path.stat().st_size)
    context.figure("recording_readings", len(given))
