"""A rank of a job with torch's DDP, of which rank 1 takes 30 ms longer in each step.

Call: ``ddp_job.py (forward | backward)``, which says where.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 256
LAYERS = 4
PASS_S = 0.01
EXTRA_S = 0.03


class Slow(torch.autograd.Function):
    """Takes its rank some time forth and back."""

    @staticmethod
    def forward(ctx, values, forward_s, backward_s):
        """Return the values, later."""
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Return the gradient, later."""
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Layer(nn.Module):
    """A layer with a bucket of gradients of its own."""

    def __init__(self, forward_s, backward_s):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seconds = forward_s / LAYERS, backward_s / LAYERS

    def forward(self, values):
        """Return what the layer makes of the values."""
        return Slow.apply(self.linear(values), *self.seconds)


def main():
    """Train for a few steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    extra_s = EXTRA_S if dist.get_rank() == 1 else 0.0
    forward_s = PASS_S + (extra_s if sys.argv[1] == "forward" else 0.0)
    backward_s = PASS_S + (extra_s if sys.argv[1] == "backward" else 0.0)
    layers = nn.Sequential(*(Layer(forward_s, backward_s) for _ in range(LAYERS)))
    model = DistributedDataParallel(layers, bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        model(torch.ones(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
