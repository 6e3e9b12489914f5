"""One rank of a gloo job that dumps its flight recorder in both forms.

In the case ``behind`` rank 1 issues one collective that rank 0 never does, in ``even`` it
does not.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

PATIENCE_S = 60


def _settle(open_works: int) -> None:
    """Wait until another thread has noted the end of all works that did end."""
    waited_until = time.monotonic() + PATIENCE_S
    while time.monotonic() < waited_until:
        entries = json.loads(c10d._dump_fr_trace_json())["entries"]
        if sum(not entry["retired"] for entry in entries) <= open_works:
            return
        time.sleep(0.05)
    sys.exit("works that have ended are still open")


def main(folder: Path, case: str) -> None:
    """Run some collectives, dump, and leave without waiting for the other."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tensor_group = dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    for _ in range(3):
        dist.all_reduce(torch.ones(5), group=tensor_group)
        dist.barrier()
    if case == "behind" and rank == 1:
        dist.all_reduce(torch.ones(7), group=tensor_group, async_op=True)
    _settle(open_works=1 if case == "behind" and rank == 1 else 0)
    for name, content in (
        ("pickle", c10d._dump_fr_trace()),
        ("json", c10d._dump_fr_trace_json()),
    ):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f".draft_{rank}").write_bytes(content)
        (folder / name / f".draft_{rank}").rename(folder / name / f"_dump_{rank}")
    waited_until = time.monotonic() + PATIENCE_S
    while len(list(folder.glob("*/_dump_*"))) < 2 * dist.get_world_size():
        if time.monotonic() > waited_until:
            sys.exit("the other rank made no dump")
        time.sleep(0.05)
    # An orderly end would wait for the collective that never ends.
    sys.stdout.flush()
    os._exit(0)
