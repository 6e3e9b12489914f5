"""The optimizer of a run."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ..config.config import TrainConfig


def build_optimizer(config: TrainConfig, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that the run asks for.

    Both kinds update every element by itself, so flat buffers and parts of
    weights train like the weights themselves.
    """
    if config.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=config.learning_rate, momentum=config.momentum)
    return torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=0.0)


def fill_state(config: TrainConfig, optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Give an optimizer the state that it has after some updates, all averages still zero.

    torch makes the state in the first update, which is too late to load it. Zeros are where
    each average starts, so filling in an optimizer before its first update changes nothing.
    """
    for group in optimizer.param_groups:
        for weight in group["params"]:
            state = optimizer.state[weight]
            for name in config.averages:
                state.setdefault(name, torch.zeros_like(weight, requires_grad=False))
            if config.optimizer == "adamw":
                state["step"] = torch.tensor(float(updates))
