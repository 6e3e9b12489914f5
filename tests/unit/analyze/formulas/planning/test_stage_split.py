"""Which blocks a stage gets."""

from __future__ import annotations

from itertools import product

import pytest

from meshscope.analyze.formulas.planning.stage_split import layer_ranges, split_layers


def test_without_weights_the_split_is_even_and_the_first_get_the_rest():
    """Fails if a layer is in two stages or in none."""
    assert split_layers(7, 3) == (3, 2, 2)
    assert layer_ranges((3, 2, 2)) == (range(3), range(3, 5), range(5, 7))


def test_edges_that_cost_a_block_take_a_block_less():
    """Fails if the published split of LLaMA-3 405B does not follow from its weights."""
    counts = split_layers(126, 16, embedding_weight=1, head_weight=1)
    assert counts == (7, *[8] * 14, 7)


@pytest.mark.parametrize("weights", [(1, 2, 1), (1.5, 1, 0.5), (3, 1, 1)])
def test_no_other_split_makes_the_busiest_stage_less_busy(weights):
    """Fails if the split by weight is not the best one."""

    def busiest(counts):
        extra = (0.5, 0, 1.5)
        return max((n + e) / w for n, e, w in zip(counts, extra, weights, strict=True))

    found = split_layers(9, 3, weights=weights, embedding_weight=0.5, head_weight=1.5)
    others = [counts for counts in product(range(1, 8), repeat=3) if sum(counts) == 9]
    assert sum(found) == 9
    assert busiest(found) == min(map(busiest, others))


def test_every_stage_keeps_a_block_however_heavy_its_edge():
    """Fails if a heavy head leaves its stage without a block."""
    assert split_layers(4, 2, head_weight=100) == (3, 1)
