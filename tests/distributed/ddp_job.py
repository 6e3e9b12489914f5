"""A rank of a job with torch's DDP, of which rank 1 takes longer in every forward.

With ``--shown`` gradients are reduced by a hook that waits in Python, as docs/frameworks.md has it.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def summed(_state, bucket):
    """Reduce a bucket and wait for it here, where the wait is seen."""
    gradients = bucket.buffer().div_(dist.get_world_size())
    dist.all_reduce(gradients)
    future = torch.futures.Future()
    future.set_result(gradients)
    return future


class Slow(nn.Module):
    """A layer that takes its rank some time."""

    def __init__(self, seconds):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.seconds = seconds

    def forward(self, values):
        """Return what the layer makes of the values, later."""
        time.sleep(self.seconds)
        return self.layer(values)


def main():
    """Train for a few steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Slow(0.04 if dist.get_rank() == 1 else 0.01))
    if "--shown" in sys.argv:
        model.register_comm_hook(None, summed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        model(torch.ones(4, 16)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
