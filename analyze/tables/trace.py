"""A loaded capture: the run, its hosts, its groups and its tables. No analysis lives here.

``kernel`` and ``op`` have a row for every event of a profiler and may be on disk.
Analyses of them go rank by rank (``rank_frame``), so that memory holds the rows of one
rank; ``frame`` and ``tables`` give all ranks at once and are for the other tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES
from meshscope.probe.schema.terms import Axis

from ..wording.limits import Limit
from .capabilities import CAPABILITIES, OWN, Capabilities
from .stored_tables import RankChange, StoredTable, Tables, let_go


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One network card of a host."""

    name: str
    socket: int | None
    """Which socket it hangs on; None where that is not stated."""
    bytes_per_s: float | None
    ranks: tuple[int, ...]
    """Who sends through it; empty where all ranks of the host do."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    name: str
    ranks: tuple[int, ...]
    sockets: tuple[tuple[int, ...], ...] = ()
    """Ranks by socket of their device; empty where that is not stated."""
    cards: tuple[Card, ...] = ()

    def socket_of(self, rank: int) -> int | None:
        """Return the socket of the device of a rank; None where that is not stated."""
        return next((at for at, ranks in enumerate(self.sockets) if rank in ranks), None)

    def cards_of(self, rank: int) -> tuple[Card, ...]:
        """Return the cards that a rank sends through."""
        return tuple(card for card in self.cards if not card.ranks or rank in card.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Tables of one run, as far as they could be read.

    Every table conforms to its declaration in ``probe.schema.tables``; a table
    that the capture does not have is empty.
    """

    path: Path
    """Where it was read from."""
    run: Mapping[str, object]
    """The one row of the ``run`` table; unknown values are None."""
    layout: ParallelLayout | None
    """The mesh, or None where it is not known."""
    ranks: tuple[int, ...]
    """Ranks that are in the capture."""
    tables: Mapping[str, pa.Table]
    """Arrow tables by name, ranks concatenated; those on disk are read anew at every access."""
    limits: tuple[Limit, ...] = ()
    """What is missing or damaged."""
    origin: str = OWN
    """Which program wrote the input: ``meshscope``, ``kineto``, ``ndtimeline`` …"""
    per_step_clock: bool = False
    """True where each step has its own time origin, so that steps cannot be chained."""
    clocks: Mapping[int, str] = field(default_factory=dict)
    """Which clock each rank read, where that is known; see ``clock_of``."""
    machines: tuple[Machine, ...] = ()
    """Hosts as a topology file states them; empty where it states none."""
    local_ranks: Mapping[int, int] = field(default_factory=dict)
    """Place of each rank among those of its host, where its launcher gave it."""
    kernel_steps: Mapping[int, tuple[int, ...]] | None = None
    """Steps of each rank of which the kernels are known, where only a part of the capture was traced
    in depth; None where what it has of kernels is of the whole capture."""
    is_whole: bool = True
    """Whether the records of all steps were read; of a large run those of some are."""
    chosen: tuple[int, int] | None = None
    """First and last of the steps that were asked for; None where all are."""
    capabilities: Capabilities = field(init=False, repr=False)
    """What captures of the program that wrote it can show."""
    _frames: dict[str | tuple[str, int], pd.DataFrame] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Look up what captures of the program that wrote it can show."""
        found = CAPABILITIES.get(self.origin, Capabilities())
        object.__setattr__(self, "capabilities", found)

    def clock_of(self, rank: int) -> str:
        """Return the id of the clock that a rank read; one of its own where that is not known."""
        return self.clocks.get(rank, f"rank {rank}")

    def host_of(self, rank: int) -> str | None:
        """Return the host of a rank: the stated one, else that whose clock it read; None if unknown."""
        stated = next((own.name for own in self.machines if rank in own.ranks), None)
        return stated or self.clocks.get(rank)

    def frame(self, name: str) -> pd.DataFrame:
        """Return one table as a DataFrame; categories stay categories.

        Nullable integers become ``Int64``, because a time of unix size does not
        survive a float. The frame is made once and shared: copy it before changing it.
        """
        if name not in self._frames:
            table = self.tables.get(name)
            self._frames[name] = _to_frame(TABLES[name].empty() if table is None else table)
            let_go(self.tables, name)
        return self._frames[name]

    def frame_of(self, name: str, ranks: Collection[int]) -> pd.DataFrame:
        """Return the rows of some ranks of a table in memory, as ``frame`` would, with another index."""
        if name in self._frames or name not in self.tables:
            frame = self.frame(name)
            return frame[frame["rank"].isin(ranks)]
        table = self.tables[name]
        own = pa.array(sorted(ranks), type=table.schema.field("rank").type)
        return _to_frame(table.filter(pc.is_in(table["rank"], value_set=own)))

    def row_count(self, name: str) -> int:
        """Return how many rows a table has; nothing is read for it."""
        if isinstance(self.tables, Tables):
            return self.tables.row_count(name)
        table = self.tables.get(name)
        return 0 if table is None else int(table.num_rows)

    def rank_table(self, name: str, rank: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of one rank as an Arrow table, all columns or those named.

        A table on disk is read anew at every call, so only this rank is in memory.
        """
        stored = self.stored(name)
        if stored is not None:
            return stored.read(rank, columns)
        table = self.tables.get(name, TABLES[name].empty())
        own = table.filter(pc.equal(table["rank"], rank))
        return own if columns is None else own.select(list(columns))

    def rank_frame(
        self, name: str, rank: int, columns: Sequence[str] | None = None
    ) -> pd.DataFrame:
        """Return the rows of one rank as ``frame`` would, all columns or those named.

        The index is not that of ``frame``. The frame may be shared: copy it before changing it.
        """
        if self.stored(name) is not None:
            return _to_frame(self.rank_table(name, rank, columns))
        if (name, rank) not in self._frames:
            whole = self.frame(name)
            for key, rows in whole.groupby("rank"):
                self._frames[name, cast(int, key)] = rows
            self._frames.setdefault((name, rank), whole.iloc[:0])
        own = self._frames[name, rank]
        return own if columns is None else own[list(columns)]

    def stored(self, name: str) -> StoredTable | None:
        """Return a table that is on disk; None where it is in memory or absent."""
        return self.tables.stored(name) if isinstance(self.tables, Tables) else None

    def with_tables(self, changes: Mapping[str, pa.Table | StoredTable]) -> Trace:
        """Return the trace with some tables replaced; none is read for it."""
        old = self.tables if isinstance(self.tables, Tables) else Tables(self.tables)
        return replace(self, tables=old.with_changes(changes), _frames={})

    def with_changed_ranks(self, name: str, change: RankChange) -> Trace:
        """Return the trace with a change to each rank's rows of a table.

        On a table on disk it is applied to a rank when that is read.
        """
        stored = self.stored(name)
        if stored is not None:
            return self.with_tables({name: stored.changed(change)})
        if not self.row_count(name):
            return self
        ranks = sorted(set(self.tables[name]["rank"].to_pylist()))
        parts = [change(rank, self.rank_table(name, rank)) for rank in ranks]
        return self.with_tables({name: pa.concat_tables(parts).unify_dictionaries()})


