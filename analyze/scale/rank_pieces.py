"""The summaries of a rank that the probe recorded and that has no room: made from some of its steps at a time.

A first reading unpacks each block once: which steps are analysed, and where their records lie, is then
known as if the whole rank had been read. Each piece reads its steps with their neighbours, and gives
the rows of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from msgspec.structs import replace

from meshscope.probe.reader.attempts import steps_before
from meshscope.probe.reader.part_sizes import unpacked_bytes
from meshscope.probe.reader.rank_records import Sieve
from meshscope.probe.reader.step_index import StepIndex
from meshscope.probe.reader.step_sieve import StepSieve
from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.schema.manifest import part_directories
from meshscope.probe.schema.tables import TABLES

from ..align.steps.windows import step_windows
from ..load.load import load_trace
from ..tables.arrays import BoolArray, IntArray
from ..tables.trace import Trace
from ..wording.message import message
from .independent_ranks import taken_together
from .summary import SCHEMA, rows_of
from .worker_memory import UNPACKED_FACTOR, looking_bytes, require_room

STEP_BYTES = 1_500
"""What a step takes while its rank is read in pieces: its length, and that it communicated."""
LEAST_PIECE_BYTES = 10_000_000
"""What a piece may take at least: smaller ones cost time for their number, and a process has this to spare."""
_AXIS_KEYS = {"collective": ("group_id", "kind"), "p2p": ("group_id", "peer")}
"""What decides along which axis of the mesh an operation lies."""
_ALL_ROWS = 1 << 62
_NO_STEPS = (0, -1)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a rank, and how many steps of the job lie before it."""

    directory: Path
    index: StepIndex
    before: int | None
    """None where it is left out."""

    @property
    def places(self) -> int:
        """Return how many steps it has, those that did not end counted as one."""
        return len(self.index.rows)


class RankPieces:
    """A rank whose steps are read some at a time."""

    def __init__(self, run: Path, rank: int, room_bytes: float, limit_bytes: float) -> None:
        """Read the whole rank once, block by block, and share its analysed steps out.

        Args:
            run: A run that the probe recorded.
            rank: The rank.
            room_bytes: Memory that there is for records.
            limit_bytes: Memory of the process, for the refusal.

        Raises:
            ConfigError: A step with its neighbours has no room.
            RunDirectoryError: The records cannot be read.
        """
        self._run, self._rank = run, rank
        self._axes: dict[str, pd.Series] | None = None
        directories = [*part_directories(run)[rank].values()]
        indices = {directory: StepIndex() for directory in directories}
        own = self._own(_NO_STEPS, indices)
        self._windows = None if own is None else step_windows(own)
        del own
        self._parts = _parts(indices, rank)
        unpacked = sum(map(unpacked_bytes, directories))
        self._sizes = _Sizes(self._parts, unpacked, self._analysed)
        room_bytes -= looking_bytes(unpacked) + len(self._sizes.number) * STEP_BYTES
        if all(part.index.is_in_order for part in self._parts):
            needed = self._sizes.largest_bytes
            size_bytes = int(needed / UNPACKED_FACTOR)
            words = message("refused.steps_need_memory", size_bytes=size_bytes)
        else:
            needed = unpacked * UNPACKED_FACTOR
            words = message("refused.rank_needs_memory_unpacked", size_bytes=unpacked)
        if len(self._sizes.steps):
            require_room(needed, room_bytes, limit_bytes, words)
        self.ranges = tuple(self._sizes.ranges(max(room_bytes, LEAST_PIECE_BYTES)))

    @property
    def _analysed(self) -> IntArray:
        if self._windows is None or not self._windows.has_marks:
            return np.zeros(0, np.int64)
        return self._windows.steps

    def rows(self, first: int, end: int) -> pa.Table:
        """Return the rows of one of the ``ranges``, the same as those of the whole rank."""
        trace = self.trace(first, end)
        if trace is None or self._windows is None:
            return SCHEMA.empty_table()
        is_wanted = self._sizes.around(first, end)
        after_far = [part.index.after_far(mask) for part, mask in _by_part(self._parts, is_wanted)]
        read = self._sizes.number[is_wanted | np.concatenate(after_far)]
        frame = self._windows.frame
        frame = frame[frame["step"].isin(read)].reset_index(drop=True)
        rows = rows_of(trace, replace(self._windows, frame=frame))
        is_own = np.isin(rows["step"].to_numpy(), self._sizes.steps[first:end])
        return rows.filter(pa.array(is_own))

    def trace(self, first: int, end: int) -> Trace | None:
        """Return what the rank shows alone in one of the ``ranges``, with the steps beside them.

        Along which axis a group lies, where only its traffic says so, the first of the ranges that is read
        says for all: else a range without some communication would say otherwise.
        """
        is_wanted = self._sizes.around(first, end)
        steps = self._sizes.steps[first:end]
        found = self._own((int(steps[0]) - 1, int(steps[-1]) + 1), _sieves(self._parts, is_wanted))
        if found is None:
            return None
        if self._axes is None:
            self._axes = _axes_of(found)
        return _with_axes(found, self._axes)

    def _own(self, steps: tuple[int, int], sieves: Mapping[Path, Sieve]) -> Trace | None:
        """Return what the rank shows alone of what is kept of it; None without steps."""
        wanted = Wanted(
            most_rows=_ALL_ROWS,
            ranks=(self._rank,),
            steps=steps,
            sieves=sieves,
            in_depth=False,
        )
        return next(taken_together(load_trace(self._run, wanted=wanted), [self._rank]), None)


