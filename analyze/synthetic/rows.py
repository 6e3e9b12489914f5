"""The rows that one simulated step leaves in each table, gathered as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshscope.probe.schema.columns import arrow_type
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import CollectiveKind, Direction, SpanKind

from ..formulas.schedules import PASS_KINDS
from ..tables.arrays import BoolArray, IntArray
from .durations import Purpose, draws, microbatch_work
from .faults import FaultKind
from .mesh import AXES, GroupNames
from .program import COLLECTIVE
from .simulate import Simulation, StepTimes, bucket_operations, is_never

Block = dict[str, npt.NDArray[np.int64] | int]
"""Values of equal shape (or one for all) by column; a category is a position in its words."""


@dataclass(slots=True)
class Rows:
    """The rows of one table, in blocks."""

    table: str
    words: dict[str, list[str]]
    """What the numbers in the category columns stand for."""
    blocks: list[dict[str, IntArray]] = field(default_factory=list)

    def add(self, block: Block, keep: npt.NDArray[np.bool_]) -> None:
        """Append the kept rows of a block; ``keep`` gives the shape of all columns."""
        flat = {
            name: np.broadcast_to(np.asarray(values), keep.shape)[keep]
            for name, values in block.items()
        }
        types = {c.name: c.dtype for c in TABLES[self.table].columns}
        self.blocks.append(
            {
                name: values.astype(np.int32) if _is_narrow(types.get(name, "")) else values
                for name, values in flat.items()
            }
        )

    def columns(self, order: tuple[str, ...]) -> dict[str, IntArray]:
        """Return the columns sorted by the given ones, the first one first; blocks are freed."""
        blocks, self.blocks = self.blocks, []
        if not blocks:
            return {}
        whole = {}
        for name in list(blocks[0]):
            whole[name] = np.concatenate([block.pop(name) for block in blocks])
        place = np.lexsort([whole[name] for name in reversed(order)])
        return {name: whole.pop(name)[place] for name in list(whole)}


def _is_narrow(dtype: str) -> bool:
    return dtype in ("int32", "category")


def to_table(
    name: str,
    columns: dict[str, IntArray],
    words: dict[str, list[str]],
    unknown: dict[str, npt.NDArray[np.bool_]],
) -> pa.Table:
    """Return a declared table.

    Args:
        name: The table.
        columns: Its columns; a nullable one that is left out is unknown.
        words: Values of category columns.
        unknown: Rows whose value is null, by column.
    """
    spec = TABLES[name]
    if not columns:
        return spec.empty()
    arrays, made = {}, dict[int, pa.Array]()
    for column in spec.columns:
        if column.name not in columns:
            continue
        values, mask = columns[column.name], unknown.get(column.name)
        if column.name in words:
            codes = pa.array(values)
            arrays[column.name] = pa.DictionaryArray.from_arrays(codes, words[column.name])
            continue
        # Columns that share one numpy array share one Arrow array, and its memory.
        if id(values) not in made or mask is not None:
            made[id(values)] = pa.array(values, arrow_type(column.dtype), mask=mask)
        arrays[column.name] = made[id(values)]
    return spec.conform(pa.table(arrays))


SPAN_KINDS = (
    *PASS_KINDS,
    SpanKind.OPTIMIZER,
    SpanKind.DATA_LOAD,
    SpanKind.GC,
    SpanKind.CHECKPOINT,
)
COLLECTIVE_KINDS = (
    CollectiveKind.ALL_REDUCE,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_TO_ALL,
)
DIRECTIONS = (Direction.SEND, Direction.RECV)
_KIND_OF_AXIS = {"tp": 0, "dp": 0, "cp": 1, "ep": 2}
"""The collective that runs along each axis, as a position in ``COLLECTIVE_KINDS``."""
MESSAGE_BYTES = 1 << 20
"""Size of everything sent inside a pass; gradients are ``GRADIENT_BYTES``."""
GRADIENT_BYTES = 1 << 26
USUAL_SEQUENCES = 16
"""Sequences of equal length that a microbatch of usual work has."""
_SEND = 1
"""Slot of a send after its operation; an operation itself has slot 0, buckets from 2 on."""


class StepRecorder:
    """Adds the rows of one step after the other."""

    def __init__(self, simulation: Simulation, names: GroupNames, rows: dict[str, Rows]) -> None:
        self._job, self._mesh = simulation.job, simulation.mesh
        self._program, self._plan = simulation.program, simulation.program.plan
        self._names, self._rows = names, rows
        lost = [f.rank for f in self._job.of_kind(FaultKind.MISSING_RANK)]
        self._is_seen = np.ones(self._mesh.rank.size, dtype=bool)
        self._is_seen[np.array(lost, dtype=np.int64)] = False
        self._seen = self._is_seen[self._mesh.rank]
        self._pass_rank = self._mesh.rank[self._plan.rank]
        self._send_seq = self._order_of_sends()

    def add(self, times: StepTimes) -> None:
        """Append what happened in a step."""
        self._add_step(times)
        if self._job.tell_sequences:
            self._add_sequences(times.step)
        self._add_passes(times)
        self._add_whole_spans(times)
        for at, axis in enumerate(self._program.axes):
            self._add_inner(times, at, axis)
        self._add_gradients(times)
        if self._plan.crosses.any():
            self._add_messages(times)

    def _add_step(self, times: StepTimes) -> None:
        self._rows["step"].add(
            {
                "rank": self._mesh.rank,
                "step": times.step,
                "start_ns": times.begin,
                "end_ns": times.end,
                "tokens": self._job.microbatches * self._job.tokens_per_microbatch,
            },
            self._seen & ~is_never(times.end),
        )

    def _add_sequences(self, step: int) -> None:
        """Append the microbatches: equal tokens, and squares of lengths in proportion to their work."""
        job, dp = self._job, self._mesh.at["dp"]
        tokens = job.tokens_per_microbatch
        work = microbatch_work(job, step)[:, dp]
        squares = np.clip(np.rint(tokens**2 / USUAL_SEQUENCES * work), tokens, tokens**2)
        self._rows["microbatch"].add(
            {
                "rank": self._mesh.rank,
                "step": step,
                "microbatch": np.arange(job.microbatches).reshape(-1, *(1,) * dp.ndim),
                "tokens": tokens,
                "sum_sq": squares.astype(np.int64),
            },
            np.broadcast_to(self._seen, work.shape),
        )

    def _spans(self, columns: Block, times: StepTimes, keep: BoolArray) -> None:
        self._rows["span"].add({**columns, "step": times.step}, keep)

    def _add_passes(self, times: StepTimes) -> None:
        plan, program, work = self._plan, self._program, times.durations.work
        start = times.at(program.before[program.first])
        end = times.at(program.node[program.last])
        seen = self._seen[plan.rank]
        place: Block = {
            "rank": self._pass_rank,
            "stage": plan.stage[:, None, None],
            "chunk": plan.chunk[:, None, None],
            "microbatch": plan.microbatch[:, None, None],
            "start_ns": start,
        }
        own: Block = {"kind": plan.kind[:, None, None], "end_ns": end, "cpu_ns": work}
        self._spans({**place, **own}, times, seen & ~is_never(end))
        pause = times.durations.pause
        if pause is not None:
            gc: Block = {
                "kind": SPAN_KINDS.index(SpanKind.GC),
                "end_ns": start + pause,
                "cpu_ns": pause,
            }
            self._spans({**place, **gc}, times, seen & (pause > 0) & ~is_never(start))

    def _add_whole_spans(self, times: StepTimes) -> None:
        durations = times.durations
        for kind, start, length in (
            (SpanKind.DATA_LOAD, times.begin, durations.data),
            (SpanKind.OPTIMIZER, times.optimizer, durations.optimizer),
            (SpanKind.CHECKPOINT, times.checkpoint, durations.checkpoint),
        ):
            span: Block = {
                "rank": self._mesh.rank,
                "kind": SPAN_KINDS.index(kind),
                "stage": self._mesh.at["pp"],
                "chunk": -1,
                "microbatch": -1,
                "start_ns": start,
                "end_ns": start + length,
                "cpu_ns": length if kind is SpanKind.OPTIMIZER else 0,
            }
            self._spans(span, times, self._seen & (length > 0) & ~is_never(start))

    def _add_inner(self, times: StepTimes, at: int, axis: str) -> None:
        program = self._program
        operation = np.flatnonzero(program.kind == COLLECTIVE + at)
        position, count = _position_in(program.rank[operation])
        per_step = count + (axis == "cp")
        self._collectives(
            axis,
            {
                "rank": self._mesh.rank[program.rank[operation]],
                "seq": (position + times.step * per_step)[:, None, None],
                "event_id": self._event(times.step, operation, 0)[:, None, None],
                "start_ns": times.at(program.before[operation]),
                "end_ns": times.at(program.node[operation]),
            },
            times.step,
        )

    def _add_gradients(self, times: StepTimes) -> None:
        job, program, gradients = self._job, self._program, times.gradients
        after = len(program.kind)
        if gradients is not None:
            operations = bucket_operations(job, program)
            for bucket in range(job.dp_buckets):
                at = operations[bucket] if job.overlap_dp else np.full(job.layout.pp, after)
                self._collectives(
                    "dp",
                    {
                        "rank": self._mesh.rank,
                        "seq": times.step * job.dp_buckets + bucket,
                        "event_id": self._event(times.step, at, 2 + bucket)[:, None, None],
                        "start_ns": gradients.issue[bucket],
                        "end_ns": gradients.done[bucket],
                        "wait_start_ns": gradients.wait[bucket],
                        "wait_end_ns": gradients.resume[bucket],
                    },
                    times.step,
                )
        if job.layout.cp > 1:
            inner = np.bincount(program.rank[program.kind == COLLECTIVE])
            self._collectives(
                "cp",
                {
                    "rank": self._mesh.rank,
                    "seq": (inner + times.step * (inner + 1))[:, None, None],
                    "event_id": int(self._event(times.step, np.array(after + 1), 0)),
                    "start_ns": times.reduced,
                    "end_ns": times.optimizer,
                },
                times.step,
                kind=0,
            )

    def _collectives(self, axis: str, columns: Block, step: int, kind: int | None = None) -> None:
        """Append one member per entry; without its own times a wait is the whole operation."""
        rank, start = np.asarray(columns["rank"]), np.asarray(columns["start_ns"])
        is_gradient = axis == "dp" or kind is not None
        block: Block = {
            "wait_start_ns": columns["start_ns"],
            "wait_end_ns": columns["end_ns"],
            **columns,
            "step": step,
            "group_id": self._names.code_of(axis)[rank],
            "axis": AXES.index(axis),
            "kind": _KIND_OF_AXIS[axis] if kind is None else kind,
            "size_bytes": GRADIENT_BYTES if is_gradient else MESSAGE_BYTES,
            "dtype": 0,
            "source": 0,
        }
        keep = self._is_seen[rank] & ~is_never(start) & ~self._lost(axis, rank, step)
        self._rows["collective"].add(block, keep)

    def _lost(self, axis: str, rank: IntArray, step: int) -> BoolArray:
        """Return which records of collectives are lost."""
        lost = np.zeros(rank.shape, dtype=bool)
        for fault in self._job.of_kind(FaultKind.MISSING_COLLECTIVES, step=step):
            if fault.axis in (None, axis):
                own = rank == fault.rank
                if fault.chance is not None:
                    random = draws(self._job, Purpose.LOSS, step, fault)
                    own &= random.random(rank.shape) < fault.chance
                lost |= own
        return lost

    def _add_messages(self, times: StepTimes) -> None:
        program, mesh, plan = self._program, self._mesh, self._plan
        receive, needed = program.receives, program.needed
        seq = self._send_seq + times.step * self._sends_per_step
        for direction, operation, other, slot in (
            (Direction.SEND, needed, receive, _SEND),
            (Direction.RECV, receive, needed, 0),
        ):
            here = program.rank[operation]
            rank, row = mesh.rank[here], program.row[operation]
            end = times.at(program.node[operation])
            start = end if direction is Direction.SEND else times.at(program.before[operation])
            self._rows["p2p"].add(
                {
                    "rank": rank,
                    "step": times.step,
                    "group_id": self._names.code_of("pp")[rank],
                    "axis": AXES.index("pp"),
                    "peer": mesh.rank[program.rank[other]],
                    "direction": DIRECTIONS.index(direction),
                    "microbatch": plan.microbatch[row][:, None, None],
                    "chunk": plan.chunk[row][:, None, None],
                    "seq": seq[:, None, None],
                    "size_bytes": MESSAGE_BYTES,
                    "dtype": 0,
                    "start_ns": start,
                    "end_ns": end,
                    "source": 0,
                    "event_id": self._event(times.step, operation, slot)[:, None, None],
                },
                self._seen[here] & ~is_never(start),
            )

    def _order_of_sends(self) -> IntArray:
        """Return, for each receive, the position of its send among those of the two ranks."""
        program = self._program
        link = program.rank[program.needed] * self._plan.ranks + program.rank[program.receives]
        order = np.lexsort((program.needed, link))
        position = np.empty(len(order), np.int64)
        position[order], _ = _position_in(link[order])
        self._sends_per_step = np.bincount(link)[link] if len(link) else link
        return position

    def _event(self, step: int, operation: IntArray, slot: int) -> IntArray:
        """Return ids that grow with the order of issue on a rank."""
        per_step = len(self._program.kind) + 2
        return (step * per_step + operation) * (2 + self._job.dp_buckets) + slot


def _position_in(key: IntArray) -> tuple[IntArray, IntArray]:
    """Return the position of each item among those of its key, and how many it has; sorted keys."""
    size = np.bincount(key) if len(key) else np.zeros(0, np.int64)
    first = np.cumsum(size) - size
    return np.arange(len(key)) - first[key], size[key]
