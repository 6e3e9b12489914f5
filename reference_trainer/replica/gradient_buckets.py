"""Which parameters travel together: the layout of a flat buffer, without the buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor, nn

MASTER_DTYPE = torch.float32
"""What the optimizer updates is fp32, whatever the weights and the gradients are."""


class BucketPiece(NamedTuple):
    """What of a parameter lies in a part of a buffer."""

    parameter: nn.Parameter
    """The parameter."""
    start: int
    """First of its elements that does."""
    place: slice
    """Where they lie within the part."""


class Bucket:
    """Some parameters, one after the other in a flat buffer.

    Args:
        members: The parameters, in the order of the buffer.
        parts: Equal parts that the buffer must divide into; padded at the end.

    Attributes:
        members: The parameters.
        size: Elements of the buffer, padding included.
        part_size: Elements of one part.
        device: Where the parameters are.
    """

    def __init__(self, members: Iterable[nn.Parameter], parts: int) -> None:
        self.members = tuple(members)
        sizes = [parameter.numel() for parameter in self.members]
        *self._offsets, used = accumulate(sizes, initial=0)
        self.part_size = -(-used // parts)
        self.size = self.part_size * parts
        self.device = self.members[0].device

    def view(self, flat: Tensor, member: int) -> Tensor:
        """Return a member's place in a buffer, in the member's shape."""
        parameter = self.members[member]
        return flat.narrow(0, self._offsets[member], parameter.numel()).view_as(parameter)

    def pieces(self, part: int) -> Iterator[BucketPiece]:
        """Yield what lies in a part, member by member."""
        begin = part * self.part_size
        for parameter, offset in zip(self.members, self._offsets, strict=True):
            low = max(offset - begin, 0)
            high = min(offset + parameter.numel() - begin, self.part_size)
            if low < high:
                yield BucketPiece(parameter, begin + low - offset, slice(low, high))


def split_into_buckets(
    parameters: Iterable[nn.Parameter],
    bucket_bytes: int,
    *,
    dtype: torch.dtype = MASTER_DTYPE,
    parts: int = 1,
    alone: nn.Parameter | None = None,
) -> list[Bucket]:
    """Return buckets of consecutive parameters, from the last parameter back.

    Backward reaches the last layer first, so the first bucket is complete first.

    Args:
        parameters: In model order.
        bucket_bytes: Gradient bytes at which a bucket is closed; a larger single
            gradient gets a bucket of its own.
        dtype: What the gradients are kept in.
        parts: Equal parts that each bucket must divide into.
        alone: A parameter that gets a bucket of its own.
    """
    buckets: list[list[nn.Parameter]] = []
    size_bytes = 0
    for parameter in list(parameters)[::-1]:
        grad_bytes = parameter.numel() * dtype.itemsize
        if not buckets or size_bytes + grad_bytes > bucket_bytes or parameter is alone:
            buckets.append([])
            size_bytes = 0
        buckets[-1].append(parameter)
        size_bytes = bucket_bytes if parameter is alone else size_bytes + grad_bytes
    return [Bucket(members, parts) for members in buckets]