def _axes_of(trace: Trace) -> dict[str, pd.Series]:
    """Return the axis of the operations of a capture by what it follows from."""
    found = {}
    for name, keys in _AXIS_KEYS.items():
        rows = trace.frame(name)[[*keys, "axis"]].drop_duplicates(list(keys))
        found[name] = (
            rows.astype(dict.fromkeys(keys, str)).set_index(list(keys))["axis"].astype(str)
        )
    return found


def _with_axes(trace: Trace, axes: Mapping[str, pd.Series]) -> Trace:
    """Return a capture with such axes; what they do not name keeps its own."""
    changes = {}
    for name, own in _axes_of(trace).items():
        wanted = axes[name].reindex(own.index).fillna(own)
        if not wanted.equals(own):
            rows = trace.frame(name)[list(_AXIS_KEYS[name])].astype(str)
            axis = wanted.reindex(pd.MultiIndex.from_frame(rows)).to_numpy()
            table = trace.tables[name]
            at = table.column_names.index("axis")
            changes[name] = TABLES[name].conform(table.set_column(at, "axis", pa.array(axis)))
    return trace.with_tables(changes) if changes else trace


def _parts(indices: Mapping[Path, StepIndex], rank: int) -> list[_Part]:
    read = {path: index for path, index in indices.items() if index.records is not None}
    records = [index.records for index in read.values() if index.records is not None]
    befores = steps_before({rank: records})[rank]
    return [
        _Part(path, index, before)
        for (path, index), before in zip(read.items(), befores, strict=True)
    ]


def _sieves(parts: Sequence[_Part], is_wanted: BoolArray) -> dict[Path, StepSieve]:
    """Return what keeps some places of all parts, one behind the other."""
    return {
        part.directory: StepSieve(part.index, mask) for part, mask in _by_part(parts, is_wanted)
    }


def _by_part(parts: Sequence[_Part], is_wanted: BoolArray) -> list[tuple[_Part, BoolArray]]:
    """Return each part with what is wanted of its places."""
    ends = np.cumsum([part.places for part in parts])[:-1]
    return list(zip(parts, np.split(is_wanted, ends), strict=True))


class _Sizes:
    """What the analysed steps of a rank take, each with its neighbours.

    Attributes:
        number: The number of each place of all parts in the run; -1 for what did not end.
        steps: The analysed steps.
    """

    def __init__(self, parts: Sequence[_Part], unpacked: int, analysed: IntArray) -> None:
        self.number = np.concatenate([_numbers(part) for part in parts])
        rows = np.concatenate([part.index.rows for part in parts])
        self._bytes = rows * (UNPACKED_FACTOR * unpacked / max(int(rows.sum()), 1))
        self._place = np.flatnonzero(np.isin(self.number, analysed))
        self.steps: IntArray = self.number[self._place]
        total = np.append(0.0, np.cumsum(self._bytes))
        first, end = self._place - 1, np.minimum(self._place + 2, len(rows))
        self._alone = total[end] - total[np.maximum(first, 0)]
        before = np.append(0, end[:-1])
        self._more = total[end] - total[np.maximum(np.maximum(first, 0), before)]

    @property
    def largest_bytes(self) -> float:
        """Return what the largest step takes, with its neighbours."""
        return float(self._alone.max(initial=0.0))

    def ranges(self, room_bytes: float) -> Iterator[tuple[int, int]]:
        """Yield the first of some steps and the one behind the last, as many as have room."""
        held = np.cumsum(self._more)
        first = 0
        while first < len(self.steps):
            most = room_bytes - self._alone[first] + held[first]
            end = max(int(np.searchsorted(held, most, side="right")), first + 1)
            yield first, end
            first = end

    def around(self, first: int, end: int) -> BoolArray:
        """Return which places are read for some steps."""
        is_own = np.zeros(len(self.number), dtype=bool)
        is_own[self._place[first:end]] = True
        return np.asarray(np.convolve(is_own, np.ones(3), "same") > 0)


def _numbers(part: _Part) -> IntArray:
    if part.before is None:
        return np.full(part.places, -1)
    return np.append(part.index.number + part.before, -1)
