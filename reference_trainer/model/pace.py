"""Least wall times for parts of the model, so that ranks share cores without taking turns.

A part is put between two identity functions of autograd. In the forward the
first one notes the time and the second one sleeps until the part's time is
over; in the backward they change roles and the time is doubled::

    forward    note | part | sleep until note + t
    backward   sleep until note + 2 t | part's backward | note

What the part spent waiting for communication is taken off, as a device does not
compute meanwhile: a rank that waited 30 ms for its peer still takes t of its own.
So is what a fault adds, which comes on top of t.
Shapes as in ``model.py``.

A split backward keeps the pace in the stage: the pace of a part sits at its two ends in the autograd graph, which the weights' half of a
backward never visits; its time is kept around the half as a whole, inside the stage's own
call, where an observer of the stage sees it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage

from meshscope.probe.clock import now_ns

from ..config.config import PaceConfig

BACKWARD_FACTOR = 2
"""Backward work over forward work: two matrix products (input, weight) for one."""


class PartRunner(Protocol):
    """Runs the parts of a stage; ``Pace`` and ``NoPace`` are the two of them."""

    def embed(self, part: nn.Module, ids: Tensor) -> Tensor:
        """Run the embedding: ids (B, T) to hidden (B, S, D)."""

    def layer(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run one transformer block: hidden (B, S, D) to hidden (B, S, D)."""

    def head(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run the final norm and the output head: hidden (B, S, D) to logits (B, T, U)."""


class NoPace:
    """Runs every part at its own speed."""

    def embed(self, part: nn.Module, ids: Tensor) -> Tensor:
        """Run the embedding: ids (B, T) to hidden (B, S, D)."""
        return _run(part, ids)

    def layer(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run one transformer block: hidden (B, S, D) to hidden (B, S, D)."""
        return _run(part, hidden)

    def head(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run the final norm and the output head: hidden (B, S, D) to logits (B, T, U)."""
        return _run(part, hidden)


class Pace:
    """Runs every part for at least its configured time.

    Args:
        config: The times.
        waited_ns: Returns how long this rank has not computed so far: waits for
            communication, and time that a fault has added; in nanoseconds.
        work: Returns how much work a block has with the microbatch that is in
            the forward now, 1 being the usual amount.
        recompute_frac: Part of a block's forward that its backward repeats.
        splits_backward: Backwards come in two halves; a part's own backward then takes
            the half for its inputs, and ``WeightPace`` sees to the other.
    """

    def __init__(
        self,
        config: PaceConfig,
        waited_ns: Callable[[], int],
        work: Callable[[], float] = lambda: 1.0,
        *,
        recompute_frac: float = 0.0,
        splits_backward: bool = False,
    ) -> None:
        self._work = work
        self._backward_factor = 1 if splits_backward else BACKWARD_FACTOR
        self._layer_factor = self._backward_factor + recompute_frac
        self._embed_ns = round(config.embed_ms * 1e6)
        self._layer_ns = round(config.layer_ms * 1e6)
        self._head_ns = round(config.head_ms * 1e6)
        self._waited_ns = waited_ns

    def embed(self, part: nn.Module, ids: Tensor) -> Tensor:
        """Run the embedding, (B, T) to (B, S, D); ids have no gradient: its backward is one sleep."""
        timer = _Timer(self._embed_ns, self._waited_ns, self._backward_factor)
        timer.start()
        hidden = _run(part, ids)
        return Border.apply(hidden, timer.finish_forward, timer.sleep_backward)  # type: ignore[no-any-return, no-untyped-call]

    def layer(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run one transformer block: hidden (B, S, D) to hidden (B, S, D)."""
        least_ns = round(self._layer_ns * self._work())
        return self._between_borders(part, hidden, least_ns, self._layer_factor)

    def head(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run the final norm and the output head: hidden (B, S, D) to logits (B, T, U)."""
        return self._between_borders(part, hidden, self._head_ns, self._backward_factor)

    def _between_borders(
        self, part: nn.Module, hidden: Tensor, least_ns: int, backward_factor: float
    ) -> Tensor:
        timer = _Timer(least_ns, self._waited_ns, backward_factor)
        hidden = Border.apply(hidden, timer.start, timer.finish_backward)  # type: ignore[no-untyped-call]
        hidden = _run(part, hidden)
        return Border.apply(hidden, timer.finish_forward, timer.start)  # type: ignore[no-any-return, no-untyped-call]


class WeightPace:
    """Keeps the weights' half of a stage's backward, or both halves, from ending too early.

    Args:
        config: The times.
        blocks: Transformer blocks of the stage.
        edges: Whether the stage has the embedding, and the head.
        waited_ns: As for ``Pace``.
        work: Returns how much work a block has with a microbatch, 1 being the usual amount.
    """

    def __init__(
        self,
        config: PaceConfig,
        blocks: int,
        edges: tuple[bool, bool],
        waited_ns: Callable[[], int],
        work: Callable[[int], float] = lambda _microbatch: 1.0,
    ) -> None:
        self._blocks_ms = blocks * config.layer_ms
        self._edges_ms = edges[0] * config.embed_ms + edges[1] * config.head_ms
        self._waited_ns = waited_ns
        self._work = work

    @contextmanager
    def weights(self, microbatch: int) -> Iterator[None]:
        """Give the body the time of one forward of a microbatch."""
        timer = self._timer(microbatch)
        timer.start()
        yield
        timer.finish_forward()

    @contextmanager
    def whole_backward(self, microbatch: int) -> Iterator[None]:
        """Give the body the time of a microbatch's whole backward."""
        timer = self._timer(microbatch)
        timer.start()
        yield
        timer.finish_backward()

    def _timer(self, microbatch: int) -> _Timer:
        forward_ms = self._blocks_ms * self._work(microbatch) + self._edges_ms
        return _Timer(round(forward_ms * 1e6), self._waited_ns)


class _Timer:
    """The running time of one part for one microbatch, communication waits left out."""

    def __init__(
        self,
        least_ns: int,
        waited_ns: Callable[[], int],
        backward_factor: float = BACKWARD_FACTOR,
    ) -> None:
        self._least_ns = least_ns
        self._backward_factor = backward_factor
        self._waited_ns = waited_ns
        self._start_ns = 0

    def start(self) -> None:
        """Note the time."""
        self._start_ns = now_ns() - self._waited_ns()

    def finish_forward(self) -> None:
        """Sleep for what is left of the part's time."""
        self._sleep_until(self._least_ns)

    def finish_backward(self) -> None:
        """Sleep for what is left of the backward's time."""
        self._sleep_until(round(self._least_ns * self._backward_factor))

    def sleep_backward(self) -> None:
        """Sleep for the backward's whole time."""
        self.start()
        self.finish_backward()

    def _sleep_until(self, least_ns: int) -> None:
        left_ns = least_ns - (now_ns() - self._waited_ns() - self._start_ns)
        if left_ns > 0:
            time.sleep(left_ns / 1e9)


class Border(torch.autograd.Function):
    """An identity that calls one function on the way forward and one on the way back."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, on_forward: Callable[[], None], on_backward: Callable[[], None]
    ) -> Tensor:
        """Return the tensor, of any shape."""
        ctx.on_backward = on_backward
        on_forward()
        # Not a view: the pipeline runtime detaches the outputs of a stage in place.
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return the gradient as it came."""
        ctx.on_backward()
        return grads[0], None, None


def _run(part: nn.Module, tensor: Tensor) -> Tensor:
    """Call a module whose output is one tensor."""
    output: Tensor = part(tensor)
    return output


class PacedStage(PipelineStage):
    """A stage for schedules that split the backward.

    Attributes:
        pace: How long the halves take; None leaves them as they are.
    """

    pace: WeightPace | None = None
    _microbatch = -1

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Run the backward of a microbatch, or the half for its inputs."""
        self._microbatch = bwd_chunk_id
        return super().backward_one_chunk(bwd_chunk_id, *args, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:  # noqa: FBT001, FBT002
        """Run the weights' half of a microbatch's backward."""
        self._microbatch = bwd_chunk_id
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def backward_maybe_with_nosync(
        self,
        backward_type: str,
        bwd_kwargs: dict[str, Any],
        last_backward: bool = False,  # noqa: FBT001, FBT002 - the signature is torch's
    ) -> Any:
        """Run a backward of one kind (``full``, ``input`` or ``weight``) in its time."""
        keep: Any = nullcontext()
        if self.pace is not None and backward_type == "weight":
            keep = self.pace.weights(self._microbatch)
        elif self.pace is not None and backward_type == "full":
            keep = self.pace.whole_backward(self._microbatch)
        with keep:
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
