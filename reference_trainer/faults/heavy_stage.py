"""Extra time in parts of the model: a stage that has more to do than the others.

The time is added behind the part in the forward, and twice as much in front of
its backward, as more layers or more rows would do. On a CPU it is slept, so it
belongs to the emulated devices of ``pace.py``; a GPU spends it in matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from ..model.pace import BACKWARD_FACTOR, Border, PartRunner

Spend = Callable[[str, int, float], None]
"""Spends the extra time of a part ("embed", "layers" or "head") with a microbatch, so many times."""


class HeavyStage:
    """Runs the parts of a stage as another runner does, and adds time to them.

    Args:
        runner: Runs the parts.
        spend: Spends the time of a part; it may have none.
        microbatch: Returns the microbatch that is in the forward.
    """

    def __init__(
        self, runner: PartRunner, spend: Spend, microbatch: Callable[[], int] = lambda: -1
    ) -> None:
        self._runner = runner
        self._spend = spend
        self._microbatch = microbatch

    def embed(self, part: nn.Module, ids: Tensor) -> Tensor:
        """Run the embedding: ids (B, T) to hidden (B, S, D)."""
        return self._weigh(self._runner.embed(part, ids), "embed")

    def layer(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run one transformer block: hidden (B, S, D) to hidden (B, S, D)."""
        return self._weigh(self._runner.layer(part, hidden), "layers")

    def head(self, part: nn.Module, hidden: Tensor) -> Tensor:
        """Run the final norm and output head: hidden (B, S, D) to logits (B, T, U)."""
        return self._weigh(self._runner.head(part, hidden), "head")

    def _weigh(self, output: Tensor, part: str) -> Tensor:
        microbatch = self._microbatch()  # by its backward another one will be in the forward
        forward = partial(self._spend, part, microbatch, 1)
        backward = partial(self._spend, part, microbatch, BACKWARD_FACTOR)
        return Border.apply(output, forward, backward)  # type: ignore[no-any-return, no-untyped-call]
