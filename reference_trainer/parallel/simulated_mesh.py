"""A job of any number of ranks in one process, seen by one of them.

torch's fake process group takes part in every collective and moves nothing: it
returns at once, and buffers keep what they had. With tensors that have shapes
and no memory, nothing is lost by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from meshscope.probe.schema.layout import ParallelLayout

from ..compat import FakeStore
from .mesh import Mesh, build_mesh


@contextmanager
def open_simulated_mesh(layout: ParallelLayout, rank: int) -> Iterator[Mesh]:
    """Yield the mesh as one rank sees it; there are no other ranks.

    Its device is a CPU: torch without CUDA cannot even pretend to have another.

    Args:
        layout: The mesh.
        rank: The rank, 0 to ``layout.world_size - 1``.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.world_size)
    try:
        yield build_mesh(layout, rank, torch.device("cpu"))
    finally:
        dist.destroy_process_group()
