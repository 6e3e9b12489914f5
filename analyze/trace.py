"""A loaded capture: the run, its groups and its tables. No analysis lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

FLIGHT_RECORDER = "flight_recorder"
"""Origin of dumps: no steps, and an operation without an end was not complete."""


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
    """Arrow tables by name, ranks concatenated."""
    limits: tuple[str, ...] = ()
    """What is missing or damaged, one sentence each."""
    origin: str = "meshscope"
    """Which program wrote the input: ``meshscope``, ``kineto``, ``ndtimeline`` …"""
    per_step_clock: bool = False
    """True where each step has its own time origin, so that steps cannot be chained."""
    clocks: Mapping[int, str] = field(default_factory=dict)
    """Which clock each rank read, where that is known; see ``clock_of``."""
    _frames: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    def clock_of(self, rank: int) -> str:
        """Return the id of the clock that a rank read; one of its own where that is not known."""
        return self.clocks.get(rank, f"rank {rank}")

    def frame(self, name: str) -> pd.DataFrame:
        """Return one table as a DataFrame; categories stay categories.

        Nullable integers become ``Int64``, because a time of unix size does not
        survive a float. The frame is made once and shared: copy it before changing it.
        """
        if name not in self._frames:
            table = self.tables.get(name)
            self._frames[name] = _to_frame(TABLES[name].empty() if table is None else table)
        return self._frames[name]


def _to_frame(table: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = table.to_pandas()
    for column in table.schema:
        if column.nullable and pa.types.is_integer(column.type):
            exact = table[column.name].to_pandas(types_mapper=lambda _: pd.Int64Dtype())
            frame[column.name] = exact
    return frame
