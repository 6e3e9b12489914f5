"""A job whose last all-to-all differs between pairs of ranks, though all sums agree."""

import torch
import torch.distributed as dist

from meshscope import probe

WORLD = 4
ODD, STEP = 2, 3
SPLITS = [5, 4, 3, 4]
"""What rank ``ODD`` sends in step ``STEP``, in rows; all others are sent and expected by fours."""
ROW_BYTES = 4000


def main(rank, port, run, form):
    """Exchange lists of tensors or one tensor with stated splits, until the backend gives up."""
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD
    )
    probe.attach(run)
    for step in range(STEP + 1):
        own = SPLITS if (rank, step) == (ODD, STEP) else [4] * WORLD
        if form == "lists":
            sent = [torch.zeros(rows, ROW_BYTES // 4) for rows in own]
            dist.all_to_all([torch.zeros(4, ROW_BYTES // 4) for _ in own], sent)
        else:
            whole = torch.zeros(16, ROW_BYTES // 4)
            dist.all_to_all_single(torch.zeros_like(whole), whole, [4] * WORLD, own)
