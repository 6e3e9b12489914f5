"""Every private or version-dependent name of torch that the probe leans on.

Each function looks for what one hook needs and either returns it or raises
``UnsupportedError`` with the reason, which ends up in the capture as the reason why
that hook is missing. No other module of the probe touches a private name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple


class UnsupportedError(Exception):
    """This torch lacks what a hook needs; the message says what."""


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """What it takes to stand in front of an operator and call on to it."""

    library: Callable[[str], Any]
    """Open a namespace for implementations that vanish with ``_destroy()``."""
    keys_after: Any
    """Dispatch keys that come after ``BackendSelect``."""
    operators: Callable[[str], list[str]]
    """Names of the operators of a namespace."""
    redispatch: Callable[[str, str], Callable[..., Any]]
    """How to call on to an operator of a namespace."""


def dispatcher() -> Dispatcher:
    """Return access to the operator dispatcher.

    ``redispatch`` is the only acceptable way on: it releases the interpreter
    lock before the backend runs. Calling a saved kernel keeps the lock and
    deadlocks with the backend's worker threads.

    Raises:
        UnsupportedError: This torch cannot redispatch from Python.
    """
    import torch

    if not hasattr(torch._ops.OpOverload, "redispatch"):
        raise UnsupportedError("torch._ops.OpOverload.redispatch is missing")
    if not hasattr(torch.ops.c10d.allreduce_.default._handle, "redispatch_boxed"):
        raise UnsupportedError("redispatch_boxed is missing from operator handles")
    if not hasattr(torch._C, "_dispatch_keyset_full_after"):
        raise UnsupportedError("torch._C._dispatch_keyset_full_after is missing")
    if not hasattr(torch.library.Library, "_destroy"):
        raise UnsupportedError("torch.library.Library._destroy is missing")

    def operators(namespace: str) -> list[str]:
        names = torch._C._dispatch_get_all_op_names()
        prefix = f"{namespace}::"
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def redispatch(namespace: str, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(getattr(torch.ops, namespace), name).default.redispatch
        return method

    return Dispatcher(
        library=lambda namespace: torch.library.Library(namespace, "IMPL"),  # type: ignore[no-untyped-call]
        keys_after=torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect),
        operators=operators,
        redispatch=redispatch,
    )


def work_class() -> Any:
    """Return the class of the handles that collectives give back.

    Raises:
        UnsupportedError: It is missing or cannot be unboxed.
    """
    return _c10d_class("Work", ("wait", "unbox", "_source_rank"))


def source_rank(work: Any) -> int:
    """Return the group rank that a finished receive from any sender came from."""
    return int(work._source_rank())


def process_group_class() -> Any:
    """Return the process group class.

    Raises:
        UnsupportedError: It is missing or cannot be unboxed.
    """
    return _c10d_class("ProcessGroup", ("unbox", "group_name", "group_desc", "size"))


def _c10d_class(name: str, members: tuple[str, ...]) -> Any:
    import torch.distributed

    if not torch.distributed.is_available():
        raise UnsupportedError("this torch is built without torch.distributed")
    found = getattr(torch._C._distributed_c10d, name, None)
    if found is None:
        raise UnsupportedError(f"torch._C._distributed_c10d.{name} is missing")
    for member in members:
        if not hasattr(found, member):
            raise UnsupportedError(f"{name}.{member} is missing")
    return found


def is_compiling() -> Callable[[], bool]:
    """Return the test for running under the tracer of torch.compile."""
    import torch

    compiler = getattr(torch, "compiler", None)
    if compiler is None or not hasattr(compiler, "is_compiling"):
        return lambda: False
    test: Callable[[], bool] = compiler.is_compiling
    return test


def data_loader_iterator_class() -> Any:
    """Return the base class of data loader iterators.

    Raises:
        UnsupportedError: It has moved.
    """
    from torch.utils.data import dataloader

    found = getattr(dataloader, "_BaseDataLoaderIter", None)
    if found is None or "__next__" not in vars(found):
        raise UnsupportedError(
            "torch.utils.data.dataloader._BaseDataLoaderIter.__next__ is missing"
        )
    return found


def pipeline_stage_class() -> Any:
    """Return the base class of pipeline stages, once its module is imported.

    Raises:
        UnsupportedError: It has moved or lost a method that the probe wraps.
    """
    module = sys.modules["torch.distributed.pipelining.stage"]
    return _class_with(
        module,
        "_PipelineStageBase",
        ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk"),
    )


def pipeline_schedule_classes() -> tuple[Any, Any, Any]:
    """Return the schedule base class and its single- and multi-stage children.

    Raises:
        UnsupportedError: One has moved or lost a method that the probe wraps.
    """
    module = sys.modules["torch.distributed.pipelining.schedules"]
    return (
        _class_with(module, "_PipelineSchedule", ("_maybe_compute_loss",)),
        _class_with(module, "PipelineScheduleSingle", ("step",)),
        _class_with(module, "PipelineScheduleMulti", ("step",)),
    )


def _class_with(module: Any, name: str, methods: tuple[str, ...]) -> Any:
    found = getattr(module, name, None)
    if found is None:
        raise UnsupportedError(f"{module.__name__}.{name} is missing")
    for method in methods:
        if method not in vars(found):
            raise UnsupportedError(f"{module.__name__}.{name}.{method} is missing")
    return found


def cuda_memory_reader() -> Callable[[], tuple[int, int, int]] | None:
    """Return a reader of (allocated, reserved, peak) bytes, or None without CUDA.

    The nested statistics of the allocator are taken as they come: the public
    ``memory_stats`` flattens and sorts them first, at many times the cost.
    """
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    nested = getattr(torch.cuda, "memory_stats_as_nested_dict", None)
    if nested is None:
        return None

    def read() -> tuple[int, int, int]:
        stats = nested()
        allocated = stats["allocated_bytes"]["all"]
        return allocated["current"], stats["reserved_bytes"]["all"]["current"], allocated["peak"]

    return read


class Device(NamedTuple):
    """The device of this process."""

    name: str
    memory_bytes: int


def cuda_device() -> Device:
    """Return the current CUDA device, which must be initialised."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Device(properties.name, int(properties.total_memory))
