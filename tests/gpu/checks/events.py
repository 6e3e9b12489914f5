"""Times of stages by event pairs: what they cost the host, and whether they are right."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from meshscope.probe.clock import now_ns
from meshscope.probe.compat.cuda_events import CudaEvents
from meshscope.probe.schema.terms import SpanKind

from .capture import RankCapture, no_errors, read_rank, recorded
from .context import Context, microseconds
from .kernels import compare, kernels_of
from .training import small_model, steps_of, wait_for_device

_ROUNDS = 9
_CALLS = 500
STEPS = 20


def event_cost(context: Context) -> None:
    """Time each call on events from Python, with a device that has nothing to do."""
    events = CudaEvents()
    torch.ones(1, device="cuda")
    stream = events.stream()
    pairs = [(events.record(stream), events.record(stream)) for _ in range(_CALLS)]
    torch.cuda.synchronize()
    first, last = pairs[0][0], pairs[-1][1]
    calls: dict[str, Callable[[], Any]] = {
        "stream": events.stream,
        "is_capturing": events.is_capturing,
        "query": lambda: events.is_complete(last),
        "elapsed": lambda: events.elapsed_ns(first, last),
        "record_again": lambda: last.record(stream),
        "make_and_record": lambda: torch.cuda.Event(enable_timing=True).record(),
    }
    for name, call in calls.items():
        context.figure(f"{name}_us", _cost(call))
    launch = torch.zeros(1, device="cuda")
    context.figure("small_kernel_launch_us", _cost(lambda: launch.add_(1)))
    torch.cuda.synchronize()


def _cost(call: Callable[[], Any]) -> dict[str, float]:
    """Return the time of a call over several rounds, in us."""
    means = []
    for _ in range(_ROUNDS):
        begin = now_ns()
        for _ in range(_CALLS):
            call()
        means.append((now_ns() - begin) // _CALLS)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    return microseconds(means)


def span_cost(context: Context) -> None:
    """Time the call of a tiny module without the probe, with spans, with device times too."""
    model = nn.Identity()
    x = torch.ones(1, device=context.device)
    model(x)
    bare = context.figure("module_call_us", _cost(lambda: model(x)))
    sources = {
        "spans": ("steps", "compute"),
        "spans_and_events": ("steps", "compute", "device_times"),
    }
    for name, chosen in sources.items():
        run_path = context.work / name
        with recorded(run_path, sources=chosen, cost_budget_ppm=0):
            # The events are looked for at step borders.
            steps_of(small_model(context.device), torch.ones(4, 256, device=context.device), 3)
            cost = _span_rounds(context.device, model, x)
        context.figure(f"{name}_us", cost)
        context.figure(f"{name}_added_us", round(cost["min"] - bare["min"], 3))
        no_errors(context, read_rank(run_path))


def _span_rounds(device: str, model: nn.Module, x: torch.Tensor) -> dict[str, float]:
    """Time module calls in steps, so that event pairs are taken in between; in us."""
    from meshscope import probe

    means = []
    for _ in range(_ROUNDS):
        begin = now_ns()
        for _ in range(_CALLS):
            model(x)
        means.append((now_ns() - begin) // _CALLS)
        wait_for_device(device)
        probe.step()
    return microseconds(means)


def event_times(context: Context) -> None:
    """Compare the device times of stages with the kernels of a trace of the same steps."""
    size = 8192
    run_path, trace_path = context.work / "run", context.work / "trace.json"
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(size, size) for _ in range(3))).to("cuda", torch.bfloat16)
    batch = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    with recorded(run_path, cost_budget_ppm=0):
        steps_of(model, batch, 3)
        profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        )
        with profile:
            step_ns, launched_ns, done_ns = _timed_steps(model, batch)
        _two_borders()
    context.figure("launch_share", round(launched_ns / done_ns, 3))
    context.expect(launched_ns < 0.95 * done_ns, "launching took as long as the device: a wait?")
    context.figure("step_ns", step_ns)
    profile.export_chrome_trace(str(trace_path))
    capture = read_rank(run_path)
    no_errors(context, capture)
    _clock(context, capture)
    _against_kernels(context, capture, trace_path)


def _timed_steps(model: nn.Module, batch: torch.Tensor) -> tuple[int, int, int]:
    """Train; return ns per step, of launching all steps and until the device has done them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.cuda.synchronize()
    begin = time.monotonic_ns()
    for _ in range(STEPS):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    launched = time.monotonic_ns() - begin
    torch.cuda.synchronize()
    done = time.monotonic_ns() - begin
    return done // STEPS, launched, done


def _two_borders() -> None:
    """End two more steps, at which all events before are complete."""
    from meshscope import probe

    torch.cuda.synchronize()
    probe.step()
    probe.step()


def _clock(context: Context, capture: RankCapture) -> None:
    """Tell how well the device's clock was brought to the host's."""
    clock = capture.annotations.get("device_clock") or {}
    least, most = clock.get("least_ns"), clock.get("most_ns")
    if least is None or most is None:
        context.expect(False, "no bounds of the device's clock were noted")
        return
    context.figure("clock_bounds_us", (most - least) / 1e3)
    context.expect(least <= most, "the bounds of the device's clock contradict each other")
    dropped = (capture.manifest.get("counters") or {}).get("device_times_dropped", 0)
    context.figure("device_times_dropped", dropped)


def _against_kernels(context: Context, capture: RankCapture, trace_path: Path) -> None:
    """Join spans with the kernels that were launched within them, and compare both times."""
    trace = json.loads(trace_path.read_text(encoding="utf-8"))
    to_unix_ns = _unix_offset_ns(capture)
    kernels = kernels_of(trace)
    context.figure("kernels", len(kernels))
    for kind in (SpanKind.FORWARD, SpanKind.BACKWARD, SpanKind.OPTIMIZER):
        spans = capture.device_spans(kind)
        found = compare(spans, kernels, to_unix_ns)
        context.figure(f"{kind.value}_timed", len(spans["start_ns"]))
        context.figure(f"{kind.value}_matched", len(found.kernel_ns))
        if not len(found.kernel_ns):
            context.expect(kind is SpanKind.OPTIMIZER, f"no {kind.value} could be compared")
            continue
        excess_us = (found.device_ns - found.kernel_ns) / 1e3
        context.figure(f"{kind.value}_kernel_us", round(float(np.median(found.kernel_ns)) / 1e3, 1))
        context.figure(f"{kind.value}_excess_us", _spread(excess_us))
        context.figure(f"{kind.value}_start_error_us", _spread(found.start_error_ns / 1e3))
        share = float(np.median(found.device_ns / found.kernel_ns))
        context.figure(f"{kind.value}_device_over_kernels", round(share, 4))
        context.expect(0.98 < share < 1.1, f"{kind.value}: events say {share:.3f} of the kernels")


def _unix_offset_ns(capture: RankCapture) -> int:
    """Return what to add to the probe's times to get those of the trace."""
    monotonic_ns, unix_ns = capture.manifest["clock_pairs"][-1][:2]
    return int(unix_ns) - int(monotonic_ns)


def _spread(values: Any) -> dict[str, float]:
    picks = np.percentile(values, [1, 50, 99])
    return {
        name: round(float(v), 2) for name, v in zip(("p1", "median", "p99"), picks, strict=True)
    }
