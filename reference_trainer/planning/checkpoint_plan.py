"""How large a checkpoint will be, from formulas, before anything runs.

A checkpoint holds fp32 weights and what the optimizer keeps of each (AdamW: two
averages), once for the whole model. Of what several replicas hold alike each writes its
share; an asynchronous save copies all that a rank holds to its host's memory first.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..config.config import TrainerConfig
from ..text_table import gigabytes
from .memory_plan import memory_plan
from .parameter_counts import parameter_count

_FP32_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSize:
    """Bytes of one checkpoint, without what the file format adds."""

    total: int
    """Of all ranks together."""
    written: tuple[float, ...]
    """By one rank of each pipeline position, at most: what tensor-parallel ranks or the ends of a
    tied model hold alike is counted on each of them."""
    staged: tuple[float, ...]
    """Copied to host memory by one rank of each pipeline position when it is asynchronous."""


def bytes_per_parameter(config: TrainerConfig) -> int:
    """Return the bytes that a checkpoint has for each parameter."""
    return _FP32_BYTES * (1 + len(config.train.averages))


def checkpoint_size(config: TrainerConfig) -> CheckpointSize:
    """Return the size of a checkpoint of a run."""
    per_parameter = bytes_per_parameter(config)
    plans = memory_plan(config)
    written = tuple(plan.shared_parameters * per_parameter for plan in plans)
    staged = written
    copies = config.data_parallel
    if copies.zero == 0 or copies.shard_ranks:
        parts = copies.shard_ranks or 1
        staged = tuple(plan.parameters * per_parameter / parts for plan in plans)
    return CheckpointSize(
        total=parameter_count(config.model, config.moe) * per_parameter,
        written=written,
        staged=staged,
    )


def checkpoint_lines(config: TrainerConfig) -> list[str]:
    """Return what ``--dry-run`` says of checkpoints."""
    size = checkpoint_size(config)
    kept = ", ".join(("fp32 weights", *config.train.averages))
    largest = max(size.written)
    where = size.written.index(largest)
    return [
        f"checkpoint  {gigabytes(size.total)} GB: {kept}, "
        f"{bytes_per_parameter(config)} bytes per parameter",
        f"each rank writes {gigabytes(min(size.written))} to {gigabytes(largest)} GB, most on pp "
        f"rank {where}; an asynchronous save takes up to {gigabytes(max(size.staged))} GB of host "
        "memory per rank",
    ]
