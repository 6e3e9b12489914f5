"""The passes of one step of one pipeline as columns, with what each of them needs."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from meshscope.probe.schema.terms import ScheduleKind, SpanKind

from ...tables.arrays import IntArray
from .passes import PassKind
from .schedule_records import rank_orders

PASS_KINDS = (
    SpanKind.FORWARD,
    SpanKind.BACKWARD,
    SpanKind.BACKWARD_INPUT,
    SpanKind.BACKWARD_WEIGHT,
)
"""What the codes in ``Plan.kind`` stand for, in the order of ``PassKind``."""
_FORWARD, _BACKWARD, _INPUT, _WEIGHT = range(len(PASS_KINDS))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All passes of a step, rank by rank, in program order; columns of equal length."""

    schedule: ScheduleKind
    ranks: int
    microbatches: int
    chunks: int
    rank: IntArray
    """Pipeline rank."""
    kind: IntArray
    """Position in ``PASS_KINDS``."""
    microbatch: IntArray
    chunk: IntArray
    stage: IntArray
    """Stage in model order, 0 .. ranks * chunks - 1."""
    needs: IntArray
    """Row of the pass whose output it receives; -1 where it needs only what its rank has."""
    crosses: npt.NDArray[np.bool_]
    """Whether that output comes from another rank."""

    def __len__(self) -> int:
        """Return the number of passes."""
        return len(self.rank)

    @property
    def is_first(self) -> npt.NDArray[np.bool_]:
        """Return which passes are the first of their rank."""
        return np.append(True, self.rank[1:] != self.rank[:-1])

    @property
    def is_last(self) -> npt.NDArray[np.bool_]:
        """Return which passes are the last of their rank."""
        return np.append(self.is_first[1:], True)


def make_plan(schedule: ScheduleKind, ranks: int, microbatches: int, chunks: int = 1) -> Plan:
    """Return the passes of one step.

    A forward pass needs that of the stage before, a backward pass (of the inputs)
    that of the stage after; the last stage begins its backward pass with what its
    own forward pass left.

    Raises:
        ConfigError: The schedule is not generated here, or does not fit the sizes.
    """
    orders = rank_orders(schedule, ranks, microbatches, chunks)
    codes = {kind: code for code, kind in enumerate(PassKind)}
    rows = [
        (rank, codes[kind], microbatch, stage // ranks, stage)
        for rank, order in enumerate(orders)
        for kind, stage, microbatch in order
    ]
    rank, kind, microbatch, chunk, stage = np.array(rows, dtype=np.int64).T
    needs = _needs(kind, microbatch, stage, ranks * chunks)
    return Plan(
        schedule=schedule,
        ranks=ranks,
        microbatches=microbatches,
        chunks=chunks,
        rank=rank,
        kind=kind,
        microbatch=microbatch,
        chunk=chunk,
        stage=stage,
        needs=needs,
        crosses=(needs >= 0) & (rank[needs] != rank),
    )


def _needs(kind: IntArray, microbatch: IntArray, stage: IntArray, stages: int) -> IntArray:
    # The stage after may do whole backwards where this one splits them, and the other way round.
    sends = kind != _WEIGHT
    back = (kind != _FORWARD).astype(np.int64)
    row_of = np.full((2, stages, int(microbatch.max()) + 1), -1)
    row_of[back[sends], stage[sends], microbatch[sends]] = np.flatnonzero(sends)
    source = np.where(kind == _FORWARD, stage - 1, stage + 1)
    has = (source >= 0) & (source < stages) & sends
    return np.where(has, row_of[back, np.clip(source, 0, stages - 1), microbatch], -1)
