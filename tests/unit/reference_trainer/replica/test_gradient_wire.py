"""Forms of gradients on the wire: what they round, and what they send."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.replica.gradient_wire import (
    INT8_BLOCK,
    Bf16Wire,
    ExactWire,
    Int8Wire,
    dequantised_sum,
    quantise,
    split_into_buckets,
    wire_for,
)


@given(
    replicas=st.integers(1, 5),
    size=st.integers(1, 2 * INT8_BLOCK + 3),
    seed=st.integers(0, 2**31),
    exponent=st.integers(-30, 30),
)
def test_int8_stays_within_its_stated_bound(replicas, size, seed, exponent):
    """Fails if a quantised sum is further off than half a step of each replica."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(replicas, size, generator=generator).pow(5) * 2.0**exponent
    found = dequantised_sum(torch.cat([quantise(row.view(1, -1)) for row in rows]), size)
    padded = torch.nn.functional.pad(rows, (0, -size % INT8_BLOCK)).view(replicas, -1, INT8_BLOCK)
    largest = padded.abs().amax(dim=2).sum(dim=0)  # (blocks,)
    bound = (largest / 254).repeat_interleave(INT8_BLOCK)[:size]
    exact = rows.double().sum(dim=0)
    # The rounding of fp32 itself comes on top.
    slack = 2.0**-22 * rows.abs().sum(dim=0)
    assert ((found.double() - exact).abs() <= bound + slack).all()


def test_zeros_stay_zeros_and_infinities_do_not_vanish():
    """Fails if padding turns into gradients, or an overflow is rounded away."""
    values = torch.zeros(2, INT8_BLOCK)
    values[1, 3] = float("inf")
    found = dequantised_sum(quantise(values.view(1, -1)), 2 * INT8_BLOCK)
    assert torch.equal(found[:INT8_BLOCK], values[0])
    assert not found[INT8_BLOCK:].isfinite().any()


def test_int8_sends_one_byte_per_gradient_and_its_scales():
    """Fails if the compressed form is not a quarter of fp32 and 1.6 %."""
    assert quantise(torch.ones(3, 1000)).shape == (3, 4 * INT8_BLOCK + 4 * 4)


@pytest.mark.parametrize(
    ("wire", "whole", "part"),
    [
        (ExactWire, "all_reduce", "reduce_scatter"),
        (Bf16Wire, "all_reduce", "reduce_scatter"),
        (Int8Wire, "all_gather", "all_to_all"),
    ],
)
def test_every_sum_is_one_collective(comm, group_of_two, wire, whole, part):
    """Fails if a bucket costs more messages than stated."""
    group = replace(group_of_two, axis=Axis.DP)
    made = wire(group, comm)
    made.all_reduce(torch.ones(10)).wait()
    assert comm.collectives == {(whole, Axis.DP): 1}
    made.reduce_scatter(torch.ones(10), torch.zeros(5).add_).wait()
    assert comm.collectives == {(whole, Axis.DP): 1, (part, Axis.DP): 1}


@pytest.mark.parametrize(("way", "expected"), [("add_", 3.0), ("copy_", 2.0)])
def test_a_part_is_put_where_it_is_wanted(comm, alone, way, expected):
    """Fails if a second microbatch's sum replaces the first one's, or a whole sum counts twice."""
    part = torch.ones(4)
    ExactWire(alone, comm).reduce_scatter(torch.full((4,), 2.0), getattr(part, way)).wait()
    assert part.tolist() == [expected] * 4


def test_without_other_replicas_nothing_is_rounded(comm, alone):
    """Fails if a run on one replica trains differently because of a compression."""
    assert isinstance(wire_for("int8", alone, comm), ExactWire)
    assert isinstance(wire_for("bf16", alone, comm), ExactWire)


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
