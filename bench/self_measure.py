"""How right the probe is about its own cost.

    python bench/self_measure.py [--rounds N]

Trains models that do next to nothing, with the probe attached and detached in turn, and
holds the difference of the CPU time of a step against what the hooks say that they took. The
model with many modules shows the frame that each module call passes. Run it on a quiet core:
the ratio is to be within a quarter of 1. ``probe.cost.COST_OVER_SEEN`` comes from here.
"""

import argparse
import os
import tempfile
from pathlib import Path
from statistics import median

import torch

from meshscope import probe
from meshscope.probe.clock import thread_cpu_ns

MODELS = {"1 module": 0, "201 modules": 200}
STEPS = 40
BLOCKS = 9
SETTLE_STEPS = 110


def main():
    """Measure and print one row a model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MESHSCOPE_COST_BUDGET_PPM": "0"}
    torch.set_num_threads(1)
    for name, extra in MODELS.items():
        steps = Steps(extra)
        found = [steps.compared() for _ in range(rounds)]
        true_ns, said_ns = (median(column) for column in zip(*found, strict=True))
        print(
            f"{name}: a step costs {true_ns / 1e3:.0f} us more, the hooks say "
            f"{said_ns / 1e3:.0f} us: {said_ns / true_ns:.2f}"
        )


class Steps:
    """Training of a model with some modules that do nothing."""

    def __init__(self, extra):
        """Make it and warm up."""
        inner = [torch.nn.Identity() for _ in range(extra)]
        self.model = torch.nn.Sequential(*inner, torch.nn.Linear(4, 4))
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.taken_ns(SETTLE_STEPS)

    def taken_ns(self, steps=STEPS):
        """Return the CPU time of a step."""
        batch, start_ns = torch.ones(1, 4), thread_cpu_ns()
        for _ in range(steps):
            self.model(batch).sum().backward()
            self.optimizer.step()
        return (thread_cpu_ns() - start_ns) / steps

    def usual_ns(self):
        """Return the median of several blocks of steps."""
        return median(self.taken_ns() for _ in range(BLOCKS))

    def compared(self):
        """Return what a step costs more with the probe, and what the hooks say, in ns."""
        before_ns = self.usual_ns()
        with tempfile.TemporaryDirectory() as folder:
            session = probe.attach(Path(folder) / "run")
            self.taken_ns(SETTLE_STEPS)
            meter, recorder = session._capture.meter, session._capture.recorder
            said_ns, step = meter.total_ns(), recorder.step
            watched_ns = self.usual_ns()
            said_ns = (meter.total_ns() - said_ns) / (recorder.step - step)
            probe.detach()
        return watched_ns - (before_ns + self.usual_ns()) / 2, said_ns


if __name__ == "__main__":
    main()
