"""How gradients travel: in buckets, as they are, as bf16, or as int8 with scales.

Each form sums a flat buffer over the replicas, whole (``all_reduce``) or
only this rank's part of it (``reduce_scatter``), with one collective that is
issued here and finished when its arrival is waited for. Nothing runs in a
completion callback: on gloo a callback that blocks starves the few threads that
complete the other collectives.

Errors per element, with g_r the gradient of replica r and R replicas:

- as it is, fp32: rounding of the sum only.
- as it is, bf16: at most ((1 + u)^(R - 1) - 1) x sum |g_r| with u = 2^-8; before
  that, m microbatches added up in the buffer have m - 1 such roundings each.
- bf16: at most ((1 + u)^R - 1) x sum |g_r| with u = 2^-8, the unit roundoff of
  8 significant bits: one rounding by the cast and at most R - 1 by the sum.
- int8: at most sum m_r / 254 with m_r the largest |g_r| among the 256 neighbours
  that share a scale: half a step of m_r / 127 from each replica. The sum is fp32.
  (Scales for blocks: Dettmers et al. 2022, arXiv 2110.02861, section 2.1.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..parallel.comm import Communicator, Pending
from ..parallel.mesh import MeshGroup

INT8_BLOCK = 256
"""Neighbouring gradients that share one fp32 scale: 1.6 % more bytes."""

Deliver = Callable[[Tensor], object]
"""Puts this rank's part of a sum into its place."""

_INT8_LARGEST = 127
_SCALE_BYTES = torch.float32.itemsize


class Arrival:
    """A sum on its way.

    Args:
        pending: The collective.
        unpack: Puts what came into its place.
    """

    def __init__(self, pending: Pending, unpack: Callable[[], object]) -> None:
        self._pending = pending
        self._unpack = unpack

    def wait(self) -> None:
        """Return when the sum is in its place."""
        self._pending.wait()
        self._unpack()


class GradientWire(Protocol):
    """Sums flat gradients over the replicas."""

    def all_reduce(self, flat: Tensor) -> Arrival:
        """Replace a buffer (N,) by its sum."""

    def reduce_scatter(self, flat: Tensor, deliver: Deliver) -> Arrival:
        """Hand over this rank's part (P,) of the sum of a buffer (R P,)."""


def wire_for(
    compression: Literal["none", "bf16", "int8"], group: MeshGroup, comm: Communicator
) -> GradientWire:
    """Return the wire of a setting; without other replicas nothing is rounded."""
    if compression == "bf16" and group.size > 1:
        return Bf16Wire(group, comm)
    if compression == "int8" and group.size > 1:
        return Int8Wire(group, comm)
    return ExactWire(group, comm)


class _Wire:
    """What the forms share: the replicas, and what issues their collectives."""

    def __init__(self, group: MeshGroup, comm: Communicator) -> None:
        self._group = group
        self._comm = comm


class ExactWire(_Wire):
    """As it is: fp32, or bf16 where gradients are kept so."""

    def all_reduce(self, flat: Tensor) -> Arrival:
        """Replace a buffer (N,) by its sum."""
        return Arrival(self._comm.all_reduce(flat, self._group), lambda: None)

    def reduce_scatter(self, flat: Tensor, deliver: Deliver) -> Arrival:
        """Hand over this rank's part (P,) of the sum of a buffer (R P,)."""
        received, pending = self._comm.reduce_scatter(flat.view(self._group.size, -1), self._group)
        return Arrival(pending, lambda: deliver(received))


class Bf16Wire(_Wire):
    """Half the bytes: cast before, summed in bf16, added in fp32."""

    def all_reduce(self, flat: Tensor) -> Arrival:
        """Replace a buffer (N,) by its sum."""
        half = flat.bfloat16()
        return Arrival(self._comm.all_reduce(half, self._group), lambda: flat.copy_(half))

    def reduce_scatter(self, flat: Tensor, deliver: Deliver) -> Arrival:
        """Hand over this rank's part (P,) of the sum of a buffer (R P,)."""
        rows = flat.bfloat16().view(self._group.size, -1)
        received, pending = self._comm.reduce_scatter(rows, self._group)
        return Arrival(pending, lambda: deliver(received))


class Int8Wire(_Wire):
    """A quarter of the bytes: int8 steps and fp32 scales in one buffer, summed after arrival.

    Integers with different scales cannot be summed on the way. So the whole sum
    is an all-gather of everybody's bytes, which for more than a few replicas
    moves more than it saves; the sum of parts is an all-to-all and scales.
    """

    def all_reduce(self, flat: Tensor) -> Arrival:
        """Replace a buffer (N,) by its sum."""
        received, pending = self._comm.all_gather(quantise(flat.view(1, -1))[0], self._group)
        return Arrival(pending, lambda: flat.copy_(dequantised_sum(received, flat.numel())))

    def reduce_scatter(self, flat: Tensor, deliver: Deliver) -> Arrival:
        """Hand over this rank's part (P,) of the sum of a buffer (R P,)."""
        sent = quantise(flat.view(self._group.size, -1))
        received, pending = self._comm.all_to_all(sent, self._group)
        size = flat.numel() // self._group.size
        return Arrival(pending, lambda: deliver(dequantised_sum(received, size)))


def quantise(rows: Tensor) -> Tensor:
    """Return the bytes of each row of a matrix (R, N): scales first, then one int8 per element.

    An infinite or undefined gradient makes its whole block undefined, so that it
    is not lost on the way.
    """
    count, size = rows.shape
    padded = torch.nn.functional.pad(rows, (0, -size % INT8_BLOCK))
    blocks = padded.view(count, -1, INT8_BLOCK)
    scales = blocks.abs().amax(dim=2, keepdim=True) / _INT8_LARGEST
    # A block of zeros has scale 0 and stays zero.
    steps = torch.where(scales > 0, blocks / scales, 0.0).round().to(torch.int8)
    return torch.cat(
        [scales.view(count, -1).view(torch.uint8), steps.view(count, -1).view(torch.uint8)], dim=1
    )


def dequantised_sum(received: Tensor, size: int) -> Tensor:
    """Return the fp32 sum (size,) of the rows of bytes (R, ...) that ``quantise`` made."""
    blocks = -(-size // INT8_BLOCK)
    border = blocks * _SCALE_BYTES
    scales = received[:, :border].contiguous().view(torch.float32).unsqueeze(2)  # (R, blocks, 1)
    steps = received[:, border:].view(torch.int8).view(received.shape[0], blocks, INT8_BLOCK)
    total: Tensor = (steps * scales).sum(dim=0)
    return total.view(-1)[:size]


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
