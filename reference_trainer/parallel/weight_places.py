"""Where the part of a weight that a rank holds lies in the whole weight of the model.

A rank's slice of a weight is a box in the whole weight. What it trains of the slice may
be less: an interval of the slice's elements, one after the other, where optimizer state
or weights are sharded over replicas. Any interval of a box is a few smaller boxes::

    box of 4 x 5, elements 3 to 16      . . . 3 4     the end of a row,
                                        5 6 7 8 9     whole rows
                                        0 1 2 3 4
                                        5 . . . .     the beginning of one

so that what any rank holds can be named without knowing how the others split it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from torch import nn

from .mesh import MeshGroup

_BOX = "_box"


class Box(NamedTuple):
    """A rectangular part of a whole tensor."""

    whole: tuple[int, ...]
    """Shape of the whole tensor."""
    offsets: tuple[int, ...]
    """Where the part begins along each dimension."""
    sizes: tuple[int, ...]
    """Shape of the part."""


class Piece(NamedTuple):
    """A box within an interval, and which elements of the interval it is."""

    offsets: tuple[int, ...]
    """Where it begins in the whole tensor."""
    sizes: tuple[int, ...]
    """Its shape."""
    start: int
    """First of its elements, counted from the first of the interval."""


class TrainedPart(NamedTuple):
    """What this rank trains of one weight."""

    weight: nn.Parameter
    """The weight of the model."""
    start: int
    """First element of the part, counted in the slice of the weight that this rank holds."""
    trained: nn.Parameter
    """What the optimizer updates: the weight itself, or a buffer with parts of several."""
    place: slice
    """The part in ``trained``, flat."""


def split_over(
    weight: nn.Parameter, group: MeshGroup, dim: int, *, view: tuple[int, ...] = ()
) -> nn.Parameter:
    """Note that each rank of a group holds a slice of a weight, and return the weight.

    Args:
        weight: This rank's slice; it may be a slice along other dimensions already.
        group: The ranks, by the order of their slices.
        dim: The dimension of the slices.
        view: Shape in which the slice is one box; empty: its own.
    """
    box = _whole(view) if view else box_of(weight)
    setattr(
        weight,
        _BOX,
        Box(
            whole=_replaced(box.whole, dim, box.sizes[dim] * group.size),
            offsets=_replaced(box.offsets, dim, box.sizes[dim] * group.position),
            sizes=box.sizes,
        ),
    )
    return weight


def box_of(weight: nn.Parameter) -> Box:
    """Return where this rank's slice of a weight lies; the whole one where none was noted."""
    noted: Box | None = getattr(weight, _BOX, None)
    return _whole(tuple(weight.shape)) if noted is None else noted


def hold_box(weight: nn.Parameter, box: Box) -> nn.Parameter:
    """Note where this rank's slice of a weight lies, and return the weight."""
    setattr(weight, _BOX, box)
    return weight


def pieces(box: Box, start: int, stop: int) -> Iterator[Piece]:
    """Yield the boxes that an interval of a box's elements consists of, in their order.

    >>> [(p.offsets, p.sizes) for p in pieces(Box((8, 5), (4, 0), (4, 5)), 3, 16)]
    [((4, 3), (1, 2)), ((5, 0), (2, 5)), ((7, 0), (1, 1))]

    Args:
        box: The box.
        start: First element of the interval, rows first.
        stop: First element after it.
    """
    for offsets, sizes, first in _cut(box.sizes, start, stop):
        place = tuple(a + b for a, b in zip(box.offsets, offsets, strict=True))
        yield Piece(place, sizes, first - start)


def _cut(
    sizes: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yield offsets, sizes and first element of the boxes in an interval."""
    if start >= stop:
        return
    if len(sizes) == 1:
        yield (start,), (stop - start,), start
        return
    row = prod(sizes[1:])
    first, last = -(-start // row), stop // row
    if first > last:  # it begins and ends within one row
        yield from _within(sizes, last, start, stop)
        return
    yield from _within(sizes, first - 1, start, first * row)
    if first < last:
        zeros = (0,) * (len(sizes) - 1)
        yield (first, *zeros), (last - first, *sizes[1:]), first * row
    yield from _within(sizes, last, last * row, stop)


def _within(
    sizes: tuple[int, ...], index: int, start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Yield the boxes of an interval that lies in one row."""
    begin = index * prod(sizes[1:])
    for offsets, inner, first in _cut(sizes[1:], start - begin, stop - begin):
        yield (index, *offsets), (1, *inner), first + begin


def _whole(shape: tuple[int, ...]) -> Box:
    return Box(shape, (0,) * len(shape), shape)


def _replaced(values: tuple[int, ...], dim: int, value: int) -> tuple[int, ...]:
    return (*values[:dim], value, *values[dim + 1 :])
