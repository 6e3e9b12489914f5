"""Steps of a stage that are of two kinds."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze.explain.causes.kinds_of_steps import kinds_of_steps


def kinds(*ranks):
    """Return the kind of each step of a place with some ranks, as text."""
    rows = {
        (0, rank, step): float(value)
        for rank, own in enumerate(ranks)
        for step, value in enumerate(own)
    }
    index = pd.MultiIndex.from_tuples(rows, names=["stage", "rank", "step"])
    found = kinds_of_steps(pd.Series(rows.values(), index=index))
    assert list(found.index.names) == ["stage", "step"]
    return "".join(map(str, found.tolist()))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ([91, 50, 90, 51, 89, 50, 92, 49], "10101010"),
        ([50, 51, 49, 50, 60, 61, 60, 59], "00001111"),
        ([52, 47, 50, 55, 49, 51, 46, 50], "00000000"),
        ([91, 50, 90, 51, 50, 50, 49, 49], "00000000"),
        ([100, 103, 100, 103, 100, 103], "000000"),
        ([91, 50, 90, 51], "0000"),
    ],
)
def test_a_gap_between_steps_makes_two_kinds(value, wanted):
    """Fails when noise, a pause or a small difference is taken for another kind of step."""
    assert kinds(value) == wanted


def test_one_of_several_ranks_makes_no_kind():
    """Fails when a slow rank at times is taken for its stage."""
    assert kinds([91, 50, 90, 51, 89, 50], [50] * 6, [51] * 6) == "000000"


@pytest.mark.parametrize("draw", ["normal", "uniform", "exponential"])
def test_noise_has_one_kind(draw):
    """Fails when jitter is evened out as if it were the load of a stage."""
    random = np.random.default_rng(7)
    found = [kinds(100 + 20 * getattr(random, draw)(size=12)) for _ in range(50)]
    assert sum("1" in own for own in found) <= 1
