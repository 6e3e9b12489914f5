"""What the machine can do at best, for the run's MFU."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from meshscope.probe.clock import now_ns, thread_cpu_ns

from ..parallel.comm import Communicator
from ..parallel.mesh import Mesh

_WIDTH = 512
_ATTEMPTS = 20
_MOST_WAITED = 1.1
"""A matmul that takes longer than its CPU time by more had no core of its own."""
_SOURCE = "measured fp32 matmul on one CPU thread"
_BUSY = "unusable: other work held the cores while it was measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device of the run."""

    name: str
    """Name of the device."""
    peak_flops: float | None
    """Floating point operations per second, or None where a datasheet knows better."""
    peak_source: str | None
    """Where the peak comes from."""


def find_hardware(mesh: Mesh, comm: Communicator) -> Hardware:
    """Return this rank's device; on a CPU rank 0 measures the peak while the others wait.

    Only one rank measures, since ranks that share cores would measure each other.
    """
    if mesh.device.type == "cuda":
        name = torch.cuda.get_device_name(mesh.device)
        return Hardware(name=name, peak_flops=None, peak_source=None)
    measured = comm.share_from_rank_zero(_matmul_flops() if mesh.rank == 0 else 0, mesh.device)
    name = f"CPU {platform.machine()}"
    if not measured:
        return Hardware(name=name, peak_flops=None, peak_source=_BUSY)
    return Hardware(name=name, peak_flops=float(measured), peak_source=_SOURCE)


def _matmul_flops() -> int:
    """Return the best rate of a square fp32 matmul, counted as 2 n^3 operations; 0 if disturbed.

    A matmul that waits for its core shows less than the core can do: where all did, nothing
    that was measured is a peak.
    """
    left = torch.ones(_WIDTH, _WIDTH)
    right = torch.ones(_WIDTH, _WIDTH)
    times = [_matmul_ns(left, right) for _ in range(_ATTEMPTS)]
    alone = [wall_ns for wall_ns, cpu_ns in times if wall_ns <= _MOST_WAITED * cpu_ns]
    return 2 * _WIDTH**3 * 1_000_000_000 // min(alone) if alone else 0


def _matmul_ns(left: torch.Tensor, right: torch.Tensor) -> tuple[int, int]:
    """Return wall and CPU time of one matmul."""
    start_ns, start_cpu_ns = now_ns(), thread_cpu_ns()
    torch.mm(left, right)
    return max(1, now_ns() - start_ns), max(1, thread_cpu_ns() - start_cpu_ns)
