"""One rank that trains while the disk of its capture goes bad.

The fault is what the disk does from step 20 on: ``none``, ``fill`` (rank 0 fills it), ``hang``
(until the training is done) or the name of an error. Prints one line a step: the bits of
the loss. Without a run directory the probe is not attached.
"""

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

WIDTH = 16
BREAKS_AT = 20
PATIENCE_S = 120.0


def break_disk(fault, run_dir):
    """Let the disk go bad, and wait until the probe has met that."""
    if fault == "fill":
        fill(run_dir)
        return
    # Looked for before: once the disk hangs, that would wait as well.
    rings = list(run_dir.glob("rank*/ring.bin"))
    reported = Path(os.environ["DISK_FAULT"])
    reported.write_text(fault, encoding="ascii")
    # The kernel writes pages back in its own time; now, for this test.
    for ring in rings:
        threading.Thread(target=write_back, args=(ring,), daemon=True).start()
    end = time.monotonic() + PATIENCE_S
    while not reported.with_suffix(".hit").exists():
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.02)


def write_back(path):
    """Have the kernel bring what was stored into a mapped file to its disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    except OSError:
        return


def fill(run_dir):
    """Take all the room that the disk has left."""
    block = bytes(1 << 16)
    with open(run_dir / "filler", "wb", buffering=0) as file:
        while True:
            try:
                file.write(block)
            except OSError:
                return


def main(steps, fault, run_dir=None):
    """Train and print the loss of each step."""
    if run_dir is not None:
        from meshscope import probe

        session = probe.attach(run_dir)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for step in range(int(steps)):
        if step == BREAKS_AT and run_dir is not None and fault != "none":
            session.flush()
            dist.barrier()
            if dist.get_rank() == 0:
                break_disk(fault, Path(run_dir))
            dist.barrier()
            # A group and a layout that nobody has heard of yet: they go into the capture.
            dist.barrier(dist.new_group([0, 1]))
            init_device_mesh("cpu", (1, 2), mesh_dim_names=("pp", "dp"))
        optimizer.zero_grad()
        loss = model(torch.randn(4, WIDTH, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        print(float(loss.detach()).hex())
    dist.barrier()
    if fault == "hang" and run_dir is not None:
        Path(os.environ["DISK_FAULT"]).unlink(missing_ok=True)
    # Torch joins gloo's worker with the interpreter lock held, while that worker
    # may need the lock to drop its last operation. Idle, it has none.
    time.sleep(0.5)
    dist.destroy_process_group()
