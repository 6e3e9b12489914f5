"""A rank of a job with torch's DDP, which takes a slow rank of the trainer's faults.

Call: ``replicated --out FOLDER --steps N --pace-ms F --fault SPEC (forward | backward)``. The
slow rank takes longer in that pass. As the reference trainer, it notes the ends of its steps.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from meshscope.probe.clock import now_ns
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.fault_plan import ResolvedFault, parse_fault, resolve
from meshscope.reference_trainer.faults.ground_truth import GroundTruth

WIDTH = 256
LAYERS = 4


class Paced(torch.autograd.Function):
    """Takes its time forth and back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, pace: Pace) -> Tensor:
        """Return the values, later."""
        ctx.pace = pace
        pace.spend("forward")
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient, later."""
        ctx.pace.spend("backward")
        return gradients[0], None


class Pace:
    """How long a pass of a layer takes on this rank."""

    def __init__(self, pace_ms: float, slow_pass: str, extra_ms: float) -> None:
        self._pace_s = pace_ms / 1e3
        self._extra_s = {slow_pass: extra_ms / 1e3 / LAYERS}
        self.is_slow = False

    def spend(self, in_pass: str) -> None:
        """Take the time of one pass; ranks that sleep share cores without taking turns."""
        time.sleep(self._pace_s + (self._extra_s.get(in_pass, 0.0) if self.is_slow else 0.0))


class Layer(nn.Module):
    """A layer with a bucket of gradients of its own."""

    def __init__(self, pace: Pace) -> None:
        super().__init__()
        self._linear = nn.Linear(WIDTH, WIDTH)
        self._pace = pace

    def forward(self, values: Tensor) -> Tensor:
        """Return what the layer makes of the values."""
        made: Tensor = Paced.apply(self._linear(values), self._pace)
        return made


def train(options: argparse.Namespace, fault: ResolvedFault) -> None:
    """Train, slowly in the steps in which the fault is on."""
    pace = Pace(options.pace_ms, options.slow_pass, fault.spec.delay_ms)
    truth = GroundTruth(options.out, dist.get_rank(), [fault])
    layers = nn.Sequential(*(Layer(pace) for _ in range(LAYERS)))
    model = DistributedDataParallel(layers, bucket_cap_mb=WIDTH * WIDTH * 4 / 2**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(options.steps):
        start_ns = now_ns()
        pace.is_slow = fault.active(step) and fault.hits(dist.get_rank())
        model(torch.ones(4, WIDTH)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        truth.step(step, (start_ns, now_ns()), fault_active=fault.active(step))


def main() -> None:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pace-ms", type=float, required=True)
    parser.add_argument("--fault", required=True)
    parser.add_argument("slow_pass", choices=["forward", "backward"])
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    spec = parse_fault(options.fault)
    train(options, resolve(spec, ParallelLayout(dp=dist.get_world_size()), spec.seed or 0))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
