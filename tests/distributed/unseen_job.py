"""Replicas that average their loss and meet at the end of a step past every hook.

Arguments: a folder for the capture and for what the ranks slept, and by how much rank 2 is slower.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from meshscope import probe

STEPS = 40
FORWARD_S = 0.03
BACKWARD_S = 0.06
SLOW_RANK = 2


class Busy(torch.autograd.Function):
    """Time that passes in the forward, and twice as much in the backward."""

    @staticmethod
    def forward(ctx, activations, factor):
        """Return the same, later."""
        ctx.factor = factor
        time.sleep(FORWARD_S * factor)
        return activations.clone()

    @staticmethod
    def backward(ctx, gradient):
        """Return the same, later still."""
        time.sleep(BACKWARD_S * ctx.factor)
        return gradient, None


class Model(torch.nn.Module):
    """Layers that cost little, and the time that is slept."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3)))
        self.factor = 1.0

    def forward(self, activations):
        """Return what the layers make of them."""
        return Busy.apply(self.layers(activations), self.factor)


def main(out: Path, slower_by: float) -> None:
    """Train, and write the factor of each step of this rank."""
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    probe.attach(out / "run")
    dist.init_process_group("gloo")
    # The backend itself: no hook of torch's own functions sees what is asked of it.
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    draw, model, factors = random.Random(rank), Model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        model.factor = (1 + 0.1 * draw.random()) * (1 + slower_by * (rank == SLOW_RANK))
        factors.append(model.factor)
        loss = model(torch.randn(8, 64)).pow(2).mean()
        backend.allreduce([loss.detach().clone().reshape(1)]).wait()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        backend.barrier().wait()
    dist.destroy_process_group()
    probe.detach()
    (out / f"factors{rank}.json").write_text(json.dumps(factors))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
