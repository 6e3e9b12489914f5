"""The hooks under torch.compile: same result, no graph breaks of ours, collectives seen."""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
import torch.distributed._functional_collectives as functional
from torch import nn

from .capture import no_errors, read_rank, recorded
from .context import Context, same_losses
from .training import one_rank, small_model, steps_of

STEPS = 4


class _Reduced(nn.Module):
    """A model whose result goes through a functional collective."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the inner result, reduced over the group."""
        result: torch.Tensor = functional.all_reduce(self.inner(x), "sum", "0")
        return functional.wait_tensor(result)


def compiled(context: Context) -> None:
    """Train compiled models with and without the probe, by every backend that works here."""
    backends = ["eager", "aot_eager"] + (["inductor"] if context.device == "cuda" else [])
    with one_rank(context.device):
        expected = _plain_calls(context)
        for backend in backends:
            try:
                _compare(context, backend, expected)
            except Exception as error:  # noqa: BLE001 - the other backends are still to be tried
                context.expect(False, f"{backend}: {type(error).__name__}: {error}"[:400])


def _plain_calls(context: Context) -> int:
    """Return the collectives that the probe sees of the same training without a compiler."""
    with recorded(context.work / "plain", cost_budget_ppm=0):
        steps_of(_Reduced(small_model(context.device)), _batch(context.device), STEPS)
    calls = read_rank(context.work / "plain").count("collective")
    context.expect(calls >= STEPS, f"{calls} collectives seen in {STEPS} steps, uncompiled")
    return int(context.figure("plain_collective_records", calls))


def _batch(device: str) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(32, 256, device=device)


def _compare(context: Context, backend: str, expected: int) -> None:
    """Train with one backend without, then with the probe."""
    bare, bare_graphs = _train(context.device, backend)
    run_path = context.work / backend
    with recorded(run_path, cost_budget_ppm=0):
        watched, watched_graphs = _train(context.device, backend)
    capture = read_rank(run_path)
    no_errors(context, capture)
    for name in ("collective", "span", "step", "device_time"):
        context.figure(f"{backend}_{name}_records", capture.count(name))
    context.figure(f"{backend}_graphs", {"bare": bare_graphs, "watched": watched_graphs})
    same_losses(context, backend, bare, watched)
    context.expect(
        bare_graphs == watched_graphs,
        f"{backend}: graphs without the probe {bare_graphs}, with it {watched_graphs}",
    )
    calls = capture.count("collective")
    context.expect(calls == expected, f"{backend}: {calls} of {expected} collectives seen")


def _train(device: str, backend: str) -> tuple[list[float], dict[str, Any]]:
    """Train a few steps; return the losses, and what the compiler made of the model."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = torch.compile(_Reduced(small_model(device)), backend=backend)
    losses = steps_of(model, _batch(device), STEPS)
    counters = torch._dynamo.utils.counters
    breaks = {str(reason)[:120]: count for reason, count in counters["graph_break"].items()}
    return losses, {"graphs": counters["stats"].get("unique_graphs", 0), "breaks": breaks}
