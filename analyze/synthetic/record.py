"""From simulated times to the tables that a probe on every rank would have written.

Clock faults and lost records are applied here: they change what is recorded, not
what happened. Times are those of each rank's host clock.

What a node agent would have sampled of the devices of a synthetic job.

Every rank has a device of its own. It runs at its highest clock, and at that over ``factor``
in the steps in which a clock drop holds, with heat as the reason. All are busy all the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from meshscope.probe.schema.host_tables import DEVICE, DEVICE_SAMPLE, RANK_DEVICE
from meshscope.probe.schema.message import message_to_cell
from meshscope.probe.schema.standstill_tables import PROGRESS
from meshscope.probe.schema.tables import RUN, TABLES
from meshscope.probe.schema.terms import CaptureLevel, ScheduleKind

from ..tables.arrays import IntArray
from ..tables.capabilities import SYNTHETIC
from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import message
from .faults import FaultKind
from .job import SyntheticJob
from .mesh import AXES, GroupNames, Mesh, group_table
from .rows import COLLECTIVE_KINDS, DIRECTIONS, SPAN_KINDS, Rows, StepRecorder, to_table
from .simulate import Simulation, StepTimes, is_never

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
        simulated = message_to_cell(message("evidence.simulated"))
        joined = [
            {"rank": one, "host": places[one][0], "uuid": places[one][1], "evidence": simulated}
            for one in ranks
        ]
        return {
            "device_sample": DEVICE_SAMPLE.conform(pa.table(samples)),
            "device": DEVICE.conform(pa.Table.from_pylist(devices)),
            "rank_device": RANK_DEVICE.conform(pa.Table.from_pylist(joined)),
        }

    def _place(self, rank: int) -> tuple[str, str]:
        return f"host{rank // self._job.ranks_per_host:04d}", f"GPU-{rank:012d}"


SIMULATED = message("doubt.simulated")
_ORDER = {"collective": "event_id", "p2p": "event_id", "microbatch": "step"}
SIMULATED_DEVICE = "none (simulated)"


def record(simulation: Simulation) -> Trace:
    """Simulate a job and return what a capture of it holds."""
    job = simulation.job
    devices = DeviceRecorder(job, simulation.mesh)
    is_stuck = []

    def watched() -> Iterator[StepTimes]:
        for times in simulation.steps():
            devices.add(times)
            is_stuck.append(times.is_stuck)
            yield times

    tables = records_of(simulation, watched())
    bare = without_records(simulation)
    tables |= {name: bare.tables[name] for name in bare.tables}
    if any(is_stuck):
        names = GroupNames(simulation.mesh)
        tables["progress"] = _progress(tables["collective"], names, bare.ranks)
    tables |= _Clock(job).of_samples(devices.tables(bare.ranks, SIMULATED_DEVICE))
    return replace(bare, tables=tables)


def records_of(simulation: Simulation, steps: Iterable[StepTimes]) -> dict[str, pa.Table]:
    """Return the records that some steps leave, by rank and time; ids are those of the whole job."""
    job, mesh = simulation.job, simulation.mesh
    names = GroupNames(mesh)
    source = {"dtype": ["bfloat16"], "source": ["host_blocking"], "axis": list(AXES)}
    rows = {
        "step": Rows("step", {}),
        "microbatch": Rows("microbatch", {}),
        "span": Rows("span", {"kind": list(SPAN_KINDS)}),
        "collective": Rows(
            "collective", {**source, "group_id": names.words, "kind": list(COLLECTIVE_KINDS)}
        ),
        "p2p": Rows("p2p", {**source, "group_id": names.words, "direction": list(DIRECTIONS)}),
    }
    recorder = StepRecorder(simulation, names, rows)
    for times in steps:
        recorder.add(times)
    clock = _Clock(job)
    tables = {}
    for name, own in rows.items():
        order = ("rank", _ORDER.get(name, "start_ns"))
        tables[name] = _finished(name, own.columns(order), own.words, clock)
    return tables


def without_records(simulation: Simulation) -> Trace:
    """Return what a capture of a job holds beside the records of its steps: run, groups and limits."""
    job, mesh = simulation.job, simulation.mesh
    lost = {f.rank for f in job.of_kind(FaultKind.MISSING_RANK)}
    ranks = tuple(rank for rank in range(job.layout.world_size) if rank not in lost)
    run = _run_row(job)
    return Trace(
        path=Path(SYNTHETIC),
        run=run,
        layout=job.layout,
        ranks=ranks,
        tables={
            "run": RUN.conform(pa.Table.from_pylist([run])),
            "group": group_table(mesh, GroupNames(mesh)),
        },
        limits=_limits(job),
        origin=SYNTHETIC,
        clocks={rank: f"host{rank // job.ranks_per_host:04d}" for rank in ranks},
    )


class _Clock:
    """Maps true time to what the clock of a rank's host shows."""

    def __init__(self, job: SyntheticJob) -> None:
        world = job.layout.world_size
        host = np.arange(world) // job.ranks_per_host
        self._ahead_ns, self._gain = np.zeros(world, np.int64), np.zeros(world)
        self._is_plain = True
        for fault in job.of_kind(FaultKind.CLOCK_SKEW):
            self._ahead_ns[host == fault.host] += round((fault.offset_ms or 0.0) * 1e6)
            self._gain[host == fault.host] += (fault.drift_ppm or 0.0) * 1e-6
            self._is_plain = False

    def shown(self, rank: IntArray, time_ns: IntArray) -> IntArray:
        """Return times as the ranks' clocks show them."""
        if self._is_plain:
            return time_ns
        drift = np.rint(time_ns * self._gain[rank]).astype(np.int64)
        return time_ns + drift + self._ahead_ns[rank]

    def of_samples(self, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
        """Return samples of devices, one a rank, as the clocks of their hosts show the time."""
        if self._is_plain or not tables:
            return tables
        rows = tables["device_sample"]
        per_rank = rows.num_rows // len(self._gain)
        rank = np.repeat(np.arange(len(self._gain)), per_rank)
        shown = pa.array(self.shown(rank, rows["time_ns"].to_numpy()))
        at = rows.schema.get_field_index("time_ns")
        return {**tables, "device_sample": rows.set_column(at, rows.schema.field(at), shown)}


def _finished(
    name: str, columns: dict[str, IntArray], words: dict[str, list[str]], clock: _Clock
) -> pa.Table:
    """Return the table of sorted columns, on the clocks of the ranks."""
    if not columns:
        return TABLES[name].empty()
    rank = columns["rank"]
    times = {name: columns.pop(name) for name in list(columns) if name.endswith("_ns")}
    work = {name: times.pop(name) for name in ("cpu_ns",) if name in times}
    unknown = {name: is_never(values) for name, values in times.items()}
    shown = {name: clock.shown(rank, values) for name, values in times.items()}
    if not times:
        return to_table(name, columns, words, {})
    columns |= {**work, "start_ns": shown["start_ns"]}
    if name in ("step", "span"):
        columns["dur_ns"] = shown["end_ns"] - shown["start_ns"]
        return to_table(name, columns, words, {})
    # A blocking operation is waited for from issue to end: the same values, stored once.
    shown = {"wait_start_ns": shown["start_ns"], "wait_end_ns": shown["end_ns"], **shown}
    unknown = {"wait_end_ns": unknown["end_ns"], **unknown}
    columns |= {"issue_ns": shown["start_ns"], **shown}
    return to_table(name, columns, words, {k: mask for k, mask in unknown.items() if mask.any()})


def _progress(collectives: pa.Table, names: GroupNames, captured: tuple[int, ...]) -> pa.Table:
    """Return how far each rank came in each group, for a job that hangs; -1 for nowhere."""
    done = collectives["end_ns"].is_valid().to_numpy(zero_copy_only=False)
    rank = collectives["rank"].to_numpy()
    seq = collectives["seq"].to_numpy()
    group = names.codes(collectives["group_id"])
    rows: list[dict[str, object]] = []
    for code, members in names.members():
        for member in members:
            own = (rank == member) & (group == code)
            if member in captured:
                rows.append(
                    {
                        "rank": member,
                        "group_id": names.words[code],
                        "issued_seq": int(seq[own].max(initial=-1)),
                        "completed_seq": int(seq[own & done].max(initial=-1)),
                    }
                )
    return PROGRESS.conform(pa.Table.from_pylist(rows)) if rows else PROGRESS.empty()


def _run_row(job: SyntheticJob) -> dict[str, object]:
    layout = job.layout
    tokens = job.tokens_per_microbatch * job.microbatches * layout.dp
    row: dict[str, object] = dict.fromkeys(TABLES["run"].column_names())
    axes = {name: getattr(layout, name) for name in ("tp", "pp", "dp", "cp", "ep", "vpp", "order")}
    return (
        row
        | axes
        | {
            "run_id": f"synthetic-{job.key()[:12]}",
            "world_size": layout.world_size,
            "num_layers": sum(job.layers) if job.layers else 2 * job.stages,
            "schedule": None if job.schedule is ScheduleKind.NONE else str(job.schedule),
            "microbatches": job.microbatches,
            "tokens_per_step": tokens,
            "device_name": SIMULATED_DEVICE,
            "capture_level": str(CaptureLevel.COLLECTIVES),
        }
    )


def _limits(job: SyntheticJob) -> tuple[Limit, ...]:
    lost = job.of_kind(FaultKind.MISSING_RANK)
    limits: list[Limit] = [SIMULATED]
    if lost:
        limits.append(message("missing.simulated_ranks", count=len(lost)))
    return tuple(limits)
