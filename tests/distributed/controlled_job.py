"""One rank that is attached and detached from outside, and at the end hangs.

    RANK=… python controlled_job.py FOLDER

It waits for files in the folder, which the test makes once it has done its part.
Then it prints what it computed as one line of JSON; rank 1 does not come to the last
collective.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from tests.process_traces import differences_that_last, traces_of_us
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16
STEPS = 10
"""Steps of each stretch."""


class Training:
    """A small replicated model, the same each time that it is made."""

    def __init__(self):
        """Make the model and its data."""
        torch.manual_seed(0)
        layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.model = DistributedDataParallel(layers, bucket_cap_mb=0.001)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.data = torch.Generator().manual_seed(dist.get_rank())
        self.losses = []

    def run(self, steps=STEPS):
        """Train some steps; note the bits of their losses."""
        for _ in range(steps):
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(4, WIDTH, generator=self.data)).square().mean()
            loss.backward()
            self.optimizer.step()
            dist.all_reduce(loss.detach().clone())
            self.losses.append(float(loss.detach()).hex())


def wait_for(path):
    """Wait for a file of the test."""
    deadline = time.monotonic() + 120
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"{path.name} did not come")
        time.sleep(0.005)


def main(folder):
    """Train alone, then watched in the middle, then hang."""
    rank = dist.get_rank()
    alone = Training()
    alone.run(3 * STEPS)
    before = traces_of_us()
    watched = Training()
    watched.run()
    (folder / f"ready.{rank}").touch()
    wait_for(folder / "attached")
    watched.run()
    (folder / f"trained.{rank}").touch()
    wait_for(folder / "detached")
    changed = differences_that_last(before)
    watched.run()
    result = {"alone": alone.losses, "watched": watched.losses, "changed": sorted(changed)}
    print(json.dumps(result), flush=True)
    (folder / f"done.{rank}").touch()
    wait_for(folder / "again")
    watched.run()
    if rank == 1:
        (folder / "hanging").touch()
        time.sleep(3600)
    dist.all_reduce(torch.ones(1))


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    main(Path(sys.argv[1]))
