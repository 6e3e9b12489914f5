"""A job of one rank that trains until a file appears: ``daemon_job.py DEVICE FOLDER SECONDS``.

FOLDER gets ``progress.json`` at every step (the step, Kineto's count of iterations),
and at the end ``steps.json`` with begin and end of every step, ns.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from checks.training import one_rank, small_model
from meshscope.probe.compat.absent import UnsupportedError
from meshscope.probe.compat.profiler import kineto_iterations


def main(device: str, folder: Path, seconds: float) -> None:
    """Train; the file ``stop`` in the folder or the time ends it."""
    times: list[tuple[int, int]] = []
    with one_rank(device):
        _train(device, folder, seconds, times)
    (folder / "steps.json").write_text(json.dumps(times), encoding="utf-8")


def _train(device: str, folder: Path, seconds: float, times: list[tuple[int, int]]) -> None:
    # Wide enough for the device to take some time of a step, and small on a CPU.
    width, rows = (2048, 4096) if device == "cuda" else (64, 16)
    model = small_model(device, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.randn(rows, width, device=device)
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (folder / "stop").exists():
        begin = time.monotonic_ns()
        loss = model(batch).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()
        # A step of a real job takes longer than these few kernels.
        time.sleep(0.005)
        times.append((begin, time.monotonic_ns()))
        _tell(folder, len(times))


def _tell(folder: Path, step: int) -> None:
    """Replace the progress file."""
    try:
        iterations = kineto_iterations()
    except UnsupportedError:
        iterations = 0
    draft = folder / "progress.draft"
    draft.write_text(json.dumps({"step": step, "iterations": iterations}), encoding="utf-8")
    os.replace(draft, folder / "progress.json")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
