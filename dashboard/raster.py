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

MAX_WIDTH = 2048
MAX_ROWS = 2048
"""Largest tile in pixels; more ranks than rows share a pixel row."""
MAX_SEPARATED_ROWS = 128
"""Ranks up to which a picture has room for lines between them."""
_SEPARATED_PX = 8


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
    seen = slices[(slices["end_ns"] > t0) & (slices["start_ns"] < t1)]
    category = seen["category"].to_numpy(np.int64)
    line = category * height + seen["row"].to_numpy(np.int64) // per_pixel_row
    scale = width / (t1 - t0)
    left = np.clip((seen["start_ns"].to_numpy(np.int64) - t0) * scale, 0, width)
    right = np.clip((seen["end_ns"].to_numpy(np.int64) - t0) * scale, 0, width)
    lines = len(Category) * height
    ramp = _ramp(line, left, lines, width) - _ramp(line, right, lines, width)
    coverage = np.cumsum(ramp, axis=1)[:, :width].reshape(len(Category), height, width)
    coverage[Category.IDLE] += per_pixel_row - coverage.sum(axis=0)
    dominant: npt.NDArray[np.uint8] = coverage.argmax(axis=0).astype(np.uint8)
    return dominant


def separated(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the picture of a few rows with a line of background below each row."""
    height, width = pixels.shape
    if height > MAX_SEPARATED_ROWS:
        return pixels
    spaced = np.repeat(pixels, _SEPARATED_PX, axis=0).reshape(height, _SEPARATED_PX, width)
    spaced[:, -1, :] = Category.IDLE
    return spaced.reshape(height * _SEPARATED_PX, width)


def _ramp(
    line: npt.NDArray[np.int64], edge: npt.NDArray[np.float64], lines: int, width: int
) -> npt.NDArray[np.float64]:
    """Return increments whose running sum is 1 right of every edge, fractional in its pixel."""
    stride = width + 2
    pixel = np.floor(edge).astype(np.int64)
    part = edge - pixel
    at = line * stride + pixel
    total: npt.NDArray[np.float64] = np.zeros(lines * stride)
    total += np.bincount(at, weights=1.0 - part, minlength=lines * stride)
    total += np.bincount(at + 1, weights=part, minlength=lines * stride)
    return total.reshape(lines, stride)
