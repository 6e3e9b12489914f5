"""What this machine has: versions, and what the probe finds that it can use."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import torch

from meshscope.probe.doctor.checks import State, all_checks

from .context import Context

PACKAGES = ("torch", "numpy", "triton", "nvidia-ml-py", "nvidia-nccl-cu13", "nvidia-nccl-cu12",
            "nanoarrow", "pyarrow", "pandas", "msgspec", "isal", "typer", "rich")  # fmt: skip


def machine(context: Context) -> None:
    """Tell versions and devices, and what ``meshscope doctor`` says here."""
    context.figure("python", platform.python_version())
    context.figure("kernel", platform.release())
    context.figure("cpus", os.cpu_count())
    context.figure("packages", {name: _version(name) for name in PACKAGES})
    context.figure("torch_cuda", torch.version.cuda)
    if context.device == "cuda":
        facts = torch.cuda.get_device_properties(0)
        context.figure("gpu", facts.name)
        context.figure("gpu_mem_bytes", facts.total_memory)
        context.figure("multiprocessors", facts.multi_processor_count)
        context.figure("nccl", ".".join(map(str, torch.cuda.nccl.version())))
    found = all_checks(context.work)
    context.figure("doctor", {check.name: f"{check.state}: {check.found}" for check in found})
    if context.device == "cuda":
        missing = [c.name for c in found if c.state is State.MISSING and c.name != "meshscope"]
        context.figure("doctor_missing", missing)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
