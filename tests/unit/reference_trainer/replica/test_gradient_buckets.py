"""The layout of gradients in flat buffers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from meshscope.reference_trainer.replica.gradient_buckets import split_into_buckets


@pytest.fixture
def parameters():
    """Return parameters of 5, 6 and 1 elements."""
    return [nn.Parameter(torch.ones(shape)) for shape in ((5,), (2, 3), (1,))]


def sizes(buckets):
    """Return the members' sizes, bucket by bucket."""
    return [[member.numel() for member in bucket.members] for bucket in buckets]


def test_buckets_are_filled_from_the_last_parameter_back(parameters):
    """Fails if the first bucket is not the first that backward completes."""
    assert sizes(split_into_buckets(parameters, 28)) == [[1, 6], [5]]


def test_a_gradient_larger_than_a_bucket_gets_its_own(parameters):
    """Fails if a large layer cannot be trained with a small bucket size."""
    assert sizes(split_into_buckets(parameters, 8)) == [[1], [6], [5]]


def test_a_parameter_that_must_be_alone_is(parameters):
    """Fails if a tied embedding shares its buffer, which the other stage lays out differently."""
    assert sizes(split_into_buckets(parameters, 1000, alone=parameters[1])) == [[1], [6], [5]]


def test_parts_cover_every_element_once(parameters):
    """Fails if a rank's part of a buffer misses an element of a parameter or has two."""
    (bucket,) = split_into_buckets(parameters, 1000, parts=5)
    assert (bucket.size, bucket.part_size) == (15, 3)
    found = {id(parameter): 0 for parameter in parameters}
    for part in range(5):
        for parameter, start, place in bucket.pieces(part):
            assert 0 <= place.start < place.stop <= bucket.part_size
            assert start == found[id(parameter)]
            found[id(parameter)] += place.stop - place.start
    assert list(found.values()) == [5, 6, 1]


def test_a_view_is_the_members_place_in_the_buffer(parameters):
    """Fails if gradients of two parameters overlap."""
    (bucket,) = split_into_buckets(parameters, 1000)
    flat = torch.arange(12)
    views = [bucket.view(flat, member) for member in range(3)]
    assert [tuple(view.shape) for view in views] == [(1,), (2, 3), (5,)]
    assert torch.equal(torch.cat([view.flatten() for view in views]), flat)
