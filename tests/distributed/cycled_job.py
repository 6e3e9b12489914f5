"""One rank that trains until it is told to end.

    RANK=… python cycled_job.py FOLDER

A file ``end`` in the folder tells it; with a number of steps it trains just so many. It makes the file
``trains.RANK`` in its first step, and prints the steps and a digest of the bits of their losses.
"""

import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16


def main(folder, steps=None):
    """Train, and have the ranks agree in each step on whether it is the last."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    model = DistributedDataParallel(layers, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = torch.Generator().manual_seed(dist.get_rank())
    digest, done, is_over = hashlib.sha256(), 0, False
    while not is_over:
        optimizer.zero_grad()
        loss = model(torch.randn(4, WIDTH, generator=data)).square().mean()
        loss.backward()
        optimizer.step()
        digest.update(float(loss.detach()).hex().encode())
        done += 1
        (folder / f"trains.{dist.get_rank()}").touch()
        ends = torch.tensor(float(done == steps if steps else (folder / "end").exists()))
        dist.all_reduce(ends)
        is_over = bool(ends)
    sys.stdout.write(f"{done} {digest.hexdigest()}\n")
    sys.stdout.flush()
    # Torch joins gloo's worker with the interpreter lock held, while that worker
    # may need the lock to drop its last operation. Idle, it has none.
    time.sleep(0.5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
