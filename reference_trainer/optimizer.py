"""The optimizer of a run."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from .config import TrainConfig


def build_optimizer(config: TrainConfig, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that the run asks for.

    Both kinds update every element by itself, so flat buffers and parts of
    weights train like the weights themselves.
    """
    if config.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=config.learning_rate)
    return torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=0.0)
