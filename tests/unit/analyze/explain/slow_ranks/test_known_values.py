"""Medians by other ways than sorting all values are those of numpy, to the last bit."""

import numpy as np
import pytest

from meshscope.analyze.explain.slow_ranks.known_values import finite_median, median_of_rows


@pytest.mark.parametrize("size", [1, 2, 1001, 150_000, 150_001])
@pytest.mark.parametrize("alike", [False, True])
def test_the_median_of_many_values_is_that_of_all(size, alike):
    """Fails when a sample of many values decides what is noise, instead of all of them."""
    values = np.random.default_rng(size).normal(0, 1, size)
    values = np.sort(values.round(1)) if alike else values
    values[::7] = values[::7] if size < 7 else np.nan
    assert finite_median(values) == np.median(values[np.isfinite(values)])
    assert np.isnan(finite_median(np.array([np.nan])))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 8, 9, 10, 63])
def test_the_median_of_rows_is_that_of_each_column(rows):
    """Fails when a few places tell another work of their replica than their middle one."""
    values = np.random.default_rng(rows).normal(1, 0.1, (rows, 5, 7)).astype(np.float32)
    found = median_of_rows(values)
    assert found.dtype == np.float32
    assert (found == np.median(values, axis=0)).all()
