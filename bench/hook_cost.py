"""What one communication call costs more under the probe.

    python bench/hook_cost.py [--calls N] [--alternations N]

One process and a process group that sends nothing, so that a call is all hook.
The probe is attached and detached in turns, so that a slow phase of the machine
hits both; each turn gives the mean of its calls. ``hook`` is the way through
the dispatcher with group, size and dtype looked up, to be held against 6 us;
``all`` adds the two records of a call and the search for its end.
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
from meshscope.probe.recorder import NullRecorder

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


def measure(call, calls, alternations, folder, *, records=True):
    """Return the means without and with the probe, one pair a turn."""
    without, watched = [], []
    for turn in range(alternations):
        without.append(mean_us(call, calls))
        session = probe.attach(folder / f"{turn}")
        if not records:
            session._capture.recorder.close()
            session._capture.recorder = NullRecorder(0)
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
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--alternations", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    x = torch.ones(4)
    cases = {
        "all_reduce": lambda: dist.all_reduce(x),
        "send": lambda: dist.send(x, 1),
    }
    hooks = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case, call in cases.items():
            for records in (False, True):
                part = "all" if records else "hook"
                where = folder / f"{case}-{part}"
                pairs = measure(
                    call, arguments.calls, arguments.alternations, where, records=records
                )
                cost = report(f"{case}: {part}", *pairs)
                if not records:
                    hooks.append(cost)
        modules = nn.Sequential(*(Nothing() for _ in range(100)))
        pairs = measure(lambda: modules(x), 200, arguments.alternations, folder / "modules")
        report("module call (of 101)", *([t / 101 for t in times] for times in pairs))
        optimizer = torch.optim.SGD([nn.Parameter(x)], lr=0.1, foreach=False)
        pairs = measure(optimizer.step, 100, arguments.alternations, folder / "steps")
        report("step boundary", *pairs)
    verdict = "within" if max(hooks) <= BUDGET_US else "over"
    print(f"hook budget {BUDGET_US} us a communication call: {verdict} ({max(hooks):.2f} us)")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
