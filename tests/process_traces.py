"""What of a process the probe may change: compared before attaching and after detaching."""

import gc
import os
import signal
import sys
import threading
import time

import torch


def traces_of_us():
    """Return whatever of this process the probe may change."""
    from torch._C import _distributed_c10d as c10d
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    return {
        "threads": sorted(t.name for t in threading.enumerate()),
        "files": sorted(filter(None, map(_target, os.listdir("/proc/self/fd")))),
        "finders": list(map(id, sys.meta_path)),
        "path": list(sys.path),
        "signals": {number: signal.getsignal(number) for number in (1, 2, 10, 12, 15)},
        "variables": dict(os.environ),
        "gc": list(gc.callbacks),
        "optimizer": [
            list(optimizer._global_optimizer_pre_hooks),
            list(optimizer._global_optimizer_post_hooks),
        ],
        "functions": {
            f"{owner.__name__}.{name}": id(value)
            for owner in (torch, torch.nn.Module, torch.autograd, c10d.Work,
                          torch.nn.utils, dataloader._BaseDataLoaderIter)
            for name, value in vars(owner).items()
            if callable(value)
        },
        "dispatcher": [
            torch._C._dispatch_has_kernel_for_dispatch_key(name, "BackendSelect")
            for name in ("c10d::allreduce_", "c10d::send", "_c10d_functional::wait_tensor")
        ],
    }  # fmt: skip


def _target(descriptor):
    """Return what a descriptor stands for; nothing if it was closed since it was listed."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").partition("[")[0].rstrip("0123456789:")
    except OSError:
        return ""


def differences(before, after):
    """Return what of two snapshots differs."""
    return {name: (before[name], after[name]) for name in before if before[name] != after[name]}


def differences_that_last(before, seconds=10):
    """Return what differs from a snapshot now, or after a while if it ends by itself.

    The rank closes its end of a connection only after the answer has arrived.
    """
    deadline = time.monotonic() + seconds
    while (found := differences(before, traces_of_us())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found
