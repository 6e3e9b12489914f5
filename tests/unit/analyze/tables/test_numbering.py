"""Numbers of combinations are those that a hash of each gives."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.tables.arrays import combined, numbers_in
from meshscope.analyze.tables.numbering import numbered


@pytest.mark.parametrize("most", [3, 50, 10**6])
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_combinations_are_numbered_in_their_order(most, rows):
    """Fails when two operations become one, or one becomes two, in a table or by hashing."""
    random = np.random.default_rng(rows + most)
    keys = [random.integers(-2, most, rows) for _ in range(3)]
    assert numbered(*keys).tolist() == pd.factorize(combined(*keys))[0].tolist()


@pytest.mark.parametrize("most", [1, 50, 2**40])
def test_numbers_that_occur_are_counted_once(most):
    """Fails when steps of few or far numbers are counted twice, or not at all."""
    values = np.random.default_rng(most).integers(-3, most, 300)
    assert numbers_in(values).tolist() == sorted(set(values.tolist()))
    narrow = np.array([-128, 127, 127], np.int8)
    assert numbers_in(narrow).tolist() == [-128, 127]
    assert not len(numbers_in(values[:0]))
