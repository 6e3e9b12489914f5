"""The number formats of weights and activations, and of gradients.

With 16 bits the optimizer keeps fp32 masters (``optimizer.py``;
Micikevicius et al. 2018, arXiv 1710.03740, section 3.1).
"""

from __future__ import annotations

import torch

from ..config.config import TrainerConfig

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def model_dtype(config: TrainerConfig) -> torch.dtype:
    """Return the format that forward and backward compute in."""
    return _DTYPES[config.memory.precision]


def gradient_dtype(config: TrainerConfig) -> torch.dtype:
    """Return the format that gradients are added up, sent and kept in."""
    return _DTYPES[config.memory.gradients]
