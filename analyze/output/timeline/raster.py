"""Slices to pixels: which category owns most of every pixel of a time window.

A step of a large job has a million slices; a screen has a thousand columns. The
coverage of every (category, row, pixel) is exact: each slice adds a ramp of its
fractional overlap at its two ends, and a running sum fills what is between.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from .categories import Category
from .slices import is_in_window

MAX_WIDTH = 2048
MAX_ROWS = 2048
"""Largest tile in pixels; more ranks than rows share a pixel row."""
MAX_SEPARATED_ROWS = 72
"""Ranks up to which a picture has room for lines between them: in a figure of 650 pixels a row keeps
all its ``_SEPARATED_PX``, of which fewer would lose some of the lines and not others."""
_SEPARATED_PX = 8
"""The least height at which a row and its separating line are both seen."""


def rasterize(
    slices: pd.DataFrame, *, rows: int, window_ns: tuple[int, int], width: int
) -> npt.NDArray[np.uint8]:
    """Return the dominant category of every pixel.

    Args:
        slices: row, category, start_ns, end_ns; not overlapping within a row.
        rows: Ranks, one pixel row each up to ``MAX_ROWS``.
        window_ns: Start and end of the picture.
        width: Pixels across.

    Returns:
        Pixel rows x width palette indices; ``IDLE`` competes with the time that
        no slice covers.

    Raises:
        ValueError: A size or the window is empty or too large.
    """
    t0, t1 = window_ns
    if not (0 < width <= MAX_WIDTH and rows > 0 and t1 > t0):
        raise ValueError(f"cannot draw {rows} rows x {width} pixels of {t0}..{t1} ns")
    per_pixel_row = -(-rows // MAX_ROWS)
    height = -(-rows // per_pixel_row)
    is_seen = np.flatnonzero(is_in_window(slices, window_ns))
    names = ("row", "start_ns", "end_ns", "category")
    row, start, end, category = (slices[name].to_numpy(np.int64)[is_seen] for name in names)
    line = row // per_pixel_row
    scale = width / (t1 - t0)
    left = np.clip((start - t0) * scale, 0, width)
    right = np.clip((end - t0) * scale, 0, width)
    dominant = np.full((height, width), Category.IDLE, dtype=np.uint8)
    most, idle = np.zeros((height, width)), np.full((height, width), float(per_pixel_row))
    for value in np.flatnonzero(np.bincount(category)):
        own = np.flatnonzero(category == value)
        covered = _coverage(line[own], left[own], right[own], (height, width))
        idle -= covered
        np.copyto(dominant, np.uint8(value), where=covered > most)
        np.maximum(most, covered, out=most)
    np.copyto(dominant, np.uint8(Category.IDLE), where=idle > most)
    return dominant


def _coverage(
    line: npt.NDArray[np.int64],
    left: npt.NDArray[np.float64],
    right: npt.NDArray[np.float64],
    shape: tuple[int, int],
) -> npt.NDArray[np.float64]:
    """Return how much of every pixel is covered by intervals, in pixels.

    An edge at 2.25 adds 0.75 to pixel 2 and 0.25 to pixel 3 of the increments,
    whose running sum is then 0, 0, 0.75, 1, 1 …; a right edge takes it away.
    """
    height, width = shape
    stride = width + 2
    first, last = left.astype(np.int64), right.astype(np.int64)
    after_first, after_last = left - first, right - last
    begin, end = line * stride + first, line * stride + last
    increments = np.bincount(
        np.concatenate([begin, begin + 1, end, end + 1]),
        weights=np.concatenate([1.0 - after_first, after_first, after_last - 1.0, -after_last]),
        minlength=height * stride,
    ).reshape(height, stride)
    covered: npt.NDArray[np.float64] = np.cumsum(increments[:, :width], axis=1)
    return covered


def separated(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the picture of a few rows with a line of background below each row."""
    height, width = pixels.shape
    if height > MAX_SEPARATED_ROWS:
        return pixels
    spaced = np.repeat(pixels, _SEPARATED_PX, axis=0).reshape(height, _SEPARATED_PX, width)
    spaced[:, -1, :] = Category.IDLE
    return spaced.reshape(height * _SEPARATED_PX, width)
