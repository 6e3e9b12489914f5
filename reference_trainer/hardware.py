"""What the machine can do at best, for the run's MFU."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from meshscope.probe.clock import now_ns

from .comm import Communicator
from .mesh import Mesh

_WIDTH = 512
_ATTEMPTS = 20


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
    measured = _matmul_flops() if mesh.rank == 0 else 0
    return Hardware(
        name=f"CPU {platform.machine()}",
        peak_flops=float(comm.share_from_rank_zero(measured, mesh.device)),
        peak_source="measured fp32 matmul on one CPU thread",
    )


def _matmul_flops() -> int:
    """Return the best rate of a square fp32 matmul, counted as 2 n^3 operations."""
    left = torch.ones(_WIDTH, _WIDTH)
    right = torch.ones(_WIDTH, _WIDTH)
    best_ns = min(_matmul_ns(left, right) for _ in range(_ATTEMPTS))
    return 2 * _WIDTH**3 * 1_000_000_000 // best_ns


def _matmul_ns(left: torch.Tensor, right: torch.Tensor) -> int:
    start_ns = now_ns()
    torch.mm(left, right)
    return max(1, now_ns() - start_ns)
