"""The number format of weights and activations."""

from __future__ import annotations

import torch

from .config import TrainerConfig

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def model_dtype(config: TrainerConfig) -> torch.dtype:
    """Return the format that forward and backward compute in."""
    return _DTYPES[config.memory.precision]
