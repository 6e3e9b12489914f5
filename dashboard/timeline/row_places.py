"""Where the rows of a timeline are drawn: pinned ones stay readable among rows of a pixel each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshscope.analyze.tables.arrays import FloatArray, IntArray

_FIGURE_PX = 650
"""Height of all rows of the highest figure."""
_READABLE_PX = 16
_SMALL_PX = 10
"""Rows from this height on are left as they are."""
_MOST_FRAC = 0.5
"""Share of the figure that tall rows may take."""


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """The first rows may be as tall as several others; lengths are in rows of the usual height."""

    count: int
    tall: int = 0
    """So many rows, from the first one on, are tall."""
    each: int = 1
    """Usual rows that fit into a tall one."""

    @property
    def total(self) -> int:
        """Return the length of all rows together."""
        return self.count + self.tall * (self.each - 1)

    def on_axis(self, row: FloatArray) -> FloatArray:
        """Return where places between -0.5 and count - 0.5 are, counted in rows, on the axis."""
        return np.where(
            row < self.tall - 0.5,
            (row + 0.5) * self.each - 0.5,
            row + self.tall * (self.each - 1.0),
        )

    def heights(self) -> IntArray:
        """Return the height of each row."""
        return np.where(np.arange(self.count) < self.tall, self.each, 1)


def row_places(count: int, pinned: int) -> RowPlaces:
    """Return the places of rows of which the first ones are pinned."""
    if not pinned or count * _SMALL_PX <= _FIGURE_PX:
        return RowPlaces(count)
    wanted_px = min(_READABLE_PX, _MOST_FRAC * _FIGURE_PX / pinned)
    rest_px = _FIGURE_PX - pinned * wanted_px
    each = int(np.ceil(wanted_px * (count - pinned) / rest_px))
    return RowPlaces(count, pinned, max(each, 1))
