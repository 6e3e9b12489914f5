"""A job in which one rank comes too late to a barrier that gives up early."""

import datetime
import time

import torch
import torch.distributed as dist

LATE = 1
"""Who is late."""


def load_shard():
    """Take far longer than the others wait."""
    time.sleep(60)


def main():
    """Train for some steps, then wait for who does not come."""
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(12):
        model(torch.ones(1, 8)).sum().backward()
        dist.all_reduce(model.weight.grad)
        optimizer.step()
        if step == 11 and dist.get_rank() == LATE:
            load_shard()
    dist.monitored_barrier(timeout=datetime.timedelta(seconds=3))


if __name__ == "__main__":
    main()
