"""What NCCL says about its operations in NVTX ranges, for the kernels that they launched.

NCCL opens a range around each call, with communicator and message size as payload. A call
launches its kernel in its own range or, where calls are grouped, in the range of the
outermost ``ncclGroupEnd``; then the kernel is known only if the group had one call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from meshscope.probe.schema.terms import CollectiveKind

from ..files import MAX_RANKS
from ..kernel_names import collective_kind
from ..kineto.chrome_pairs import pair_positions
from ..kineto.events import EventArgs
from .database import IntArray
from .ranges import NvtxEvents, Ranges, innermost

_CALL = re.compile(
    r"nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|All[Tt]o[Aa]ll"
    r"|Gather|Scatter)"
)
_WORDS = {"Bcast": "broadcast", "Send": "send", "Recv": "recv"}
_GROUP_START, _GROUP_END = re.compile("ncclGroupStart"), re.compile("ncclGroupEnd")
_INIT = re.compile(r"ncclCommInit\w*")
_COMMUNICATOR = re.compile(r"NCCL communicator ID|communicator", re.IGNORECASE)
_SIZE = re.compile(r"Message size.*", re.IGNORECASE)
_PEER = re.compile(r"Peer rank", re.IGNORECASE)
_RANK = re.compile(r"Rank", re.IGNORECASE)
_RANKS = re.compile(r"No\. of ranks|nranks", re.IGNORECASE)
_PARTS = frozenset({CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER})
"""Operations of which NCCL states the part of one member."""
_WHOLE = frozenset({CollectiveKind.ALL_REDUCE, CollectiveKind.BROADCAST, CollectiveKind.REDUCE})
GROUPED_TRANSFERS = "coalesced"
"""Name of what a group of several sends and receives has launched."""


@dataclass(frozen=True, slots=True)
class Membership:
    """What the initialisation of a communicator says about the process."""

    communicator: int
    rank: int
    """Number of the process in the communicator."""
    ranks: int


def memberships(nvtx: NvtxEvents, own: Ranges) -> list[Membership]:
    """Return the communicators that a process has joined."""
    inits = own.take(np.isin(own.name, np.fromiter(nvtx.named(_INIT), np.int64)))
    found = []
    for row in inits.row.tolist():
        payload = nvtx.payloads.by_row.get(row, {})
        values = [_value(payload, key) for key in (_COMMUNICATOR, _RANK, _RANKS)]
        communicator, rank, ranks = values
        if communicator is None or rank is None or ranks is None:
            continue
        if rank < ranks <= MAX_RANKS:
            found.append(Membership(communicator, rank, ranks))
    return found


def communicator_name(communicator: int) -> str:
    """Return what a communicator is called as a group."""
    return f"nccl {communicator:#x}"


def kernel_arguments(
    nvtx: NvtxEvents, own: Ranges, time: IntArray, thread: IntArray, sizes: Mapping[int, int]
) -> Iterator[EventArgs]:
    """Yield what is known about each communication kernel; nothing where no call is.

    The element type is not recorded: message sizes are given as elements of one byte, and a
    peer by its number in the communicator.

    Args:
        nvtx: The events of the file.
        own: The ranges of the process.
        time: When the host launched each kernel.
        thread: The thread that launched it.
        sizes: Members of each communicator.
    """
    word_of = {code: match[1] for code, match in nvtx.named(_CALL).items()}
    calls = own.take(np.isin(own.name, np.fromiter(word_of, np.int64)))
    calls = calls.take(np.lexsort((calls.start, calls.thread)))
    direct = innermost(calls, time, thread)
    first, count = _grouped(nvtx, own, calls, time, thread)
    call = np.where(direct >= 0, direct, np.where(count == 1, first, -1))
    for i, place in enumerate(call.tolist()):
        if place >= 0:
            payload = nvtx.payloads.by_row.get(int(calls.row[place]), {})
            yield _arguments(word_of[int(calls.name[place])], payload, sizes)
        else:
            group = calls.name[first[i] : first[i] + count[i]].tolist()
            is_transfer = group and all(word_of[code] in ("Send", "Recv") for code in group)
            yield EventArgs(collective_name=GROUPED_TRANSFERS if is_transfer else None)


def _grouped(
    nvtx: NvtxEvents, own: Ranges, calls: Ranges, time: IntArray, thread: IntArray
) -> tuple[IntArray, IntArray]:
    """Return the first call of the group whose end launched each kernel, and how many it has."""
    begins = own.take(np.isin(own.name, np.fromiter(nvtx.named(_GROUP_START), np.int64)))
    ends = own.take(np.isin(own.name, np.fromiter(nvtx.named(_GROUP_END), np.int64)))
    opened, closed = pair_positions(
        np.concatenate([begins.thread, ends.thread]),
        np.concatenate([begins.start, ends.start]),
        np.arange(len(begins) + len(ends)) < len(begins),
    )
    begin_of = np.full(len(ends) + 1, -1, dtype=np.int64)
    begin_of[closed - len(begins)] = begins.start[opened]
    at = innermost(ends, time, thread)
    low, high = (np.zeros(len(time), dtype=np.int64) for _ in range(2))
    is_grouped = (at >= 0) & (begin_of[at] >= 0)
    for key in np.unique(thread[is_grouped]).tolist():
        asked = is_grouped & (thread == key)
        bounds = np.searchsorted(calls.thread, [key, key + 1])
        starts = calls.start[bounds[0] : bounds[1]]
        low[asked] = bounds[0] + np.searchsorted(starts, begin_of[at[asked]])
        high[asked] = bounds[0] + np.searchsorted(starts, ends.start[at[asked]])
    return low, high - low


def _arguments(word: str, payload: Mapping[str, int], sizes: Mapping[int, int]) -> EventArgs:
    communicator, size, peer = (_value(payload, key) for key in (_COMMUNICATOR, _SIZE, _PEER))
    args = EventArgs(collective_name=_WORDS.get(word, word))
    if communicator is not None:
        args.group_name = communicator_name(communicator)
    kind = collective_kind(word)
    if size is not None and kind in _PARTS:
        ranks = sizes.get(communicator if communicator is not None else -1)
        size = None if ranks is None else size * ranks
    elif kind not in _WHOLE and word not in ("Send", "Recv"):
        size = None
    if size is not None:
        args.in_elements = args.out_elements = size
        args.dtype = "byte"
    if peer is not None:
        args.source_rank = args.destination_rank = peer
    return args


def _value(payload: Mapping[str, int], pattern: re.Pattern[str]) -> int | None:
    return next((value for name, value in payload.items() if pattern.fullmatch(name)), None)
