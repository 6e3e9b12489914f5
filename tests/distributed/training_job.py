"""One rank that trains a tiny model, with the probe or without.

    RANK=… python training_job.py ddp|fsdp2 STEPS [RUN_DIR]

Prints one line a step: the bits of the loss. Without a run directory the probe
is not attached.
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16


def make_model(kind):
    """Return a model of several gradient buckets or several shards."""
    torch.manual_seed(0)
    layers = 6 if kind == "ddp" else 3
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    if kind == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.001)
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def main(kind, steps, run_dir=None):
    """Train and print the loss of each step."""
    if run_dir is not None:
        from meshscope import probe

        probe.attach(run_dir)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = make_model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(int(steps)):
        optimizer.zero_grad()
        loss = model(torch.randn(4, WIDTH, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        print(float(loss.detach()).hex())
    # Torch joins gloo's worker with the interpreter lock held, while that worker
    # may need the lock to drop its last operation. Idle, it has none.
    time.sleep(0.5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
