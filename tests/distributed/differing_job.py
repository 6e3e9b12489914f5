"""A job that ends in order although one rank gives other sizes, and each of them other rows of a sparse table."""

import inspect

import torch
import torch.distributed as dist

from meshscope import probe

WORLD, STEPS = 3, 4
ODD, FIRST = 1, 2
"""Who gives a longer tensor to a broadcast, and from which step on."""


def main(rank, port, run):
    """Broadcast, add sparse tensors, and send 2,000 bytes into a buffer of 4,000."""
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD
    )
    probe.attach(run)
    for step in range(STEPS):
        dist.broadcast(torch.ones(2000 if rank == ODD and step >= FIRST else 1000), 0)
        rows = torch.arange(rank + 1)[None]
        dist.all_reduce(torch.sparse_coo_tensor(rows, torch.ones(rank + 1, 4), (8, 4)))
        if rank == 0:
            dist.send(torch.ones(500), 2)
        elif rank == 2:
            dist.recv(torch.ones(1000), 0)
        probe.step()
    dist.barrier()
    probe.detach()
    dist.destroy_process_group()


LINE = main.__code__.co_firstlineno + next(
    at for at, line in enumerate(inspect.getsource(main).splitlines()) if "dist.broadcast" in line
)
"""Where it does."""
