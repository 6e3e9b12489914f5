"""The private torch names that the trainer needs, in one place.

torch runs user-made pipeline orders only through a class and an action type
whose names start with an underscore, and those may move between releases. A
test asserts that each of them is there and takes the arguments used here, so a
new torch version fails in the test suite and not in the middle of a run.
"""

import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.pipelining.schedules import (
    _Action,
    _ComputationType,
    _PipelineScheduleRuntime,
)

Action = _Action
"""One step of a rank's pipeline order: ``Action(stage_index, type, microbatch)``."""

ScheduleRuntime = _PipelineScheduleRuntime
"""Executes an order; ``_prepare_schedule_with_comms`` adds the sends and receives to it."""

FORWARD = _ComputationType.FORWARD
"""Forward of one microbatch through one stage."""

FULL_BACKWARD = _ComputationType.FULL_BACKWARD
"""Backward of one microbatch, for inputs and weights together."""

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""All-gather of one tensor into one; torch 2.13 deprecates its older name."""

reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
"""Reduce-scatter of one tensor into one; torch 2.13 deprecates its older name."""

REDUCE_GRAD = _ComputationType.REDUCE_GRAD
"""What the runtime does when the last backward of a stage is done."""

__all__ = [
    "FORWARD",
    "FULL_BACKWARD",
    "REDUCE_GRAD",
    "Action",
    "AllGather",
    "ReduceScatter",
    "ScheduleRuntime",
    "all_gather_single",
    "reduce_scatter_single",
]
