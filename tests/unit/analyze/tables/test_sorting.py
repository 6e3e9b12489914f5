"""Orders are those of a general stable sort."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.tables.sorting import (
    FEWEST_ROWS,
    MANY_VALUES,
    any_of_group,
    greatest_of_group,
    last_begun,
    least_of_group,
    order_of,
    ranks_of_group,
    sorted_in_groups,
    values_by_group,
)

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


@pytest.mark.parametrize("kind", ["floats", "whole", "unknown"])
def test_each_row_gets_the_extremes_of_its_group(kind):
    """Fails when an unknown value hides the others, or a group without any gets a number."""
    random = np.random.default_rng(3)
    group = random.integers(0, 40, 300)
    value = random.integers(-1000, 1000, 300)
    if kind != "whole":
        value = value * 0.37
    if kind == "unknown":
        value[(random.random(300) < 0.5) | (group < 4)] = np.nan
    groups = pd.Series(value).groupby(group)
    for found, name in ((least_of_group, "min"), (greatest_of_group, "max")):
        np.testing.assert_array_equal(found(value, group), groups.transform(name).to_numpy())


def test_one_row_is_enough_for_any():
    """Fails when the rows of other groups count."""
    found = any_of_group(np.array([True, False, False, False]), np.array([2, 0, 2, 1]))
    assert found.tolist() == [True, False, True, False]


def test_no_rows_are_no_groups():
    """Fails when a capture without communication ends with a traceback."""
    nothing = np.empty(0, np.int64)
    assert not len(least_of_group(np.empty(0), nothing))


@pytest.mark.parametrize("is_sorted", [True, False])
def test_a_rank_counts_once_in_its_group(is_sorted):
    """Fails when a member that occurs twice makes an operation of one rank look shared."""
    random = np.random.default_rng(5)
    group, rank = random.integers(0, 40, 300), random.integers(0, 6, 300)
    rank = np.sort(rank) if is_sorted else rank
    counted = pd.Series(rank).groupby(group).transform("nunique")
    assert ranks_of_group(rank, group).tolist() == counted.tolist()


@pytest.mark.parametrize("groups", [3, 40, ROWS // 2])
def test_medians_and_quantiles_are_of_the_known_values(groups):
    """Fails when an unknown value counts, or a value of a neighbouring group."""
    random = np.random.default_rng(5)
    group = np.where(random.random(ROWS) < 0.3, random.integers(0, groups, ROWS), 2 * groups)
    value = random.lognormal(size=ROWS)
    value[(random.random(ROWS) < 0.1) | (group == 1)] = np.nan
    assert np.bincount(group).max() > MANY_VALUES
    found, expected = values_by_group(value, group), pd.Series(value).groupby(group)
    there = np.unique(group)
    assert found.known[there].tolist() == expected.count().tolist()
    np.testing.assert_array_equal(found.median[there], expected.median())
    for share in (0.1, 0.5, 0.37):
        np.testing.assert_array_equal(found.quantile(share)[there], expected.quantile(share))


def test_the_last_start_at_or_before_an_instant_counts():
    """Fails when a start at the instant itself is left out, or one after it is taken."""
    start, instants = np.array([2, 5, 5, 9]), np.array([0, 2, 4, 5, 8, 9, 12])
    assert last_begun(start, instants).tolist() == [-1, 0, 0, 2, 2, 3, 3]
