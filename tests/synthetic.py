"""Captures with known answers: a small event simulator that writes our tables.

Every rank runs a list of operations in order. A collective is complete ``wire``
after its last member has come; a send is buffered; a receive ends ``wire`` after
the later of its own start and that of the send. Times are exact integers, so
each answer can be worked out by hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

MS = 1_000_000
WorkOf = Callable[[str, int, int, int], int]
"""(kind, rank, step, microbatch) -> nanoseconds."""


@dataclass
class Machine:
    """The simulator: clocks of the ranks and the rows recorded so far."""

    layout: ParallelLayout
    clock: list[int] = field(default_factory=list)
    rows: dict[str, list[dict]] = field(default_factory=lambda: defaultdict(list))
    sent: dict[tuple, int] = field(default_factory=dict)
    came: dict[tuple, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    seq: dict[tuple, int] = field(default_factory=lambda: defaultdict(int))

    def run(self, programs: list[list[tuple]]) -> None:
        """Run the programs of all ranks to their ends."""
        self.clock = self.clock or [0] * self.layout.world_size
        position = [0] * len(programs)
        entered: set[tuple[int, int]] = set()
        while any(position[r] < len(p) for r, p in enumerate(programs)):
            moved = False
            for rank, program in enumerate(programs):
                while position[rank] < len(program):
                    key = (rank, position[rank])
                    if not self._advance(rank, program[position[rank]], key, entered):
                        break
                    position[rank] += 1
                    moved = True
            assert moved, "the programs deadlock"

    def _advance(self, rank: int, op: tuple, key: tuple[int, int], entered: set) -> bool:
        return getattr(self, f"_do_{op[0]}")(rank, key, entered, *op[1:])

    def _do_work(self, rank, key, entered, ns, *what) -> bool:
        self._do_open(rank, key, entered, *what)
        self._do_compute(rank, key, entered, ns)
        return self._do_close(rank, key, entered)

    def _do_open(self, rank, key, entered, step, kind, stage, microbatch) -> bool:
        self.rows["span"].append(
            {
                "rank": rank,
                "step": step,
                "kind": kind,
                "stage": stage,
                "chunk": 0,
                "microbatch": microbatch,
                "start_ns": self.clock[rank],
                "dur_ns": -1,
                "cpu_ns": 0,
            }
        )
        return True

    def _do_compute(self, rank, key, entered, ns) -> bool:
        self.clock[rank] += ns
        self._open_span(rank)["cpu_ns"] += ns
        return True

    def _do_idle(self, rank, key, entered, ns) -> bool:
        self.clock[rank] += ns
        return True

    def _do_close(self, rank, key, entered) -> bool:
        row = self._open_span(rank)
        row["dur_ns"] = self.clock[rank] - row["start_ns"]
        return True

    def _open_span(self, rank: int) -> dict:
        return next(r for r in reversed(self.rows["span"]) if r["rank"] == rank and r["dur_ns"] < 0)

    def _arrive(self, rank, key, entered, name) -> tuple[int, dict]:
        """Return the number of an operation of a group, and when its members came to it."""
        if key not in entered:
            entered.add(key)
            seq = self.seq[(name, rank)]
            self.seq[(name, rank)] += 1
            self.came[(name, seq)][rank] = self.clock[rank]
            self.came[(key, "seq")] = {rank: seq}
        seq = self.came[(key, "seq")][rank]
        return seq, self.came[(name, seq)]

    def _do_collective(self, rank, key, entered, step, group, axis, kind, size, wire) -> bool:
        name, members = group
        seq, arrivals = self._arrive(rank, key, entered, name)
        if len(arrivals) < len(members):
            return False
        start, end = arrivals[rank], max(arrivals.values()) + wire
        self.rows["collective"].append(
            {
                "rank": rank,
                "step": step,
                "group_id": name,
                "axis": axis,
                "kind": kind,
                "seq": seq,
                "size_bytes": size,
                "dtype": "float32",
                **self._times(start, end),
            }
        )
        self.clock[rank] = end
        return True

    def _do_hidden(self, rank, key, entered, group, wire) -> bool:
        """Wait for all members of a group in an operation that nobody records."""
        _, arrivals = self._arrive(rank, key, entered, f"hidden {group[0]}")
        if len(arrivals) < len(group[1]):
            return False
        self.clock[rank] = max(arrivals.values()) + wire
        return True

    def _do_broadcast(self, rank, key, entered, step, group, root, size, wire) -> bool:
        """Let the root leave at once, and the others as soon as it has come."""
        name, _ = group
        seq, arrivals = self._arrive(rank, key, entered, name)
        if root not in arrivals:
            return False
        start, end = arrivals[rank], max(arrivals[rank], arrivals[root]) + wire
        row = {"rank": rank, "step": step, "group_id": name, "axis": "dp", "kind": "broadcast"}
        row |= {"seq": seq, "size_bytes": size, "dtype": "float32", **self._times(start, end)}
        self.rows["collective"].append(row)
        self.clock[rank] = end
        return True

    def _do_send(self, rank, key, entered, step, peer, tag, size) -> bool:
        now = self.clock[rank]
        self.sent[(rank, peer, tag)] = now
        self._p2p(rank, step, peer, "send", size, now, now)
        return True

    def _do_recv(self, rank, key, entered, step, peer, tag, size, wire) -> bool:
        if (peer, rank, tag) not in self.sent:
            return False
        now = self.clock[rank]
        end = max(now, self.sent[(peer, rank, tag)]) + wire
        self._p2p(rank, step, peer, "recv", size, now, end)
        self.clock[rank] = end
        return True

    def _p2p(self, rank, step, peer, direction, size, start, end) -> None:
        seq = self.seq[("p2p", rank, peer, direction)]
        self.seq[("p2p", rank, peer, direction)] += 1
        self.rows["p2p"].append(
            {
                "rank": rank,
                "step": step,
                "group_id": "pp",
                "axis": "pp",
                "peer": peer,
                "direction": direction,
                "microbatch": -1,
                "chunk": -1,
                "seq": seq,
                "size_bytes": size,
                "dtype": "float32",
                **self._times(start, end),
            }
        )

    def _times(self, start: int, end: int) -> dict:
        count = len(self.rows["collective"]) + len(self.rows["p2p"])
        return {
            "issue_ns": start,
            "start_ns": start,
            "end_ns": end,
            "wait_start_ns": start,
            "wait_end_ns": end,
            "source": "host_blocking",
            "event_id": count,
        }

    def _do_end(self, rank, key, entered, step, tokens) -> bool:
        before = [row for row in self.rows["step"] if row["rank"] == rank]
        start = before[-1]["start_ns"] + before[-1]["dur_ns"] if before else 0
        self.rows["step"].append(
            {
                "rank": rank,
                "step": step,
                "start_ns": start,
                "dur_ns": self.clock[rank] - start,
                "tokens": tokens,
            }
        )
        return True


@dataclass(frozen=True, kw_only=True)
class Job:
    """A 1F1B or GPipe job with work times that the caller chooses."""

    layout: ParallelLayout
    microbatches: int = 4
    steps: int = 6
    segments: int = 2
    """Pieces of a forward or backward between which the TP group synchronises."""
    wire_ns: int = 100_000
    optimizer_ns: int = 2 * MS
    schedule: str = "1f1b"


def uniform(forward_ns: int, backward_ns: int) -> WorkOf:
    """Return the same work everywhere."""
    return lambda kind, rank, step, microbatch: forward_ns if kind == "forward" else backward_ns


def order(schedule: str, stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """Return the order of one stage, as the papers give it."""
    warmup = microbatches if schedule == "gpipe" else min(stages - stage - 1, microbatches)
    steady = microbatches - warmup
    actions = [("forward", k) for k in range(warmup)]
    for k in range(steady):
        actions += [("forward", warmup + k), ("backward", k)]
    return actions + [("backward", steady + k) for k in range(warmup)]


def programs(job: Job, work: WorkOf) -> list[list[tuple]]:
    """Return what every rank does."""
    return [_program(job, work, rank) for rank in range(job.layout.world_size)]


def _group(layout: ParallelLayout, axis: str, rank: int) -> tuple[str, tuple[int, ...]]:
    members = next(group for group in layout.groups(axis) if rank in group)
    return f"{axis}-{members[0]}", members


def _program(job: Job, work: WorkOf, rank: int) -> list[tuple]:
    layout = job.layout
    at = layout.coordinates(rank)
    ops: list[tuple] = []
    for step in range(job.steps):
        for kind, microbatch in order(job.schedule, at["pp"], layout.pp, job.microbatches):
            source = at["pp"] - 1 if kind == "forward" else at["pp"] + 1
            target = at["pp"] + 1 if kind == "forward" else at["pp"] - 1
            if 0 <= source < layout.pp:
                peer = layout.rank(**{**at, "pp": source})
                ops.append(("recv", step, peer, (kind, step, microbatch), 1 << 20, job.wire_ns))
            ops += _stage(job, work, rank, step, kind, microbatch)
            if 0 <= target < layout.pp:
                peer = layout.rank(**{**at, "pp": target})
                ops.append(("send", step, peer, (kind, step, microbatch), 1 << 20))
        if layout.dp > 1:
            group = _group(layout, "dp", rank)
            ops.append(("collective", step, group, "dp", "all_reduce", 1 << 24, job.wire_ns))
        ops += [("work", job.optimizer_ns, step, "optimizer", at["pp"], -1), ("end", step, 4096)]
    return ops


def _stage(job: Job, work: WorkOf, rank: int, step: int, kind: str, microbatch: int) -> list[tuple]:
    total = work(kind, rank, step, microbatch)
    stage = job.layout.coordinates(rank)["pp"]
    if job.layout.tp == 1:
        return [("work", total, step, kind, stage, microbatch)]
    group = _group(job.layout, "tp", rank)
    ops: list[tuple] = [("open", step, kind, stage, microbatch)]
    for _ in range(job.segments):
        ops.append(("compute", total // job.segments))
        ops.append(("collective", step, group, "tp", "all_reduce", 1 << 18, job.wire_ns))
    return [*ops, ("close",)]


def capture(job: Job, work: WorkOf, **run: object) -> Trace:
    """Return the capture of a job as the probe would have recorded it."""
    return capture_of(job, programs(job, work), **run)


def capture_of(
    job: Job, operations: list[list[tuple]], simulator: type[Machine] = Machine, **run: object
) -> Trace:
    """Return the capture of a job whose ranks do the given operations."""
    machine = simulator(job.layout)
    machine.run(operations)
    layout = job.layout
    row = dict.fromkeys(TABLES["run"].column_names())
    row |= {
        "run_id": "synthetic",
        "world_size": layout.world_size,
        "schedule": job.schedule,
        "microbatches": job.microbatches,
        "capture_level": "collectives",
        **run,
    }
    groups = [
        {"group_id": f"{axis}-{members[0]}", "axis": axis, "ranks": list(members)}
        for axis in ("tp", "dp")
        for members in layout.groups(axis)
        if len(members) > 1
    ] + (
        [{"group_id": "pp", "axis": "pp", "ranks": list(range(layout.world_size))}]
        if layout.pp > 1
        else []
    )
    tables = {
        name: TABLES[name].conform(pa.Table.from_pylist(rows)) if rows else TABLES[name].empty()
        for name, rows in {**machine.rows, "group": groups}.items()
    }
    return Trace(
        path=Path("synthetic"),
        run=row,
        layout=layout,
        ranks=tuple(range(layout.world_size)),
        tables=tables,
    )
