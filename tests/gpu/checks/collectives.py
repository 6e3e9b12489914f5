"""Collectives of a group of one rank: their counts, coalescing, and times on the device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from meshscope import probe
from meshscope.probe.clock import now_ns
from meshscope.probe.schema.terms import CollectiveKind

from .capture import RankCapture, no_errors, read_rank, recorded
from .context import Context, microseconds
from .training import one_rank, small_model, steps_of, wait_for_device

_ELEMENTS = 1 << 20
_EACH = 3
_COALESCED = 2


def collectives(context: Context) -> None:
    """Call known collectives under the probe, at both levels that record them."""
    with one_rank(context.device) as backend:
        context.figure("backend", backend)
        x = torch.ones(_ELEMENTS, device=context.device)
        bare = context.figure("bare_call_us", _cost_of_few(x, context.device))
        for level in ("collectives", "kernels"):
            run_path = context.work / level
            with recorded(run_path, level=level, cost_budget_ppm=0):
                expected = _known_calls(context, x)
                probe.step()
                cost = context.figure(f"{level}_call_us", _cost_of_few(x, context.device))
                context.figure(f"{level}_added_us", round(cost["min"] - bare["min"], 3))
                if backend == "nccl":
                    _coalesced(context, x)
                wait_for_device(context.device)
                probe.step()
                probe.step()
            _look(context, level, run_path, expected)


def _known_calls(context: Context, x: torch.Tensor) -> Counter[str]:
    """Make collectives that are counted here, too; return how many of each kind."""
    probe.step()
    whole = torch.empty_like(x)
    for _ in range(_EACH):
        dist.all_reduce(x)
        dist.all_gather_into_tensor(whole, x)
        dist.reduce_scatter_tensor(whole, x)
        dist.all_to_all_single(whole, x)
        dist.broadcast(x, 0)
    model = DistributedDataParallel(small_model(context.device))
    before_steps = Counter({"all_reduce": _EACH, "all_gather": _EACH, "reduce_scatter": _EACH,
                            "all_to_all": _EACH, "broadcast": _EACH})  # fmt: skip
    steps_of(model, torch.ones(4, 256, device=context.device), 3)
    return before_steps


def _coalesced(context: Context, x: torch.Tensor) -> None:
    """Send two reductions as one, which bypasses the handle of each."""
    from torch.distributed.distributed_c10d import _coalescing_manager

    try:
        with _coalescing_manager(device=x.device):
            dist.all_reduce(x)
            dist.all_reduce(x)
    except (RuntimeError, ValueError) as error:
        context.expect(False, f"coalescing failed under the probe: {error}"[:300])
    else:
        context.figure("coalescing", "done")


def _cost_of_few(x: torch.Tensor, device: str) -> dict[str, float]:
    """Time single calls with the device idle in between, in us."""
    times = []
    for _ in range(200):
        begin = now_ns()
        dist.all_reduce(x)
        times.append(now_ns() - begin)
        wait_for_device(device)
    return microseconds(times)


def _look(context: Context, level: str, run_path: Path, expected: Counter[str]) -> None:
    """Compare what was recorded with what was called; tell times on the device."""
    capture = read_rank(run_path)
    no_errors(context, capture)
    kinds = list(CollectiveKind)
    rows = capture.records.get("collective")
    found = Counter(kinds[kind].value for kind in (() if rows is None else rows["kind"]))
    context.figure(f"{level}_counts", dict(found))
    for name, count in expected.items():
        context.expect(found[name] >= count, f"{level}: {found[name]} of {count} {name}")
    notes = {k: v for k, v in capture.annotations.items() if k.startswith(("coverage", "coll"))}
    context.figure(f"{level}_notes", notes)
    if level == "kernels":
        _device_times(context, capture)


def _device_times(context: Context, capture: RankCapture) -> None:
    """Tell how many collectives have a time on the device, and which."""
    rows, times = capture.records.get("collective"), capture.records.get("device_time")
    if rows is None or times is None:
        context.expect(context.device != "cuda", "no collective was timed on the device")
        return
    timed = times[np.isin(times["event_id"], rows["slot_seq"])]
    context.figure("timed_collectives", len(timed))
    context.figure("timed_of", len(rows))
    # What is left out was asked for between the begin and the end of a group of operations.
    left = len(rows) - len(timed)
    context.expect(left <= _COALESCED, f"{left} collectives have no time on the device")
    if len(timed):
        context.figure("device_dur_us", microseconds(timed["dur_ns"].tolist()))
        context.expect(bool((timed["dur_ns"] >= 0).all()), "a time on the device is negative")
