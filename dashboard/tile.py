"""A window of a step as a picture, where it holds too many slices to draw them one by one."""

from __future__ import annotations

from base64 import b64encode

from meshscope.analyze.output.timeline.categories import Category, palette
from meshscope.analyze.output.timeline.raster import rasterize, separated
from meshscope.analyze.output.timeline.slices import StepSlices

from .png import encode_png

DEFAULT_TILE_WIDTH = 1200


def tile(step: StepSlices, window_ns: tuple[int, int], width: int = DEFAULT_TILE_WIDTH) -> bytes:
    """Return the PNG file of a window, with a pixel row a rank; what nothing covers is transparent."""
    rows = max(len(step.ranks), 1)
    pixels = rasterize(step.slices, rows=rows, window_ns=window_ns, width=width)
    # What nothing covers shows the page below, which may be light or dark.
    return encode_png(separated(pixels), palette(), clear=Category.IDLE)


def embedded_tile(step: StepSlices, window_ns: tuple[int, int]) -> str:
    """Return the same as an address that holds it: a browser need not ask for it, nor convert it."""
    return f"data:image/png;base64,{b64encode(tile(step, window_ns)).decode()}"
