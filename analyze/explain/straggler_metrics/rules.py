"""The published dependency rules: what an operation of a pipeline waits for.

An operation starts when all that it depends on has ended; one that communicates
ends a wire time after the last of its group has started. Rules, for each worker:

- computation runs in the observed order; each kind of transfer is a stream of its own;
- a receive comes before its computation and after the previous one of its
  direction; a send comes after its computation;
- the first backward transfers wait for the forward two places before the first backward;
- gathers and reduce-scatters of the replicas are one stream; the last gather of a
  chunk comes before the chunk's first forward;
- tail: last computation, gc, layernorm, embedding, reduce-scatters, clip, optimizer. Where
  gradients are reduced while computing (there is a separate all-reduce), the first reduce-scatter of
  a chunk waits for its last backward, and the tail waits for the last reduce-scatter.

Source: the dependency model of StragglerAnalysis (OSDI 2025), as far as it goes; an
operation that a job does not have is passed over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

from . import optypes as op

CLOCK_ERROR_S = 5e-5
"""By how much a transfer may lie outside the computations that it serves."""

_AHEAD = {op.FORWARD_SEND: 1, op.FORWARD_RECV: -1, op.BACKWARD_SEND: -1, op.BACKWARD_RECV: 1}
"""Stages (and chunks of the model) from an end of a transfer to its peer."""
_SERVES = {
    op.FORWARD_SEND: op.FORWARD,
    op.FORWARD_RECV: op.FORWARD,
    op.BACKWARD_SEND: op.BACKWARD,
    op.BACKWARD_RECV: op.BACKWARD,
}
_RECEIVES = (op.FORWARD_RECV, op.BACKWARD_RECV)
_PAIRS = ((op.FORWARD_SEND, op.FORWARD_RECV), (op.BACKWARD_SEND, op.BACKWARD_RECV))


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of one replica in one step; its position in the list is its id."""

    stage: int
    optype: str
    seq: int
    chunk: int
    """Model chunk of the worker, -1 where it has none."""
    global_chunk: int
    """Model chunk of the whole model, -1 where it has none."""
    start_s: float
    end_s: float


@dataclass(slots=True)
class Dependencies:
    """What waits for what in one replica."""

    edges: list[tuple[int, int]] = field(default_factory=list)
    """From an operation to one that starts after its end."""
    groups: list[tuple[int, ...]] = field(default_factory=list)
    """Operations that communicate with each other."""
    replicated: list[tuple[int, ...]] = field(default_factory=list)
    """The same, where the group goes over all replicas."""
    unmatched: int = 0
    """Transfers without a peer or without a computation where there should be one."""

    def chain(self, operations: Iterable[int]) -> None:
        """Let each operation wait for the one before it."""
        self.edges.extend(pairwise(operations))


class _Worker:
    """The operations of one stage, each type in the order of time."""

    def __init__(self, stage: int, operations: Sequence[Operation], ids: Sequence[int]) -> None:
        self.stage = stage
        self.operations = operations
        self._of: dict[str, list[int]] = {}
        for i in sorted(ids, key=self._when):
            self._of.setdefault(operations[i].optype, []).append(i)

    def _when(self, i: int) -> tuple[float, int, str]:
        own = self.operations[i]
        return own.start_s, own.seq, own.optype

    def timed(self, *optypes: str) -> list[int]:
        """Return the operations of some types in the order of their starts."""
        if len(optypes) == 1:
            return self._of.get(optypes[0], [])
        return sorted((i for name in optypes for i in self.timed(name)), key=self._when)

    def numbered(self, optype: str) -> list[int]:
        """Return the operations of one type by their sequence number."""
        return sorted(self.timed(optype), key=lambda i: self.operations[i].seq)

    def of_chunk(self, optype: str, chunk: int) -> list[int]:
        """Return the computations of a chunk, of all chunks where the number is -1."""
        return [i for i in self.timed(optype) if chunk < 0 or self.operations[i].chunk == chunk]


def dependencies(operations: Sequence[Operation]) -> Dependencies:
    """Return what the operations of one replica wait for, from one recorded step of it."""
    ids: dict[int, list[int]] = {}
    for i, own in enumerate(operations):
        ids.setdefault(own.stage, []).append(i)
    workers = [_Worker(stage, operations, ids[stage]) for stage in sorted(ids)]
    overlapped = any(worker.timed(op.SEPARATE) for worker in workers)
    found = Dependencies()
    for worker in workers:
        found.chain(worker.timed(*op.COMPUTE))
        for optype in op.TRANSFERS:
            found.chain(worker.timed(optype))
        found.chain(worker.timed(op.GATHER, op.SCATTER))
        _first_backward(found, worker)
        _gathers(found, worker)
        if overlapped:
            _scatters(found, worker)
        _tail(found, worker, overlapped=overlapped)
        found.replicated += [(i,) for name in op.REPLICATED for i in worker.timed(name)]
    _transfers(found, workers)
    _pipeline_groups(found, workers)
    return found