def ranks_to_look_at(trace: Trace, *names: str) -> tuple[int, ...]:
    """Return the ranks that an analysis of some tables goes through; one where these are all empty.

    What is made of that one has the columns of a result without rows.
    """
    return trace.ranks if any(map(trace.row_count, names)) else trace.ranks[:1]


def _to_frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    for column in table.schema:
        if column.nullable and pa.types.is_integer(column.type):
            exact = table[column.name].to_pandas(types_mapper=lambda _: pd.Int64Dtype())
            frame[column.name] = exact
    return frame


def places_of(trace: Trace, ranks: Sequence[int]) -> pd.DataFrame:
    """Return rank and its pp, dp and tp position, -1 where the mesh is not known."""
    axes = (Axis.PP.value, Axis.DP.value, Axis.TP.value)
    table = pd.DataFrame({"rank": list(ranks)})
    if trace.layout is None:
        return table.assign(**dict.fromkeys(axes, -1))
    return table.assign(
        **{axis: list(position_of_ranks(trace.layout, Axis(axis), ranks).values()) for axis in axes}
    )


def stage_of_ranks(trace: Trace, ranks: list[int]) -> dict[int, int]:
    """Return the pipeline position of each rank, -1 where the layout is not known."""
    if trace.layout is None:
        return dict.fromkeys(ranks, -1)
    return position_of_ranks(trace.layout, Axis.PP, ranks)


def differ_without(layout: ParallelLayout, axis: str, ranks: Sequence[int]) -> bool:
    """Tell if ranks are all at different places when that along one axis is left out."""
    stride, size = layout.stride(axis), int(getattr(layout, axis))
    return len({rank - rank // stride % size * stride for rank in ranks}) == len(ranks)


def position_of_ranks(layout: ParallelLayout, axis: Axis, ranks: Sequence[int]) -> dict[int, int]:
    """Return the position of each rank of the mesh on an axis."""
    if ranks:
        # Refuses what is outside.
        layout.coordinates(min(ranks)), layout.coordinates(max(ranks))
    stride, size = layout.stride(axis), int(getattr(layout, axis))
    return {rank: rank // stride % size for rank in ranks}


def knows_members(trace: Trace) -> bool:
    """Return whether the members of groups are those of the job: not where nothing says how many ranks it has."""
    return bool(trace.run.get("world_size") != 0)
