"""The private torch names that the trainer needs, in one place.

torch runs user-made pipeline orders only through a class and an action type
whose names start with an underscore, and those may move between releases. A
test asserts that each of them is there and takes the arguments used here, so a
new torch version fails in the test suite and not in the middle of a run.
"""

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

__all__ = ["FORWARD", "FULL_BACKWARD", "Action", "ScheduleRuntime"]
