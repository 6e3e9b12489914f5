"""What a node agent would have sampled of the devices of a synthetic job.

Every rank has a device of its own. It runs at its highest clock, and at that over ``factor``
in the steps in which a clock drop holds, with heat as the reason. All are busy all the time.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from meshscope.probe.schema.host_tables import DEVICE, DEVICE_SAMPLE, RANK_DEVICE

from ..tables.arrays import IntArray
from .faults import FaultKind
from .job import SyntheticJob
from .mesh import Mesh
from .simulate import StepTimes, is_never

FULL_CLOCK_HZ = 1.98e9
TOO_HOT = 0x40
"""The clock event reason of NVML for a device that is held back by its temperature."""


class DeviceRecorder:
    """Gathers when the steps of each rank end, and samples the devices at the end."""

    def __init__(self, job: SyntheticJob, mesh: Mesh) -> None:
        self._job, self._mesh = job, mesh
        self._ends: list[IntArray] = []
        self._slow: list[np.ndarray] = []

    def add(self, times: StepTimes) -> None:
        """Take the ends of a step, and by how much each device is slower in it."""
        if is_never(times.end).any():
            return
        order = np.argsort(self._mesh.rank, axis=None)
        slow = np.ones(self._mesh.rank.shape)
        for fault in self._job.of_kind(FaultKind.CLOCK_DROP, step=times.step):
            slow[self._mesh.selected(fault, self._job.ranks_per_host)] *= fault.factor or 1.0
        self._ends.append(times.end.ravel()[order])
        self._slow.append(slow.ravel()[order])

    def tables(self, ranks: tuple[int, ...], name: str) -> dict[str, pa.Table]:
        """Return the samples in true time, the devices, and which captured rank ran on which.

        Args:
            ranks: Captured ranks.
            name: What the vendor calls the devices.
        """
        interval = self._job.sample_interval_ns
        if not interval or not self._ends:
            return {}
        ends, slow = np.stack(self._ends), np.stack(self._slow)
        times = np.arange(interval // 2, int(ends.max()), interval)
        world = ends.shape[1]
        step = np.stack(
            [np.searchsorted(ends[:, rank], times, side="right") for rank in range(world)]
        )
        rank = np.broadcast_to(np.arange(world)[:, None], step.shape)
        # A rank that is done before the others is idle at the clock it had.
        factor = slow[np.minimum(step, len(slow) - 1), rank]
        places = [self._place(one) for one in range(world)]
        samples = {
            "host": [host for host, _ in places for _ in times],
            "uuid": [uuid for _, uuid in places for _ in times],
            "time_ns": np.broadcast_to(times, step.shape).ravel(),
            "sm_util_frac": np.ones(step.size),
            "clock_hz": (FULL_CLOCK_HZ / factor).ravel(),
            "throttle_mask": np.where(factor > 1.0, TOO_HOT, 0).ravel(),
        }
        devices = [
            {"host": host, "uuid": uuid, "name": name, "max_clock_hz": FULL_CLOCK_HZ}
            for host, uuid in places
        ]
        joined = [
            {"rank": one, "host": places[one][0], "uuid": places[one][1], "evidence": "simulated"}
            for one in ranks
        ]
        return {
            "device_sample": DEVICE_SAMPLE.conform(pa.table(samples)),
            "device": DEVICE.conform(pa.Table.from_pylist(devices)),
            "rank_device": RANK_DEVICE.conform(pa.Table.from_pylist(joined)),
        }

    def _place(self, rank: int) -> tuple[str, str]:
        return f"host{rank // self._job.ranks_per_host:04d}", f"GPU-{rank:012d}"
