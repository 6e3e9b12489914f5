"""A table of durations as one array a step."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.layout import ParallelLayout

from ...align.steps.microbatch_work import FEATURES
from ...tables.arrays import FloatArray
from ...wording.message import message
from .cube import Cube, IntArray, cube_of

KEYS = ("rank", "step", "kind", "microbatch")


class Grid(msgspec.Struct, frozen=True):
    """Durations sorted by step, with the place of each in the array of its step."""

    cube: Cube
    steps: IntArray
    kinds: tuple[str, ...]
    items: int
    bounds: IntArray
    """First row of each step, and the number of rows."""
    index: tuple[IntArray, IntArray, IntArray]
    """Of each row: position of its rank, of its kind, of its item."""
    values: FloatArray
    features: FloatArray | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the number of steps, kinds and items."""
        return len(self.steps), len(self.kinds), self.items

    def step(self, position: int) -> FloatArray:
        """Return the durations [lane, replica, place, kind, item] of one step."""
        return self._filled(position, self.values)

    def step_features(self, position: int) -> FloatArray | None:
        """Return the features [lane, replica, place, kind, item, feature] of one step."""
        return None if self.features is None else self._filled(position, self.features)

    def by_rank(self, position: int) -> tuple[FloatArray, FloatArray | None]:
        """Return durations [rank, kind, item] and features [rank, kind, item, feature] of one step."""
        known = None if self.features is None else self._by_rank(position, self.features)
        return self._by_rank(position, self.values), known

    def _filled(self, position: int, values: FloatArray) -> FloatArray:
        return self.cube.fill(self._by_rank(position, values))

    def _by_rank(self, position: int, values: FloatArray) -> FloatArray:
        rows = slice(self.bounds[position], self.bounds[position + 1])
        ranks = len(self.cube.ranks)
        by_rank = np.full((ranks, len(self.kinds), self.items, *values.shape[1:]), np.nan)
        by_rank[tuple(axis[rows] for axis in self.index)] = values[rows]
        return by_rank


class DenseGrid(msgspec.Struct, frozen=True):
    """The same where each rank has one duration of each kind in each step, or none."""

    cube: Cube
    steps: IntArray
    values: FloatArray
    """Durations [step, lane, replica, place, kind, item]; NaN where absent."""
    features: FloatArray | None
    """The same with one more axis."""

    @classmethod
    def of(
        cls, cube: Cube, steps: IntArray, by_kind: dict[str, FloatArray], work: FloatArray | None
    ) -> DenseGrid:
        """Return the grid of durations [step, rank] by kind, absent where not positive.

        Args:
            cube: Where the ranks are.
            steps: Their numbers.
            by_kind: The durations.
            work: Features of the work [step, rank, feature], as far as they are known.
        """
        shape = (len(steps), *cube.shape, len(by_kind), 1)
        values = np.full(shape, np.nan)
        features = None if work is None else np.full((*shape, work.shape[-1]), np.nan)
        place = (slice(None), cube.lane, cube.replica, cube.place)
        for kind, durations in enumerate(by_kind.values()):
            is_known = durations > 0
            values[(*place, kind, 0)] = np.where(is_known, durations, np.nan)
            if features is not None and work is not None:
                features[(*place, kind, 0)] = np.where(is_known[..., None], work, np.nan)
        return cls(cube, steps, values, features)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the number of steps, kinds and items."""
        return len(self.steps), *self.values.shape[-2:]

    def step(self, position: int) -> FloatArray:
        """Return the durations [lane, replica, place, kind, item] of one step."""
        return np.asarray(self.values[position])

    def step_features(self, position: int) -> FloatArray | None:
        """Return the features [lane, replica, place, kind, item, feature] of one step."""
        return None if self.features is None else self.features[position]


def grid_of(durations: pd.DataFrame, layout: ParallelLayout | None) -> Grid:
    """Return the grid of a table of durations.

    Args:
        durations: rank, step, kind, microbatch, dur_ns; optionally chunk, and the columns
            of ``FEATURES`` as far as the work is known. Several rows of one item are added up; a duration that is not
            positive counts as absent.
        layout: The mesh, or None.

    Raises:
        TraceFormatError: A column is absent, or no row has a duration.
    """
    absent = [name for name in (*KEYS, "dur_ns") if name not in durations.columns]
    if absent:
        raise TraceFormatError(
            message("refused.no_columns", names=absent),
            where="durations",
            remedy=message("advice.columns_of_durations", known=KEYS),
        )
    frame = durations[durations["dur_ns"] > 0]
    if frame.empty:
        raise TraceFormatError(message("refused.no_positive_duration"), where="durations")
    item = frame["microbatch"].astype(np.int64)
    if "chunk" in frame.columns:
        span = int(item.max()) + 2
        item = item + span * frame["chunk"].astype(np.int64).clip(lower=0)
    known = [name for name in FEATURES if name in frame.columns]
    columns = {name: frame[name] for name in ("rank", "step", "dur_ns", *known)}
    keys = ["step", "rank", "kind", "item"]
    table = pd.DataFrame({**columns, "kind": frame["kind"].astype(str), "item": item})
    how = {"dur_ns": "sum", **dict.fromkeys(known, "first")}
    table = table.groupby(keys, as_index=False, sort=True).agg(how)
    return _grid(table, layout, known)


def _grid(table: pd.DataFrame, layout: ParallelLayout | None, known: list[str]) -> Grid:
    rank_code, ranks = pd.factorize(table["rank"].to_numpy(np.int64), sort=True)
    kind_code, kinds = pd.factorize(table["kind"], sort=True)
    item_code, items = _codes_within(kind_code, table["item"].to_numpy(np.int64))
    steps, first = np.unique(table["step"].to_numpy(np.int64), return_index=True)
    features = table[known].to_numpy(np.float64) if known else None
    return Grid(
        cube=cube_of(tuple(int(rank) for rank in ranks), layout),
        steps=steps,
        kinds=tuple(map(str, kinds)),
        items=items,
        bounds=np.append(first, len(table)).astype(np.int64),
        index=(rank_code, kind_code, item_code),
        values=table["dur_ns"].to_numpy(np.float64),
        features=features,
    )


def _codes_within(kind: IntArray, item: IntArray) -> tuple[IntArray, int]:
    """Number the items of each kind from 0, so that kinds of one item take one cell."""
    pairs = pd.MultiIndex.from_arrays([kind, item])
    code, unique = pd.factorize(pairs, sort=True)
    of_kind = np.asarray(unique.get_level_values(0), dtype=np.int64)
    place = np.arange(len(of_kind)) - np.searchsorted(of_kind, of_kind)
    return place[code], int(place.max()) + 1
