"""Steps of a real model with and without the probe, in turns that chance decides."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from meshscope import probe
from meshscope.probe.doctor.statistics import LEAST_PAIRS, paired_effect
from meshscope.probe.session.comparison import is_watched

from .capture import no_errors, read_rank, recorded
from .context import Context
from .training import Transformer, one_rank, wait_for_device

WINDOW_STEPS = 10
_RUN_ID = "overhead"


def overhead(context: Context) -> None:
    """Compare windows with and without the probe, then windows of which none has it."""
    with one_rank(context.device):
        job = _Job(context.device)
        share = context.seconds * 0.35
        run_path = context.work / _RUN_ID
        job.train(3)
        with recorded(run_path, compare_window_steps=WINDOW_STEPS, cost_budget_ppm=0):
            times = job.train_for(share)
        job.facts(context, times)
        _effect(context, "probe", times)
        _effect(context, "without_probe", job.train_for(share))
    capture = read_rank(run_path)
    no_errors(context, capture)
    context.figure("cost", capture.annotations.get("cost"))
    context.figure("device_times", capture.count("device_time"))
    if context.device == "cuda":
        context.expect(capture.count("device_time") > 0, "no stage was timed on the device")


class _Job:
    """A language model in training; the loss is read every step, as many trainers do."""

    def __init__(self, device: str) -> None:
        torch.manual_seed(0)
        self.device = device
        on_gpu = device == "cuda"
        model = Transformer() if on_gpu else Transformer(vocab=128, width=64, layers=2, heads=2)
        self.batch, self.tokens = (8, 1024) if on_gpu else (2, 32)
        self.parameters = sum(p.numel() for p in model.parameters())
        self._ids = torch.randint(0, model.vocab, (self.batch, self.tokens + 1), device=device)
        self._model = DistributedDataParallel(model.to(device))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4)

    def train(self, steps: int) -> list[int]:
        """Train; return the time of each step, ns."""
        times = []
        for _ in range(steps):
            begin = time.monotonic_ns()
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                loss = self._model(self._ids)
            loss.backward()
            self._optimizer.step()
            self._optimizer.zero_grad()
            loss.item()
            probe.step()
            times.append(time.monotonic_ns() - begin)
        return times

    def train_for(self, seconds: float) -> list[int]:
        """Train whole pairs of windows for some time; return the time of each step, ns."""
        wait_for_device(self.device)
        begin, times = time.monotonic(), []
        while time.monotonic() - begin < seconds:
            times += self.train(2 * WINDOW_STEPS)
        return times

    def facts(self, context: Context, times: list[int]) -> None:
        """Tell the size of the model and its speed."""
        step_s = float(np.median(times)) / 1e9
        tokens = self.batch * self.tokens
        context.figure("parameters", self.parameters)
        context.figure("tokens_per_step", tokens)
        context.figure("step_ms", round(step_s * 1e3, 3))
        context.figure("model_tflops_per_s", round(6 * self.parameters * tokens / step_s / 1e12, 2))


def _effect(context: Context, name: str, times: list[int]) -> None:
    """Tell how much longer steps take in the windows that are watched."""
    pairs = _pairs(np.array(times, dtype=np.float64))
    if len(pairs) < LEAST_PAIRS:
        context.expect(False, f"{name}: {len(pairs)} pairs of windows, {LEAST_PAIRS} are needed")
        return
    effect: Any = paired_effect(pairs[:, 0], pairs[:, 1])
    for field in ("median_frac", "low_frac", "high_frac", "detectable_frac"):
        context.figure(f"{name}_{field}", round(getattr(effect, field), 6))
    context.figure(f"{name}_pairs", effect.pairs)


def _pairs(times: np.ndarray) -> np.ndarray:
    """Return (watched, without) of each pair of windows: their median steps, ns.

    The first and the last step of a window stand at a change, and the first pair holds
    one-time work: they are left out.
    """
    found = []
    for start in range(2 * WINDOW_STEPS, len(times) - 2 * WINDOW_STEPS + 1, 2 * WINDOW_STEPS):
        middle = start + WINDOW_STEPS
        first = np.median(times[start + 1 : middle - 1])
        second = np.median(times[middle + 1 : middle + WINDOW_STEPS - 1])
        first_is_watched = is_watched(_RUN_ID, start, WINDOW_STEPS)
        found.append((first, second) if first_is_watched else (second, first))
    return np.array(found).reshape(-1, 2)
