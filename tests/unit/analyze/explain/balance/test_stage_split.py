"""The exact split of layers over stages, against all splits there are."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.analyze.explain.balance.stage_memory import MemoryByStage
from meshscope.analyze.explain.balance.stage_split import (
    ChunkCosts,
    StageLoads,
    least_busy_chunks,
    least_busy_split,
)

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


pytest.importorskip("scipy", reason="needs scipy: pip install 'meshscope[balance]'")


def costs_of(extra, ranks, **sizes):
    """Return costs of chunks dealt out in turn, with layers of 1 ns."""
    return ChunkCosts(
        layer_ns=1.0,
        extra_ns=np.array(extra, float),
        holders=np.arange(len(extra)) % ranks,
        **sizes,
    )


def loads(costs, split):
    """Return the load of every rank."""
    return np.bincount(costs.holders, np.array(split) + costs.extra_ns)


@pytest.mark.sampled(keep=())
@settings(max_examples=20, deadline=None)
@given(st.integers(2, 4), st.integers(2, 3), st.integers(0, 9), st.integers(8, 24))
def test_the_best_rank_load_is_proven(ranks, chunks, head, layers):
    """Fails if the certificate names a load that a simple filling of ranks beats."""
    extra = [0] * (ranks * chunks - 1) + [head]
    costs = costs_of(extra, ranks)
    now = [layers // len(extra) + (at < layers % len(extra)) for at in range(len(extra))]
    found = least_busy_chunks(costs, now)
    filled = np.bincount(costs.holders, costs.extra_ns)
    for _ in range(layers):
        filled[filled.argmin()] += 1
    assert found.largest_ns == pytest.approx(filled.max())
    assert found.bound_ns == pytest.approx(found.largest_ns)
    for split in found.candidates:
        assert sum(split) == layers
        assert min(split) >= 0


def test_a_large_pipeline_is_solved():
    """Fails if 126 layers on 16 ranks of 8 chunks are not balanced to a layer."""
    extra = [0.3] + [0.0] * 126 + [3.2]
    found = least_busy_chunks(costs_of(extra, 16), [1] * 126 + [0, 0])
    assert found.largest_ns == pytest.approx(9.0)
    assert found.bound_ns == pytest.approx(9.0)


def test_ranks_hold_no_more_layers_than_fit():
    """Fails if a rank gets more layers than its memory has room for."""
    costs = costs_of([0.0] * 8, 4, layer_bytes=np.ones(4), spare_bytes=np.array([2.0, 9, 9, 9]))
    found = least_busy_chunks(costs, [2] * 8)
    assert all(loads(costs, split)[0] <= 2 for split in found.candidates)
    costs = costs_of([0.0] * 8, 4, layer_bytes=np.ones(4), spare_bytes=np.full(4, 3.0))
    assert least_busy_chunks(costs, [2] * 8) is None


def test_the_least_memory_is_that_under_which_a_split_fits():
    """Fails if the least memory that an error names is too small, or larger than needed."""
    memory = MemoryByStage(
        layer_bytes=np.array([3.0, 2.0]), extra_bytes=np.array([1.0, 6.0]), capacity_bytes=None
    )
    least = memory.least_bytes(8)
    for cap, fits in ((least, True), (least - 0.5, False)):
        spare = cap - memory.extra_bytes
        costs = costs_of([0.0] * 4, 2, layer_bytes=memory.layer_bytes, spare_bytes=spare)
        assert (least_busy_chunks(costs, [2] * 4) is not None) == fits
