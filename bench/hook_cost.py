"""What one communication call costs more under the probe.

    python bench/hook_cost.py [--calls N] [--alternations N]

One process, a process group that sends nothing, blocking ``all_reduce`` of 16
bytes: the whole path of hook, record and wait is there and nothing else. The
probe is attached and detached in turns, so that a slow phase of the machine
hits both; each turn gives the mean of its calls. The budget is 6 us a call.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from meshscope import probe
from meshscope.probe.clock import now_ns

BUDGET_US = 6.0


class Nothing(nn.Module):
    """A module whose call is all there is to it."""

    def forward(self, x):
        """Return the input."""
        return x


def mean_us(call, calls):
    """Return the mean time of a call in us."""
    start_ns = now_ns()
    for _ in range(calls):
        call()
    return (now_ns() - start_ns) / calls / 1e3


def measure(call, calls, alternations, folder):
    """Return the means without and with the probe, one pair a turn."""
    without, watched = [], []
    for turn in range(alternations):
        without.append(mean_us(call, calls))
        probe.attach(folder / f"{turn}")
        call()
        watched.append(mean_us(call, calls))
        probe.detach()
    return without, watched


def report(name, without, watched):
    """Print both and their difference."""
    pairs = [on - off for off, on in zip(without, watched, strict=True)]
    print(
        f"{name:24} off {min(without):6.2f} (median {statistics.median(without):6.2f})"
        f"   on {min(watched):6.2f} (median {statistics.median(watched):6.2f})"
        f"   cost {min(watched) - min(without):5.2f} (median of pairs {statistics.median(pairs):5.2f}) us"
    )
    return min(watched) - min(without)


def main():
    """Measure and print; say whether the budget holds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=4000)
    parser.add_argument("--alternations", type=int, default=11)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    x, module = torch.ones(4), Nothing()
    cases = {
        "all_reduce (blocking)": lambda: dist.all_reduce(x),
        "send": lambda: dist.send(x, 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        costs = {
            name: report(
                name,
                *measure(call, arguments.calls, arguments.alternations, Path(folder) / name[:4]),
            )
            for name, call in cases.items()
        }

        def model():
            nested(x)

        nested = nn.Sequential(*(module for _ in range(100)))
        without, watched = measure(model, 200, arguments.alternations, Path(folder) / "module")
        report("module call (of 101)", [t / 101 for t in without], [t / 101 for t in watched])
    worst = max(costs.values())
    verdict = "within" if worst <= BUDGET_US else "over"
    print(f"budget {BUDGET_US} us a communication call: {verdict} ({worst:.2f} us)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
