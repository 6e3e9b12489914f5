"""Several cycles of one profiler: a schedule that repeats writes a file of each rank for each.

Between two cycles nothing was recorded, so they are windows of their own, and one is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import listed

from ...wording.limits import Limit
from ...wording.message import Message, message


class CycleFile(Protocol):
    """What is needed of one file."""

    @property
    def label(self) -> str:
        """Return the name of the file."""

    @property
    def rank(self) -> int:
        """Return its rank."""

    @property
    def numbers_steps(self) -> bool:
        """Return whether it says the numbers of its steps."""

    @property
    def tables(self) -> dict[str, pa.Table]:
        """Return its tables, ``step`` among them."""


_File = TypeVar("_File", bound=CycleFile)


class _Cycle(NamedTuple):
    name: str
    files: list[CycleFile]


def one_cycle(files: Sequence[_File], wanted: int | None) -> tuple[list[_File], list[Limit]]:
    """Return the files of one cycle, one of each rank, and a sentence on the others.

    The last of the cycles with most ranks, because the first ones hold what happens once.
    Cycles are distinguished by their steps, or by the time where a file does not number them.

    Args:
        files: All files of the job.
        wanted: Which cycle in order of time, from 1; None for the choice above.

    Raises:
        TraceFormatError: Two files of one rank are of the same time, or there is no such cycle.
    """
    repeated = [rank for rank, count in Counter(file.rank for file in files).items() if count > 1]
    if not repeated and wanted is None:
        return list(files), []
    cycles = _cycles(files)
    for cycle in cycles:
        _refuse_twice(cycle.files)
    if wanted is not None and not 1 <= wanted <= len(cycles):
        raise TraceFormatError(
            message("refused.no_cycle", cycle=wanted, cycles=len(cycles), named=_named(cycles)),
            where=files[0].label,
            remedy=message("advice.cycle", cycles=len(cycles)),
        )
    most = max(range(len(cycles)), key=lambda at: (len(cycles[at].files), at))
    at = most if wanted is None else wanted - 1
    kept = {id(file) for file in cycles[at].files}
    chosen = [file for file in files if id(file) in kept]
    if len(cycles) == 1:
        return chosen, []
    return chosen, [message("scope.cycle", cycles=len(cycles), named=_named(cycles), read=at + 1)]


def _cycles(files: Sequence[CycleFile]) -> list[_Cycle]:
    """Return the files of each cycle in order: those of which the ranges touch."""
    by_steps = all(file.numbers_steps and file.tables["step"].num_rows for file in files)
    ranges = sorted(
        ((*(_steps(file) if by_steps else _times(file)), file) for file in files),
        key=lambda found: found[:2],
    )
    parts: list[list[tuple[int, int, CycleFile]]] = []
    for found in ranges:
        if not parts or found[0] > max(last for _, last, _ in parts[-1]):
            parts.append([])
        parts[-1].append(found)
    return [_Cycle(_name(part, by_steps=by_steps), [one[2] for one in part]) for part in parts]


def _name(part: Sequence[tuple[int, int, CycleFile]], *, by_steps: bool) -> str:
    first, last = part[0][0], max(one[1] for one in part)
    if not by_steps:
        return f"{(last - first) / 1e6:.0f} ms"
    return f"step {first}" if first == last else f"steps {first}-{last}"


def _steps(file: CycleFile) -> tuple[int, int]:
    """Return the first and the last step of a file."""
    number = file.tables["step"]["step"]
    return pc.min(number).as_py(), pc.max(number).as_py()


def _times(file: CycleFile) -> tuple[int, int]:
    """Return when a file begins and ends, ns."""
    step = file.tables["step"]
    if not step.num_rows:
        return 0, 0
    begin: int = pc.min(step["start_ns"]).as_py()
    return begin, pc.max(pc.add(step["start_ns"], step["dur_ns"])).as_py()


def _named(cycles: Sequence[_Cycle]) -> str:
    return listed(f"{at}: {cycle.name}" for at, cycle in enumerate(cycles, 1))


def _refuse_twice(files: Sequence[CycleFile]) -> None:
    """Refuse two files of one rank and the same time.

    Raises:
        TraceFormatError: There are some.
    """
    seen: dict[int, str] = {}
    for file in sorted(files, key=lambda file: file.label):
        other = seen.setdefault(file.rank, file.label)
        if other != file.label:
            raise TraceFormatError(
                message("refused.rank_twice_in_time", rank=file.rank, other=other),
                where=file.label,
                remedy=_apart(file.label, other),
            )


def _apart(label: str, other: str) -> Message:
    """Return what to do about two files of one rank."""
    folders = sorted({str(Path(one.partition("!")[0]).parent) for one in (label, other)})
    if len(folders) == 1:
        return message("advice.file_of_each_rank")
    return message("advice.folder_of_each_job", folder=folders[0], other=folders[1])
