"""What a rank of this run holds, by formula: its own precision, optimizer, sharding, recomputation.

``memory_plan.py`` has the numbers that papers give, for bf16 and Adam. Here are those of
the trainer, P parameters on a rank of which it owns P / s where s replicas share them::

    weights      P x 2 or 4; with ZeRO-3 between steps 4 P / s
    gradients    buckets, P x 2 or 4; ZeRO-2 has only the sums of its part, ZeRO-3 nothing, having
                 made them in the backward and dropped them in the update
    optimizer    fp32 masters of bf16 weights, and the averages, 4 bytes each, shared from ZeRO-1 on
    activations  the terms of ``activation_terms.py``, which are of bf16; the loss is fp32
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config.config import TrainerConfig
from .activation_terms import LOSS, planned_terms
from .memory_plan import RankMemory

_FP32_BYTES = 4
_BYTES = {"bf16": 2, "fp32": _FP32_BYTES}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """Bytes of one rank."""

    weights: float
    """Kept from step to step."""
    gradients: float
    """Kept from step to step."""
    optimizer: float
    """Masters and averages, kept from step to step."""
    activations: float
    """At their peak; in host memory where they are offloaded."""

    @property
    def total(self) -> float:
        """Return the sum."""
        return self.weights + self.gradients + self.optimizer + self.activations


def run_memory(config: TrainerConfig, plan: RankMemory) -> RunMemory:
    """Return what the ranks of a pipeline position hold in a run.

    Args:
        config: The run.
        plan: Their parameters and what their order holds.
    """
    zero, precision = config.data_parallel.zero, _BYTES[config.memory.precision]
    whole, part = plan.parameters, own_parameters(config, plan)
    fp32 = len(config.train.averages) + (config.memory.precision == "bf16" and zero < 3)
    return RunMemory(
        weights=precision * whole if zero < 3 else _FP32_BYTES * part,
        gradients=_BYTES[config.memory.gradients] * (whole * (zero < 2) + part * (zero == 2)),
        optimizer=_FP32_BYTES * fp32 * (part if zero else whole),
        activations=sum(
            size * (1 if name == LOSS else precision / 2)
            for name, size in planned_terms(config, plan)
        ),
    )


def own_parameters(config: TrainerConfig, plan: RankMemory) -> float:
    """Return the parameters that a rank owns where its replicas share them."""
    if config.data_parallel.shard_ranks:
        return plan.parameters / config.data_parallel.shard_ranks
    return plan.shared_parameters
