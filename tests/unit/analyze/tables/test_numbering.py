"""Numbers of combinations are those that a hash of each gives."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.tables.arrays import combined
from meshscope.analyze.tables.numbering import numbered


@pytest.mark.parametrize("most", [3, 50, 10**6])
@pytest.mark.parametrize("rows", [0, 1, 500])
def test_combinations_are_numbered_in_their_order(most, rows):
    """Fails when two operations become one, or one becomes two, in a table or by hashing."""
    random = np.random.default_rng(rows + most)
    keys = [random.integers(-2, most, rows) for _ in range(3)]
    assert numbered(*keys).tolist() == pd.factorize(combined(*keys))[0].tolist()
