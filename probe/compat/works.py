"""Every private name of torch around the handles of operations that the probe leans on.

As ``compat``: each function returns what one hook needs, or says why it cannot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from inspect import signature
from typing import Any

from ..safety.program_signals import pass_on
from ..schema.message import message
from .absent import NotApplicableError, lacks
from .torch_names import c10d_class


def functional_works() -> Callable[[], int]:
    """Return what tells how many functional collectives nobody has waited for yet.

    Raises:
        UnsupportedError: This torch does not tell.
    """
    from torch._C import _distributed_c10d

    name = "_get_work_registry_size"
    found: Callable[[], int] | None = getattr(_distributed_c10d, name, None)
    if found is None:
        raise lacks(f"torch._C._distributed_c10d.{name}")
    return found


def calls_that_wait() -> list[tuple[Any, str]]:
    """Return calls of DistributedDataParallel that issue operations and wait for them in C++.

    They broadcast its buffers and, once, the order of its gradients. Each is named by its owner and
    its name there; those that this torch lacks are left out.
    """
    import torch.distributed as dist

    found = [(dist, "_broadcast_coalesced"), (getattr(dist, "Reducer", None), "_rebuild_buckets")]
    return [(owner, name) for owner, name in found if hasattr(owner, name)]


def group_makers() -> tuple[Any, dict[str, Callable[..., Any]]]:
    """Return the module that makes process groups, and of its functions in which members may wait.

    Those that this torch lacks, or that take other arguments, are left out.
    """
    from torch.distributed import distributed_c10d

    needed = {
        "_new_process_group_helper": {
            "group_rank",
            "global_ranks_in_group",
            "backend",
            "group_name",
        },
        "_store_based_barrier": {"group_name", "rendezvous_count"},
    }
    found = {name: getattr(distributed_c10d, name, None) for name in needed}
    return distributed_c10d, {
        name: function
        for name, function in found.items()
        if callable(function) and needed[name] <= signature(function).parameters.keys()
    }


def when_computed(call: Callable[[], None]) -> bool:
    """Have autograd call something when the backward in progress is computed; tell whether it will.

    Such calls are made in the order in which they were asked for.
    """
    from torch.autograd import Variable

    engine = getattr(Variable, "_execution_engine", None)
    if engine is None:
        return False
    try:
        engine.queue_callback(call)
    except RuntimeError:  # No backward is in progress.
        return False
    return True


def is_over(work: Any) -> bool:
    """Tell whether an operation is complete, by its handle; not where that cannot tell.

    The handle says so a little later than its future, which is what the reducer waits for.
    """
    try:
        return bool(work.is_completed() or work.get_future().done())
    except Exception as error:  # noqa: BLE001 - handles may be of any make
        pass_on(error)
        return False


def work_class() -> Any:
    """Return the class of the handles that collectives give back.

    Raises:
        UnsupportedError: It is missing or cannot be unboxed.
    """
    return c10d_class("Work", ("wait", "unbox", "_source_rank"))


def source_rank(work: Any) -> int:
    """Return the group rank that a finished receive from any sender came from."""
    return int(work._source_rank())


def device_work_timing() -> None:
    """Check that collectives can be timed on the device.

    Raises:
        NotApplicableError: This torch is built without NCCL.
        UnsupportedError: A private name is missing.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_nccl_available():
        raise NotApplicableError(message("absent.nccl"))
    c10d_class("ProcessGroup", ("_enable_collectives_timing",))
    c10d_class("Work", ("unbox", "is_completed", "_get_duration"))


def calls_around_groups() -> tuple[Any, tuple[str, str] | None]:
    """Return the class of process groups, and its calls that begin and launch a group of operations.

    What is called between them is launched as one. The calls are None in a torch without them.
    """
    owner, names = c10d_class("ProcessGroup", ()), ("_start_coalescing", "_end_coalescing")
    return owner, names if all(name in vars(owner) for name in names) else None


def enable_device_timing(process_group: Any) -> None:
    """Have a process group time the works that it makes from now on."""
    process_group._enable_collectives_timing()


def device_duration_ns(work: Any) -> int | None:
    """Return how long a work took on the device, None while it is not complete."""
    return int(work._get_duration() * 1e6) if work.is_completed() else None


def process_group_named(name: str) -> Any:
    """Return the process group that torch gave a name, None if there is none any more."""
    from torch.distributed import distributed_c10d

    resolve = getattr(distributed_c10d, "_resolve_process_group", None)
    try:
        return None if resolve is None else resolve(name)
    except (RuntimeError, ValueError, KeyError):
        return None


def process_groups() -> list[Any]:
    """Return the process groups that torch knows this rank to be in, used or not; any thread."""
    from torch.distributed import distributed_c10d

    return list(getattr(getattr(distributed_c10d, "_world", None), "pg_map", ()))


def recorded_operations() -> list[dict[str, Any]]:
    """Return the operations on CPU tensors that PyTorch's own recorder holds, the newest last; [] where it has none.

    As JSON, which has no stacks: the first look at one reads the debug information of libraries, for seconds.
    Operations of a device are left alone, as their recorder asks the device how far they are.
    """
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    if dump is None:
        return []
    return list(json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries", ()))
