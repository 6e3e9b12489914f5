"""One rank that trains until a file appears; prints the bits of its losses.

torchrun … deep_job.py STOP_FILE
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEP_S = 0.02
"""Stands for the device: a step takes this long at least."""


def main(stop_file):
    """Train; rank 0 sees the file, and all ranks stop in the same step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(32, 32) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    goes_on = torch.ones(1)
    while goes_on.item():
        model(torch.ones(4, 32)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(STEP_S)
        goes_on = torch.tensor([0.0 if Path(stop_file).exists() else 1.0])
        dist.broadcast(goes_on, 0)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
