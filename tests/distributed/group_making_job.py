"""Three ranks, two of which make a group, one of these late."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from meshscope import probe

LATE_S = 0.5
LATE, ALONE = 1, 2
"""The member that comes late, and the rank that is no member."""


def main(rank, store, run, is_barrier_wanted):
    """Make a group twice while the probe records, once after it; fail where it leaves a trace."""
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1" if is_barrier_wanted else "0"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    before = distributed_c10d._new_process_group_helper
    probe.attach(run)
    for _ in range(2):
        group = _made(rank)
        if rank != ALONE:
            dist.all_reduce(torch.ones(4), group=group)
    probe.detach()
    if distributed_c10d._new_process_group_helper is not before:
        sys.exit("the probe has left its wrapper behind")
    _made(rank)
    dist.barrier()  # Who ends closes the connections that another one still makes.
    dist.destroy_process_group()


def _made(rank):
    dist.all_reduce(torch.ones(1))  # All start together, however busy the machine is.
    if rank == LATE:
        time.sleep(LATE_S)
    return dist.new_group([0, LATE])
