"""A loaded capture: the run, its groups and its tables. No analysis lives here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES


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
    _frames: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)

    def frame(self, name: str) -> pd.DataFrame:
        """Return one table as a DataFrame; categories stay categories.

        The frame is made once and shared: copy it before changing it.
        """
        if name not in self._frames:
            table = self.tables.get(name)
            self._frames[name] = (TABLES[name].empty() if table is None else table).to_pandas()
        return self._frames[name]
