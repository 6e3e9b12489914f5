"""The split of layers over chunks: the certificate, and what is kept beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshscope.analyze.explain.balance.chunk_split import ChunkCosts, least_busy_chunks
from meshscope.analyze.explain.balance.stage_memory import MemoryByStage

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
