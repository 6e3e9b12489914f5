"""Extremes of groups are those that pandas finds."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.tables.extremes import (
    any_of_group,
    greatest_of_group,
    least_of_group,
    ranks_of_group,
)


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
