"""An expert that the routers prefer: its rank gets more tokens than the others.

Unlike other faults it changes what is trained, as a router that has collapsed does.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..model.moe import MoeMlp


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
