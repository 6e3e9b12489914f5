"""Which rank each process of an Nsight export is.

Nsight knows processes and devices, not ranks. What says the rank, in this order: its
record of MPI ranks; a name of the process, of a thread or of an NVTX event that is
``rank N``; the file name, if the file has one process; the largest communicator of NCCL
that the process has joined. Ranks are never numbered by the order of anything.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ...wording.message import Message, message
from ..files import MAX_RANKS, rank_in_name
from .activities import Activities
from .database import Database
from .nccl import Membership
from .ranges import NvtxEvents, process_of

_SAYS_RANK = re.compile(r"(?:global[ _-]?)?rank[ _:#=-]*(\d{1,9})", re.IGNORECASE)
_PID_SHIFT, _PID_MASK = 24, 0xFFFFFF


@dataclass(frozen=True, slots=True)
class NumberedProcess:
    """A process with the rank that it is, None where nothing says it."""

    process: int
    rank: int | None
    evidence: Message | None
    """On what the number rests; None where the rank was recorded as such."""


def number_processes(
    database: Database,
    nvtx: NvtxEvents,
    label: str,
    joined: Mapping[int, Sequence[Membership]],
) -> list[NumberedProcess]:
    """Return the processes of a file in their order, with their ranks.

    Args:
        database: The file.
        nvtx: Its NVTX events.
        label: Where it lies and how it is called.
        joined: The communicators that each process has joined; its keys are the processes.

    Raises:
        TraceFormatError: The file is damaged.
    """
    recorded = _of_mpi(database)
    said = _said(database, nvtx)
    by_file = rank_in_name(label) if len(joined) == 1 else None
    found = []
    for process, members in joined.items():
        largest = max(members, key=lambda one: one.ranks, default=None)
        rank, evidence = _first(
            (_only(recorded.get(process, ())), None),
            (_only(said.get(process, ())), None),
            (by_file, message("assumed.rank_of_file_name")),
            (
                None if largest is None else largest.rank,
                message(
                    "assumed.rank_in_communicator", ranks=0 if largest is None else largest.ranks
                ),
            ),
        )
        found.append(NumberedProcess(process, rank, evidence))
    return found


def number_by_device(
    found: Sequence[NumberedProcess], database: Database, device: Activities
) -> list[NumberedProcess]:
    """Return the processes of a lone file numbered by their devices, if no rank is known.

    On one node the launchers of PyTorch give each rank the device of its number. Only
    processes with one device each, all different, are numbered.

    Raises:
        TraceFormatError: The file is damaged.
    """
    if any(one.rank is not None for one in found):
        return list(found)
    if len(found) == 1:
        evidence = message("assumed.rank_of_lone_file")
        return [NumberedProcess(found[0].process, 0, evidence)]
    own = device.columns
    physical = _physical_devices(database)
    used: dict[int, set[int]] = defaultdict(set)
    pairs = np.unique(np.column_stack([own["process"], own["device"]]), axis=0)
    for process, ordinal in pairs.tolist():
        pid = process >> _PID_SHIFT & _PID_MASK
        used[process].add(physical.get((pid, ordinal), ordinal))
    devices = [_only(used[one.process]) for one in found]
    known = {one for one in devices if one is not None and 0 <= one < MAX_RANKS}
    if len(known) < len(found):
        return list(found)
    evidence = message("assumed.rank_of_device")
    return [
        NumberedProcess(one.process, rank, evidence)
        for one, rank in zip(found, devices, strict=True)
    ]


def _of_mpi(database: Database) -> dict[int, set[int]]:
    columns = database.integers("MPI_RANKS", ("globalTid", "rank"))
    found: dict[int, set[int]] = defaultdict(set)
    for process, rank in zip(
        process_of(columns["globalTid"]).tolist(), columns["rank"].tolist(), strict=True
    ):
        if 0 <= rank < MAX_RANKS:
            found[process].add(rank)
    return found


def _said(database: Database, nvtx: NvtxEvents) -> dict[int, set[int]]:
    texts: list[tuple[object, object]] = [
        *nvtx.said,
        *database.pairs("PROCESSES", "globalPid", "name"),
    ]
    threads = database.integers("ThreadNames", ("globalTid", "nameId"))
    names = database.strings(threads["nameId"])
    processes = process_of(threads["globalTid"]).tolist()
    texts += [
        (process, names.get(key, ""))
        for process, key in zip(processes, threads["nameId"].tolist(), strict=True)
    ]
    found: dict[int, set[int]] = defaultdict(set)
    for process, text in texts:
        match = _SAYS_RANK.fullmatch(str(text))
        if isinstance(process, int) and match and int(match[1]) < MAX_RANKS:
            found[process].add(int(match[1]))
    return found


def _physical_devices(database: Database) -> dict[tuple[int, int], int]:
    """Return the device of the machine for each process id and number in that process."""
    columns = database.integers("TARGET_INFO_CUDA_DEVICE", ("pid", "cudaId", "gpuId"))
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return {(pid, ordinal): gpu for pid, ordinal, gpu in rows if 0 <= gpu < MAX_RANKS}


def _only(values: Iterable[int]) -> int | None:
    """Return the value if there is just one."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _first(*candidates: tuple[int | None, Message | None]) -> tuple[int | None, Message | None]:
    return next((pair for pair in candidates if pair[0] is not None), (None, None))
