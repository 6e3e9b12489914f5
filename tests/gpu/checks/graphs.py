"""The hooks while CUDA graphs are captured and replayed."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from meshscope import probe

from .capture import no_errors, read_rank, recorded
from .context import Context, same_losses
from .training import one_rank, small_model

REPLAYS = 20
_WARM_UP = 3


def cuda_graphs(context: Context) -> None:
    """Capture training with a collective in it, with and without the probe; compare losses."""
    with one_rank(context.device):
        bare = _captured_training()
        run_path = context.work / "run"
        with recorded(run_path, cost_budget_ppm=0):
            watched = _captured_training()
            probe.step()
            probe.step()
    same_losses(context, "replayed", bare, watched)
    capture = read_rank(run_path)
    no_errors(context, capture)
    # Warm-up and capture pass through Python, replays do not.
    for name in ("collective", "span", "device_time", "step"):
        context.figure(f"{name}_records", capture.count(name))
    seen, gradients = capture.count("collective"), len(list(small_model("cpu").parameters()))
    in_python = (_WARM_UP + 1) * gradients
    context.expect(seen == in_python, f"{seen} collectives for {in_python} that Python called")


def _captured_training() -> list[float]:
    """Train by replays of one captured step; return the losses."""
    model = small_model("cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    batch = torch.randn(32, 256, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            _one_step(model, optimizer, batch)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    # Other threads of the process (NCCL's watchdog) may call CUDA meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        loss = _one_step(model, optimizer, batch)
    losses = []
    for _ in range(REPLAYS):
        graph.replay()
        losses.append(float(loss))
    return losses


def _one_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor
) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=True)
    loss: torch.Tensor = model(batch).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    return loss
