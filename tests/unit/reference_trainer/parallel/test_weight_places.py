"""Where the parts of a weight lie in the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from meshscope.reference_trainer.parallel.weight_places import Box, box_of, pieces, split_over


@pytest.mark.parametrize("sizes", [(7,), (4, 5), (3, 2, 4), (1, 3, 1), (2, 1, 3, 2)])
def test_the_boxes_of_any_interval_are_its_elements(sizes):
    """Fails if an element of an interval is left out, doubled, or found in another place."""
    offsets = tuple(range(1, len(sizes) + 1))
    box = Box(tuple(a + b + 1 for a, b in zip(offsets, sizes, strict=True)), offsets, sizes)
    count = torch.Size(sizes).numel()
    number = torch.arange(count).view(sizes)
    for start in range(count + 1):
        for stop in range(start, count + 1):
            found = []
            for piece in pieces(box, start, stop):
                assert piece.start == len(found)
                assert 0 not in piece.sizes
                own = number
                for dim, size in enumerate(piece.sizes):
                    own = own.narrow(dim, piece.offsets[dim] - offsets[dim], size)
                found += own.flatten().tolist()
            assert found == list(range(start, stop))
            assert len(list(pieces(box, start, stop))) <= 2 * len(sizes) - 1


def test_a_weight_without_a_note_is_whole():
    """Fails if what every rank holds in full is taken for a part."""
    assert box_of(nn.Parameter(torch.zeros(3, 2))) == Box((3, 2), (0, 0), (3, 2))


def test_a_slice_of_each_third_is_one_box(alone):
    """Fails if queries, keys and values that are split over ranks land in one another's rows."""
    second = replace(alone, ranks=(0, 1), position=1)
    weight = nn.Parameter(torch.zeros(3 * 4, 5))
    assert split_over(weight, second, 1, view=(3, 4, 5)) is weight
    assert box_of(weight) == Box((3, 8, 5), (0, 4, 0), (3, 4, 5))


def test_slices_along_two_dimensions_add_up(alone):
    """Fails if experts that are shared and sliced forget one of the two."""
    second = replace(alone, ranks=(0, 1), position=1)
    third = replace(alone, ranks=(0, 1, 2, 3), position=2)
    weight = split_over(nn.Parameter(torch.zeros(2, 6, 5)), third, 0)
    assert box_of(split_over(weight, second, 1)) == Box((8, 12, 5), (4, 6, 0), (2, 6, 5))
