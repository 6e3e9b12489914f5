"""Slices to pixels, against a slow and obvious painter."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.output.timeline.categories import Category
from meshscope.analyze.output.timeline.raster import MAX_SEPARATED_ROWS, rasterize, separated


def _random_slices(rows: int, seed: int) -> pd.DataFrame:
    """Return disjoint slices on every row, with gaps, reaching over both ends of 0..1000."""
    rng = np.random.default_rng(seed)
    parts = []
    for row in range(rows):
        borders = np.unique(rng.integers(-200, 1200, size=60))
        kept = rng.random(len(borders) - 1) < 0.8
        parts.append(
            pd.DataFrame(
                {
                    "row": row,
                    "category": rng.integers(1, len(Category), size=int(kept.sum())),
                    "start_ns": borders[:-1][kept],
                    "end_ns": borders[1:][kept],
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _coverage(slices: pd.DataFrame, rows: int, window: tuple[int, int], width: int) -> np.ndarray:
    """Return time of each category in each pixel, one slice and one pixel at a time."""
    edges = np.linspace(*window, width + 1)
    found = np.zeros((len(Category), rows, width))
    for piece in slices.itertuples():
        for pixel in range(width):
            shared = min(piece.end_ns, edges[pixel + 1]) - max(piece.start_ns, edges[pixel])
            found[piece.category, piece.row, pixel] += max(shared, 0.0)
    found[Category.IDLE] = np.diff(edges) - found.sum(axis=0)
    return found


@pytest.mark.parametrize(("window", "width"), [((0, 1000), 37), ((333, 457), 50), ((100, 900), 7)])
def test_dominant_category_is_exact(window, width):
    """Fails when a pixel does not show the category that holds most of its time."""
    slices = _random_slices(rows=5, seed=width)
    pixels = rasterize(slices, rows=5, window_ns=window, width=width)
    coverage = _coverage(slices, 5, window, width)
    chosen = np.take_along_axis(coverage, pixels[None].astype(int), axis=0)[0]
    # Two categories may tie within rounding; any of them is right.
    assert pixels.shape == (5, width)
    np.testing.assert_allclose(chosen, coverage.max(axis=0), atol=1e-6)


def test_nothing_recorded_is_idle():
    """Fails when an empty step gets a colour."""
    empty = pd.DataFrame(columns=["row", "category", "start_ns", "end_ns"])
    assert (rasterize(empty, rows=2, window_ns=(0, 10), width=4) == Category.IDLE).all()


@pytest.mark.parametrize(
    ("rows", "window", "width"), [(0, (0, 1), 1), (1, (5, 5), 1), (1, (0, 1), 9999)]
)
def test_impossible_tiles_are_refused(rows, window, width):
    """Fails when a hostile size reaches the allocation of the picture."""
    empty = pd.DataFrame(columns=["row", "category", "start_ns", "end_ns"])
    with pytest.raises(ValueError, match="cannot draw"):
        rasterize(empty, rows=rows, window_ns=window, width=width)


def test_lines_between_few_rows():
    """Fails when neighbouring ranks of a small job melt into one block."""
    few = np.full((2, 3), int(Category.FORWARD), np.uint8)
    spaced = separated(few)
    assert (spaced == Category.IDLE).all(axis=1).sum() == 2
    assert (spaced == Category.FORWARD).any(axis=1).sum() == len(spaced) - 2
    many = np.zeros((MAX_SEPARATED_ROWS + 1, 3), np.uint8)
    assert separated(many) is many
