"""The exact split of layers over stages, against all splits there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshscope.analyze.explain.balance.stage_split import StageLoads, least_busy_split

costs = st.lists(st.integers(1, 9), min_size=3, max_size=7)
extras = st.lists(st.integers(0, 12), min_size=2, max_size=4)


def all_splits(layers, stages):
    """Return every split with a layer on each stage between the ends."""
    return [
        split
        for split in product(range(layers + 1), repeat=stages)
        if sum(split) == layers and min([1, *split[1:-1]]) > 0
    ]


@given(costs, extras)
def test_no_split_is_less_busy(layer, extra):
    """Fails if the programme misses the split with the least largest stage."""
    loads = StageLoads(layer_ns=np.array(layer, float), extra_ns=np.array(extra, float))
    found = least_busy_split(loads, [1] * len(extra))
    best = min(loads.of_split(split).max() for split in all_splits(len(layer), len(extra)))
    assert found is not None
    assert loads.of_split(found).max() == pytest.approx(best)


@given(costs, extras, st.data())
def test_no_stage_holds_more_than_the_cap(layer, extra, data):
    """Fails if a split breaks the cap, or one that keeps it is missed."""
    sizes = data.draw(
        st.lists(st.integers(1, 5), min_size=len(extra), max_size=len(extra)), label="sizes"
    )
    loads = StageLoads(
        layer_ns=np.array(layer, float),
        extra_ns=np.array(extra, float),
        layer_bytes=np.tile(np.array(sizes, float)[:, None], (1, len(layer))),
        extra_bytes=np.array(extra, float),
        cap_bytes=15.0,
    )
    found = least_busy_split(loads, [1] * len(extra))
    allowed = [
        split
        for split in all_splits(len(layer), len(extra))
        if (loads.held_by(split) <= loads.cap_bytes).all()
    ]
    assert (found is None) == (not allowed)
    if found is not None:
        assert found in allowed
        best = min(loads.of_split(split).max() for split in allowed)
        assert loads.of_split(found).max() == pytest.approx(best)


@given(st.integers(6, 20), st.integers(0, 8))
def test_of_equal_splits_the_nearest_is_taken(layers, head):
    """Fails if a bound is broken, or more layers move than need to."""
    now = [layers // 3, layers // 3, layers - 2 * (layers // 3)]
    loads = StageLoads(layer_ns=np.ones(layers), extra_ns=np.array([0.0, 0.0, head]))
    best = loads.of_split(least_busy_split(loads, now)).max()
    bound = best + 1.0
    found = least_busy_split(loads, now, bound)
    moves = {
        split: sum(abs(a - b) for a, b in zip(split, now, strict=True))
        for split in all_splits(layers, 3)
        if loads.of_split(split).max() <= bound
    }
    assert moves[found] == min(moves.values())


def test_a_heavy_head_stands_alone():
    """Fails if the last stage keeps layers although its head is the largest load."""
    loads = StageLoads(layer_ns=np.ones(28), extra_ns=np.array([0, 0, 0, 0, 0, 0, 0, 16.0]))
    assert least_busy_split(loads, [4] * 7 + [0])[-1] == 0
