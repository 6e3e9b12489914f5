"""Faults inside the model: a stage that has more to do, an expert that the routers prefer.

A preferred expert changes what is trained, unlike other faults, as a router that has collapsed does.

The time of a stage is added behind a part in the forward, and twice as much in front of
its backward, as more layers or more rows would do. On a CPU it is slept, so it
belongs to the emulated devices of ``pace.py``; a GPU spends it in matrix products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor, nn

from ..model.moe import MoeMlp
from ..model.pace import BACKWARD_FACTOR, Border, PartRunner


class RouterBias:
    """What is added to the scores of the routers of this rank."""

    def __init__(self) -> None:
        self._layers: list[MoeMlp] = []

    def attach(self, stage: nn.Module) -> None:
        """Take the routers of a stage."""
        self._layers += [module for module in stage.modules() if isinstance(module, MoeMlp)]

    def set(self, bias: Mapping[int, float]) -> None:
        """Add to the scores of some experts, and nothing to those of the others."""
        for layer in self._layers:
            layer.routing_bias.zero_()
            for expert, score in bias.items():
                layer.routing_bias[expert].fill_(score)


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
