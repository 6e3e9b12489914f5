"""The torch names that the trainer needs and that differ between releases, in one place.

torch runs user-made pipeline orders only through a class and an action type
whose names start with an underscore, and those may move between releases. A
test asserts that each of them is there and takes the arguments used here, so a
new torch version fails in the test suite and not in the middle of a run. Two
collectives have a new name since torch 2.13, and warn under the old one.
"""

from typing import Any

import torch.distributed as dist
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

all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""``(output, input, group, async_op)``: output is the inputs of all members in a row."""

reduce_scatter_single: Any = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)
"""``(output, input, group=, async_op=)``: output is this member's part of the sum of inputs."""

__all__ = [
    "FORWARD",
    "FULL_BACKWARD",
    "Action",
    "ScheduleRuntime",
    "all_gather_single",
    "reduce_scatter_single",
]
