"""Every private or version-dependent name of torch that the probe leans on.

Each function looks for what one hook needs and either returns it or raises
``UnsupportedError`` with the reason, which ends up in the capture as the reason why
that hook is missing. No other module of the probe touches a private name, but
``works`` and ``profiler``, which are the same for handles and for the profiler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

from ..clock import now_ns, thread_cpu_ns
from ..schema.message import message
from .absent import UnsupportedError, lacks


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """What it takes to stand in front of an operator and call on to it."""

    library: Callable[[str], Any]
    """Open a namespace for implementations that vanish with ``_destroy()``."""
    keys_after: Callable[[Any], Any]
    """Return those keys of a set that come after ``BackendSelect``."""
    number_of: Callable[[Any], int]
    """Return the number of a set of keys."""
    onward: dict[int, Any]
    """What ``keys_after`` returned by the number of the set: looking there first is faster."""
    operators: Callable[[str], list[str]]
    """Names of the operators of a namespace, as there were when it was first asked for."""
    redispatch: Callable[[str, str], Callable[..., Any]]
    """How to call on to an operator of a namespace."""
    has_keywords: Callable[[str, str], bool]
    """Whether an operator of a namespace has arguments that are passed by name."""


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
        raise lacks("torch._ops.OpOverload.redispatch")
    if not hasattr(torch.ops.c10d.allreduce_.default._handle, "redispatch_boxed"):
        raise lacks("OpOverload._handle.redispatch_boxed")
    if not hasattr(torch._C, "_dispatch_keyset_full_after"):
        raise lacks("torch._C._dispatch_keyset_full_after")
    if not hasattr(torch._C.DispatchKeySet, "raw_repr"):
        raise lacks("torch._C.DispatchKeySet.raw_repr")
    if not hasattr(torch.library.Library, "_destroy"):
        raise lacks("torch.library.Library._destroy")

    def operators(namespace: str) -> list[str]:
        names = torch._C._dispatch_get_all_op_names()
        prefix = f"{namespace}::"
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def redispatch(namespace: str, name: str) -> Callable[..., Any]:
        # What ``OpOverload.redispatch`` calls, without its Python frame.
        handle = getattr(getattr(torch.ops, namespace), name).default._handle
        method: Callable[..., Any] = handle.redispatch_boxed
        return method

    after = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.BackendSelect)
    onward: dict[int, Any] = {}
    # Called without what binds it to a set, which takes longer than the method itself.
    number_of = _function_of(torch._C.DispatchKeySet, "raw_repr")

    def keys_after(keyset: Any) -> Any:
        found = onward[number_of(keyset)] = keyset & after
        return found

    return Dispatcher(
        library=lambda namespace: torch.library.Library(namespace, "IMPL"),  # type: ignore[no-untyped-call]
        keys_after=keys_after,
        number_of=number_of,
        onward=onward,
        operators=cache(operators),
        redispatch=redispatch,
        has_keywords=_has_keywords,
    )


def _has_keywords(namespace: str, name: str) -> bool:
    import torch

    schema = getattr(getattr(torch.ops, namespace), name).default._schema
    return any(argument.kwarg_only for argument in schema.arguments)


def _function_of(owner: type, name: str) -> Any:
    """Return a method as the function of its object that it is."""
    method = vars(owner)[name]
    return getattr(method, "__func__", method)


_ROUNDS = 3
_FRAME_CALLS = 60
_HOP_CALLS = 12
"""Single ones are timed, and their median is taken: it differs less than the mean of five times as many."""
_GROUP = "__torch__.torch.classes.c10d.ProcessGroup"
_HOP_SCHEMA = (
    f"nothing(Tensor[] tensors, {_GROUP} group, {_GROUP} operation, "
    f"Tensor? indices, bool is_async, int timeout) -> (Tensor[], {_GROUP})"
)
"""That of ``allreduce_``, with process groups for its other objects."""
_PLAIN_SCHEMA = "nothing(Tensor[] tensors, bool is_async, int timeout) -> Tensor[]"


def dispatcher_hop_ns(access: Dispatcher, process_group: Any = None) -> int:
    """Return what a call takes longer for a Python kernel that only redispatches, in ns.

    Measured on an operator of our own that does nothing: 80 calls, each of them slower than one in C++, once.

    Args:
        access: The dispatcher.
        process_group: Any that there is. Without one the operator is simpler than those
            that communicate, and the result too low.
    """
    import torch

    library: Any = torch.library.Library
    own = library("meshscope", "DEF")
    try:
        tensors = [torch.empty(1, device="cpu")]
        arguments: tuple[Any, ...] = (tensors, False, 0)
        if process_group is None:
            own.define(_PLAIN_SCHEMA)
            own.impl("nothing", lambda tensors, *_: tensors, "CPU")
        else:
            boxed = process_group.boxed()
            arguments = (tensors, boxed, boxed, None, False, 0)
            own.define(_HOP_SCHEMA)
            own.impl("nothing", lambda tensors, group, *_: (tensors, group), "CPU")
        call = torch.ops.meshscope.nothing.default
        redispatch, onward = access.redispatch("meshscope", "nothing"), access.onward.get
        number_of, keys_after = access.number_of, access.keys_after

        def kernel(keyset: Any, *args: Any) -> Any:
            return redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)

        direct: list[int] = []
        watched: list[int] = []
        for _ in range(_ROUNDS):
            direct += _single_ns(call, arguments)
            front = access.library("meshscope")
            try:
                front.impl("nothing", kernel, "BackendSelect", with_keyset=True)
                watched += _single_ns(call, arguments)
            finally:
                front._destroy()
        return max(_middle(watched) - _middle(direct), 0)
    finally:
        own._destroy()


def wrapper_frame_ns(
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]], argument: object
) -> int:
    """Return what a call takes longer through a wrapper, in ns: a millisecond, once.

    Args:
        wrap: Returns what is called in place of a function.
        argument: What the function is called with.
    """

    def nothing(_module: object, *_args: Any, **_kwargs: Any) -> None:
        pass

    wrapped, arguments = wrap(nothing), (argument, argument)
    rounds = range(_ROUNDS)
    watched = min(_mean_ns(wrapped, arguments) for _ in rounds)
    return max(watched - min(_mean_ns(nothing, arguments) for _ in rounds), 0)


def runs_without_python(module: Any) -> bool:
    """Tell whether the modules below one are not called by Python: it is compiled or scripted."""
    import torch

    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    compiled = getattr(dynamo, "OptimizedModule", ())
    return isinstance(
        module, (torch.jit.ScriptModule, compiled) if compiled else torch.jit.ScriptModule
    )


def _mean_ns(call: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    call(*arguments)
    start_ns = thread_cpu_ns()
    for _ in range(_FRAME_CALLS):
        call(*arguments)
    return (thread_cpu_ns() - start_ns) // _FRAME_CALLS


def _single_ns(call: Callable[..., Any], arguments: tuple[Any, ...]) -> list[int]:
    """Return what calls take, without the first one, which fills tables."""
    call(*arguments)
    taken_ns = []
    for _ in range(_HOP_CALLS):
        start_ns = now_ns()
        call(*arguments)
        taken_ns.append(now_ns() - start_ns)
    return taken_ns


def _middle(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def process_group_class() -> Any:
    """Return the process group class.

    Raises:
        UnsupportedError: It is missing or cannot be unboxed.
    """
    return c10d_class("ProcessGroup", ("unbox", "group_name", "group_desc", "size"))


def c10d_class(name: str, members: tuple[str, ...]) -> Any:
    """Return a class of torch's communication layer that has some members.

    Raises:
        UnsupportedError: It is missing, or one of them is.
    """
    import torch.distributed

    if not torch.distributed.is_available():
        raise UnsupportedError(message("absent.distributed"))
    found = getattr(torch._C._distributed_c10d, name, None)
    if found is None:
        raise lacks(f"torch._C._distributed_c10d.{name}")
    for member in members:
        if not hasattr(found, member):
            raise lacks(f"{name}.{member}")
    return found


def is_compiling() -> Callable[[], bool]:
    """Return the test for running under the tracer of torch.compile."""
    import torch

    compiler = getattr(torch, "compiler", None)
    if compiler is None or not hasattr(compiler, "is_compiling"):
        return lambda: False
    test: Callable[[], bool] = compiler.is_compiling
    return test


def has_compiled() -> bool:
    """Tell whether torch.compile has compiled anything here.

    What it compiled is checked at each call against the functions that it went through, and is
    compiled anew, for minutes in a large model, where one of them was replaced.
    """
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    return compiler is not None and getattr(compiler, "FRAME_COUNTER", 1) > 0


def compiler_skip() -> Callable[[CodeType], None]:
    """Return what tells torch.compile not to compile a function, and to go on with what it calls.

    Raises:
        UnsupportedError: This torch has no such thing.
    """
    import torch

    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    if hasattr(frames, "skip_code"):
        older: Callable[[CodeType], None] = frames.skip_code
        return older
    if not hasattr(frames, "set_code_exec_strategy"):
        raise lacks("torch._C._dynamo.eval_frame.set_code_exec_strategy")
    action = frames._FrameAction
    strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
    return lambda code: frames.set_code_exec_strategy(code, strategy)


def is_in_autograd() -> Callable[[], bool]:
    """Return the test for being called by autograd, on whatever thread it runs a backward.

    Where this torch cannot tell, it holds everywhere.
    """
    import torch

    task_of_thread = getattr(torch._C, "_current_graph_task_id", None)
    if task_of_thread is None:
        return lambda: True
    return lambda: task_of_thread() != -1


def data_loader_iterator_class() -> Any:
    """Return the base class of data loader iterators.

    Raises:
        UnsupportedError: It has moved.
    """
    from torch.utils.data import dataloader

    found = getattr(dataloader, "_BaseDataLoaderIter", None)
    if found is None or "__next__" not in vars(found):
        raise lacks("torch.utils.data.dataloader._BaseDataLoaderIter.__next__")
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
        raise lacks(f"{module.__name__}.{name}")
    for method in methods:
        if method not in vars(found):
            raise lacks(f"{module.__name__}.{name}.{method}")
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
    uuid: str | None
    """As the driver names it; None where this torch does not tell."""


def cuda_device() -> Device:
    """Return the current CUDA device, which must be initialised."""
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = getattr(properties, "uuid", None)
    return Device(
        properties.name, int(properties.total_memory), None if uuid is None else str(uuid)
    )
