"""What one communication call costs more under the probe; fails over its budgets.

    python bench/hook_cost.py [--calls N] [--alternations N]

One process and a process group that sends nothing, so that a call is all hook.
The probe is attached and detached in turns, so that a slow phase of the machine
hits both; each turn gives the mean CPU time of the calling thread over its calls
(a hook never waits, and other processes take wall time, not ours). ``hook`` is the way
through the dispatcher with group, size and dtype looked up; ``all`` adds the two
records of a call and the search for its end; ``removed`` is a call after the hook was
taken away again, and ``hop`` one through a Python function that only calls on, which is what
torch itself takes of ``hook`` for its way into Python and back.
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
from meshscope.probe.clock import thread_cpu_ns
from meshscope.probe.compat.torch_names import dispatcher
from meshscope.probe.recording.open_recorder import NullRecorder

BUDGET_US = 6.0
REMOVED_BUDGET_US = 0.2


class Nothing(nn.Module):
    """A module whose call is all there is to it."""

    def forward(self, x):
        """Return the input."""
        return x


def mean_us(call, calls):
    """Return the mean CPU time of a call in us."""
    start_ns = thread_cpu_ns()
    for _ in range(calls):
        call()
    return (thread_cpu_ns() - start_ns) / calls / 1e3


def attached(folder, *, records=True):
    """Attach the probe; without records hooks find all they need and store nothing."""
    session = probe.attach(folder, probe.ProbeConfig(cost_budget_ppm=0))
    if not records:
        session._capture.recorder.close()
        session._capture.recorder = NullRecorder(0)
    return session


def measure(call, calls, alternations, folder, *, records=True):
    """Return the means without and with the probe, one pair a turn."""
    without, watched = [], []
    for turn in range(alternations):
        without.append(mean_us(call, calls))
        attached(folder / f"{turn}", records=records)
        call()
        watched.append(mean_us(call, calls))
        probe.detach()
    return without, watched


def measure_hop(operator, call, calls, alternations):
    """Return the means without and with a Python kernel that does nothing but call on."""
    access = dispatcher()
    redispatch, onward = access.redispatch("c10d", operator), access.onward.get
    number_of, keys_after = access.number_of, access.keys_after

    def kernel(keyset, *args):
        return redispatch(onward(number_of(keyset)) or keys_after(keyset), *args)

    without, passed_on = [], []
    for _ in range(alternations):
        without.append(mean_us(call, calls))
        library = access.library("c10d")
        library.impl(operator, kernel, "BackendSelect", with_keyset=True)
        call()
        passed_on.append(mean_us(call, calls))
        library._destroy()
    return without, passed_on


def report(name, without, watched):
    """Print both and their difference; return the difference of the least of both."""
    pairs = [on - off for off, on in zip(without, watched, strict=True)]
    print(
        f"{name:24} off {min(without):6.2f} (median {statistics.median(without):6.2f})"
        f"   on {min(watched):6.2f} (median {statistics.median(watched):6.2f})"
        f"   cost {min(watched) - min(without):5.2f} (median of pairs {statistics.median(pairs):5.2f}) us"
    )
    return min(watched) - min(without)


def measure_all(arguments, folder):
    """Print all figures; return the cost of the hook by kind of call, and of a removed one."""
    x = torch.ones(4)
    cases = {
        "all_reduce": ("allreduce_", lambda: dist.all_reduce(x)),
        "send": ("send", lambda: dist.send(x, 1)),
    }
    turns, hooks, removed = arguments.alternations, [], []
    for case, (operator, call) in cases.items():
        fresh = [mean_us(call, arguments.calls) for _ in range(turns)]
        for records in (False, True):
            part = "all" if records else "hook"
            where = folder / f"{case}-{part}"
            pairs = measure(call, arguments.calls, turns, where, records=records)
            cost = report(f"{case}: {part}", *pairs)
            if not records:
                hooks.append(cost)
        report(f"{case}: hop", *measure_hop(operator, call, arguments.calls, turns))
        again = [mean_us(call, arguments.calls) for _ in range(turns)]
        removed.append(report(f"{case}: removed", fresh, again))
    modules = nn.Sequential(*(Nothing() for _ in range(100)))
    pairs = measure(lambda: modules(x), 200, turns, folder / "modules")
    report("module call (of 101)", *([t / 101 for t in times] for times in pairs))
    optimizer = torch.optim.SGD([nn.Parameter(x)], lr=0.1, foreach=False)
    pairs = measure(optimizer.step, 100, turns, folder / "steps")
    report("step boundary", *pairs)
    return max(hooks), max(removed)


def main():
    """Measure and print; return 1 if a budget is exceeded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--alternations", type=int, default=25)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=8, store=FakeStore())
    with tempfile.TemporaryDirectory() as name:
        hook, removed = measure_all(arguments, Path(name))
    dist.destroy_process_group()
    over = False
    for what, cost, budget in (
        ("hook", hook, BUDGET_US),
        ("removed hook", removed, REMOVED_BUDGET_US),
    ):
        verdict = "within" if cost <= budget else "over"
        over |= cost > budget
        print(f"{what} budget {budget} us a communication call: {verdict} ({cost:.2f} us)")
    return over


if __name__ == "__main__":
    raise SystemExit(main())
