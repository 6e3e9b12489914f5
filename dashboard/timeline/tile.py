"""A window of a step as a picture, where it holds too many slices to draw them one by one."""

from __future__ import annotations

from base64 import b64encode

import numpy as np
import numpy.typing as npt

from meshscope.analyze.output.timeline.categories import Category, palette
from meshscope.analyze.output.timeline.raster import rasterize, separated
from meshscope.analyze.output.timeline.slices import StepSlices

from ..plain.png import encode_png
from .row_places import RowPlaces

DEFAULT_TILE_WIDTH = 1200
_LEAST_APART = 4
"""Pixel rows of a tall row from which one of them may keep it apart from the next."""


def tile(step: StepSlices, window_ns: tuple[int, int], width: int = DEFAULT_TILE_WIDTH) -> bytes:
    """Return the PNG file of a window, with a pixel row a rank; what nothing covers is transparent."""
    return _encoded(separated(_pixels(step, window_ns, width)))


def embedded_tile(step: StepSlices, window_ns: tuple[int, int], places: RowPlaces) -> str:
    """Return the same as an address that holds it: a browser need not ask for it, nor convert it.

    Args:
        step: What to draw.
        window_ns: Its window.
        places: Of the rows; a line of background is below each tall one.
    """
    pixels = _pixels(step, window_ns, DEFAULT_TILE_WIDTH)
    if places.each == 1:
        pixels = separated(pixels)
    elif len(pixels) == places.count:
        pixels = np.repeat(pixels, places.heights(), axis=0)
        if places.each >= _LEAST_APART:
            lasts = np.arange(1, places.tall + 1) * places.each - 1
            pixels[lasts] = Category.IDLE
    return f"data:image/png;base64,{b64encode(_encoded(pixels)).decode()}"


def _pixels(step: StepSlices, window_ns: tuple[int, int], width: int) -> npt.NDArray[np.uint8]:
    rows = max(len(step.ranks), 1)
    return rasterize(step.slices, rows=rows, window_ns=window_ns, width=width)


def _encoded(pixels: npt.NDArray[np.uint8]) -> bytes:
    # What nothing covers shows the page below, which may be light or dark.
    return encode_png(pixels, palette(), clear=Category.IDLE)
