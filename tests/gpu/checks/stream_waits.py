"""Waits of the stream that computes: for a copy by NCCL, alone and behind compute that hides it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from meshscope import probe

from .capture import RankCapture, no_errors, read_rank, recorded
from .context import Context
from .training import one_rank, wait_for_device

_COPIED_BYTES = 8 << 30
_ROUNDS = 6
_SIZE = 8192


def stream_waits(context: Context) -> None:
    """Wait for a gather of one rank, which is a copy, at once and behind two matrix products each."""
    with one_rank(context.device):
        x = torch.zeros(_COPIED_BYTES // 2, device="cuda", dtype=torch.bfloat16)
        whole = torch.empty_like(x)
        layer = nn.Linear(_SIZE, _SIZE, device="cuda", dtype=torch.bfloat16)
        batch = torch.randn(_SIZE, _SIZE, device="cuda", dtype=torch.bfloat16)
        copy_ms = _copy_ms(x, whole)
        run_path = context.work / "run"
        with recorded(run_path, level="kernels", cost_budget_ppm=0), torch.no_grad():
            probe.step()
            for hidden in [False, True] * _ROUNDS:
                layer(batch)
                work = dist.all_gather_into_tensor(whole, x, async_op=True)
                for _ in range(8 if hidden else 0):
                    layer(batch)
                work.wait()
                layer(batch)
                probe.step()
            wait_for_device(context.device)
            for _ in range(3):
                probe.step()
    capture = read_rank(run_path)
    no_errors(context, capture)
    _compare(context, capture, copy_ms)


def _copy_ms(x: torch.Tensor, whole: torch.Tensor) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    dist.all_gather_into_tensor(whole, x)
    begin.record()
    for _ in range(3):
        whole.copy_(x)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 3


def _compare(context: Context, capture: RankCapture, copy_ms: float) -> None:
    rows = capture.records.get("completion")
    context.figure("copy_ms", round(copy_ms, 3))
    if rows is None or len(rows) != 2 * _ROUNDS:
        context.expect(False, f"{0 if rows is None else len(rows)} waits for {2 * _ROUNDS}")
        return
    waits_ms = (rows["wait_end_ns"] - rows["wait_start_ns"]) / 1e6
    exposed, hidden = waits_ms[0::2], waits_ms[1::2]
    context.figure("exposed_ms", [round(float(wait), 3) for wait in exposed])
    context.figure("hidden_ms", [round(float(wait), 3) for wait in hidden])
    context.expect(bool((exposed[1:] > 0.7 * copy_ms).all()), "the stream did not wait for a copy")
    context.expect(bool((exposed[1:] < 1.5 * copy_ms).all()), "the stream waited for more")
    context.expect(bool((hidden[1:] < 0.2 * copy_ms).all()), "a hidden copy held up the stream")
