"""Orders are those of a general stable sort."""

import numpy as np
import pytest

from meshscope.analyze.tables.sorting import FEWEST_ROWS, order_of, sorted_in_groups

ROWS = 2 * FEWEST_ROWS


@pytest.mark.parametrize("most", [3, 1 << 16, 1 << 20, 1 << 40])
def test_numbers_are_in_stable_order(most):
    """Fails when rows of one number change places, or large numbers lose a digit."""
    number = np.random.default_rng(1).integers(0, most, ROWS)
    assert order_of(number).tolist() == np.argsort(number, kind="stable").tolist()


@pytest.mark.parametrize("groups", ["even", "two sizes", "uneven", "alone"])
@pytest.mark.parametrize("base", [0, 1 << 35])
def test_groups_are_sorted_by_value(groups, base):
    """Fails when a median of peers is that of another group, or equal values change places."""
    random = np.random.default_rng(2)
    row = np.arange(ROWS)
    group = {
        "even": row % 16,
        "two sizes": np.minimum(row // 100, 3),
        "uneven": random.integers(0, 50, ROWS),
        "alone": row,
    }[groups]
    value = random.integers(0, 40, ROWS) * 0.5
    value[random.random(ROWS) < 0.05] = np.nan
    group = random.permutation(group) + base * (group % 2)
    found = sorted_in_groups(value, group)
    assert found.tolist() == np.lexsort((value, group)).tolist()