def _first_backward(found: Dependencies, worker: _Worker) -> None:
    order = worker.timed(*op.COMPUTE)
    backward = worker.timed(op.BACKWARD)
    first = order.index(backward[0]) if backward else 0
    if first < 2:
        return
    for optype in (op.BACKWARD_RECV, op.BACKWARD_SEND):
        found.edges += [(order[first - 2], i) for i in worker.numbered(optype)[:1]]


def _gathers(found: Dependencies, worker: _Worker) -> None:
    """Let the first forward of each chunk wait for the last gather of its parameters."""
    last = {worker.operations[i].chunk: i for i in worker.numbered(op.GATHER)}
    for chunk, gather in last.items():
        found.edges += [(gather, i) for i in worker.of_chunk(op.FORWARD, chunk)[:1]]


def _scatters(found: Dependencies, worker: _Worker) -> None:
    """Let the first reduce-scatter of each chunk wait for its last backward."""
    seen = set()
    for scatter in worker.numbered(op.SCATTER):
        chunk = worker.operations[scatter].chunk
        backward = worker.of_chunk(op.BACKWARD, chunk)
        if backward and chunk not in seen:
            found.edges.append((_last_to_end(worker, backward), scatter))
        seen.add(chunk)


def _tail(found: Dependencies, worker: _Worker, *, overlapped: bool) -> None:
    compute = worker.timed(*op.COMPUTE)
    start = [_last_to_end(worker, compute)] if compute else []
    start += worker.numbered(op.GC)
    found.chain(start)
    before = start[-1:]
    if overlapped:
        before += worker.numbered(op.SCATTER)[-1:]
    reduced = op.SEPARATE if overlapped else op.SCATTER
    kinds = (op.LAYERNORM, op.EMBEDDING, reduced, op.CLIP, op.OPTIMIZER)
    rest = [i for kind in kinds for i in worker.numbered(kind)]
    found.edges += [(i, rest[0]) for i in before if rest]
    found.chain(rest)


def _last_to_end(worker: _Worker, ids: Sequence[int]) -> int:
    return max(ids, key=lambda i: worker.operations[i].end_s)


def _transfers(found: Dependencies, workers: Sequence[_Worker]) -> None:
    """Tie transfers to the computations that they serve, and to their peers."""
    stages = max(worker.stage for worker in workers) + 1
    chunks = 1 + max(own.chunk for own in workers[0].operations)
    last_chunk = max(chunks, 1) * stages - 1
    carrying: dict[tuple[int, str], list[int]] = {}
    for worker in workers:
        for optype in op.TRANSFERS:
            served = _serve(found, worker, optype)
            carrying[worker.stage, optype] = [
                i
                for i, compute in served
                if 0 <= worker.operations[compute].global_chunk + _AHEAD[optype] <= last_chunk
            ]
            alone = set(worker.timed(optype)) - set(carrying[worker.stage, optype])
            found.groups += [(i,) for i in sorted(alone)]
    for send, receive in _PAIRS:
        for worker in workers:
            peer = (worker.stage + _AHEAD[send]) % stages
            sent = carrying[worker.stage, send]
            for pair in zip_longest(sent, carrying.get((peer, receive), [])):
                found.groups.append(tuple(i for i in pair if i is not None))
                found.unmatched += None in pair


def _serve(found: Dependencies, worker: _Worker, optype: str) -> list[tuple[int, int]]:
    """Return the transfers of one kind with their computations, and add the edges.

    The k-th transfer serves the k-th computation. Transfers that begin after the last
    computation began (receives), or end before the first one ended (sends), carried
    nothing. An interleaved schedule may leave out the first receive.
    """
    compute = worker.numbered(_SERVES[optype])
    own = worker.operations
    if not compute:
        return []
    receives = optype in _RECEIVES
    if receives:
        latest = max(own[i].start_s for i in compute) + CLOCK_ERROR_S
        used = [i for i in worker.timed(optype) if own[i].start_s <= latest]
    else:
        earliest = min(own[i].end_s for i in compute) - CLOCK_ERROR_S
        used = [i for i in worker.timed(optype) if own[i].end_s >= earliest]
    skipped = int(receives and len(used) + 1 == len(compute))
    found.unmatched += len(used) not in (0, len(compute) - 1, len(compute))
    served = list(zip(used, compute[skipped:], strict=False))
    for place, (transfer, computation) in enumerate(served, skipped):
        if not receives:
            found.edges.append((computation, transfer))
            continue
        found.edges.append((transfer, computation))
        if place:
            found.edges.append((compute[place - 1], transfer))
    return served


def _pipeline_groups(found: Dependencies, workers: Sequence[_Worker]) -> None:
    """Group the all-reduce of the embedding (first and last stage) and the gradient clip (all)."""
    ends = workers[:1] if len(workers) == 1 else [workers[0], workers[-1]]
    for optype, members, groups in (
        (op.EMBEDDING, ends, found.groups),
        (op.CLIP, workers, found.replicated),
    ):
        rows = zip_longest(*(worker.numbered(optype) for worker in members))
        groups += [tuple(i for i in row if i is not None) for row in rows]
