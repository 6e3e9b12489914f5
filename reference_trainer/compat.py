"""The torch names that the trainer needs and that differ between releases, in one place.

torch runs user-made pipeline orders only through a class and an action type
whose names start with an underscore, and those may move between releases. A
test asserts that each of them is there and takes the arguments used here, so a
new torch version fails in the test suite and not in the middle of a run. Two
collectives have a new name since torch 2.13, and warn under the old one.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    _Action,
    _ComputationType,
    _PipelineScheduleRuntime,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

Action = _Action
"""One step of a rank's pipeline order: ``Action(stage_index, type, microbatch)``."""

ScheduleRuntime = _PipelineScheduleRuntime
"""Executes an order; ``_prepare_schedule_with_comms`` adds the sends and receives to it."""

PASS_TYPES = {
    "F": _ComputationType.FORWARD,
    "B": _ComputationType.FULL_BACKWARD,
    "I": _ComputationType.BACKWARD_INPUT,
    "W": _ComputationType.BACKWARD_WEIGHT,
}
"""torch's types of the passes of ``PassKind``."""


all_gather_single: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""All-gather of one tensor into one; torch 2.13 deprecates its older name."""

reduce_scatter_single: Any = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)
"""Reduce-scatter of one tensor into one; torch 2.13 deprecates its older name."""

foreach_norm = torch._foreach_norm
"""Norms of many tensors in few kernels."""

foreach_scale = torch._foreach_mul_
"""Many tensors multiplied in place, by one scalar tensor or a number each."""

REDUCE_GRAD = _ComputationType.REDUCE_GRAD
"""What the runtime does when the last backward of a stage is done."""


def take_shapes_for_granted(stage: PipelineStage) -> None:
    """Let a stage believe that its neighbours know all shapes too, without asking them.

    In its first step torch's runtime sends a vote along the pipeline and back. A
    rank that is simulated alone has no neighbours to answer.
    """

    def agree(*_args: object, **_options: object) -> Tensor:
        return torch.tensor(1)

    stage._warmup_forward_vote = agree  # type: ignore[method-assign]
    stage._warmup_backward_result = agree  # type: ignore[method-assign]


def receive_buffers(stage: PipelineStage) -> list[Tensor]:
    """Return what a stage receives into: a buffer per microbatch and direction."""
    by_microbatch = [*stage.args_recv_info.values(), *stage.grad_recv_info.values()]
    buffers = [getattr(one, "buffer", None) for each in by_microbatch for one in each]
    return [buffer for buffer in buffers if buffer is not None]


real_tensors = unset_fake_temporarily
"""A context in which tensors have memory, also where a simulation makes them without."""


def is_wanted(node: Any) -> bool:
    """Return whether the running backward will use the gradient of an edge.

    A backward that is split into inputs and weights visits every custom function
    twice, and each visit wants other gradients; ``needs_input_grad`` is always true.

    Args:
        node: Where the edge leads, from ``next_functions``; None for no gradient.
    """
    if node is None:
        return False
    try:
        return bool(torch._C._will_engine_execute_node(node))
    except RuntimeError:
        # torch refuses to answer for a leaf, but only where torch.autograd.grad asked for it.
        return True


def process_group(boxed: Any) -> dist.ProcessGroup:
    """Return the process group that an operator got as an argument."""
    group: dist.ProcessGroup = dist.ProcessGroup.unbox(boxed)
    return group


def unboxed_work(boxed: Any) -> dist.Work:
    """Return the handle that an operator returned."""
    work: dist.Work = dist.Work.unbox(boxed)
    return work


def replaced_operator(name: str) -> Callable[..., Any]:
    """Return what still does as an operator for host memory does where that is replaced.

    A saved kernel cannot be called: it would keep the interpreter lock, for which gloo's own
    threads may wait. Dispatching releases the lock, and torch.distributed has the same kernel
    for each kind of device; gloo serves host and CUDA memory with one backend, which looks at
    the tensors.

    Args:
        name: The operator, of the namespace ``c10d``.
    """
    handle: Any = getattr(torch.ops.c10d, name).default._handle
    return partial(handle.redispatch_boxed, torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA))


__all__ = [
    "PASS_TYPES",
    "REDUCE_GRAD",
    "Action",
    "AllGather",
    "FakeStore",
    "FakeTensorMode",
    "ReduceScatter",
    "ScheduleRuntime",
    "TorchDispatchMode",
    "all_gather_single",
    "foreach_norm",
    "foreach_scale",
    "is_wanted",
    "process_group",
    "real_tensors",
    "receive_buffers",
    "reduce_scatter_single",
    "replaced_operator",
    "take_shapes_for_granted",
    "tree_iter",
    "unboxed_work",
]
