"""A job in which one rank reduces more than the others, in a step that an order leaves unrecorded."""

import datetime

import torch
import torch.distributed as dist

ODD, LAST = 2, 17
"""Who differs, and in which step: one of a window that no rank records when one in two is."""


def main():
    """Train for some steps and fail in the last one."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters())
    for step in range(LAST + 1):
        model(torch.ones(1, 8)).sum().backward()
        if step == LAST:
            dist.all_reduce(torch.ones(2000 if dist.get_rank() == ODD else 1000))
        dist.all_reduce(model.weight.grad)
        optimizer.step()


if __name__ == "__main__":
    main()
