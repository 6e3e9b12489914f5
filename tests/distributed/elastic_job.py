"""One rank of a job that is restarted by its launcher: rank 1 dies in the first attempt.

python -m torch.distributed.run --max-restarts 1 … elastic_job.py STEPS DIES_AT
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist


def main(steps, dies_at):
    """Train some steps; in the first attempt rank 1 is killed before one of them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(steps):
        if first and dist.get_rank() == 1 and step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        gradient = torch.ones(4)
        dist.all_reduce(gradient)
        weight.grad = gradient
        optimizer.step()
    dist.barrier()
    # Torch joins gloo's worker with the interpreter lock held, while that worker
    # may need the lock to drop its last operation. Idle, it has none.
    time.sleep(0.5)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
