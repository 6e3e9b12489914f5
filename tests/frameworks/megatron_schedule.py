"""Megatron-core's own schedule, mesh and groups, on the CPU: 2 stages, 2 replicas.

Megatron-core asks for CUDA buffers by name. A function mode gives it CPU buffers instead;
nothing else of it is changed.
"""

import argparse
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from torch import nn
from torch.overrides import TorchFunctionMode

WIDTH, LENGTH, BATCH, MICROBATCHES = 32, 8, 2, 4


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on a CUDA device."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call on with the device replaced."""
        kwargs = dict(kwargs or {})
        if "device" in kwargs and str(kwargs["device"]).startswith(("cuda", "0")):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Stage(nn.Module):
    """The layers of one stage, as Megatron-core's schedules call them."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.received: torch.Tensor | None = None
        self.model_type = None

    def set_input_tensor(self, received: list[torch.Tensor | None]) -> None:
        """Take what the stage before sent, (T, B, C)."""
        self.received = received[0]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the output (T, B, C) for the received tensor, else for the tokens."""
        entering = tokens if self.received is None else self.received
        return entering + self.layers(entering)


def forward_step(batches: Any, model: Stage) -> Any:
    """Run one microbatch; return the output and the function that makes the loss of it."""
    output = model(next(batches))
    return output, partial(lambda result: (result.square().mean(), {}))


def main() -> None:
    """Train for a few steps on random input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    steps = parser.parse_args().steps
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment]
    torch.cuda.synchronize = lambda *_: None
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    config = TransformerConfig(
        num_layers=2,
        hidden_size=WIDTH,
        num_attention_heads=2,
        pipeline_model_parallel_size=2,
        pipeline_dtype=torch.float32,
        deallocate_pipeline_outputs=True,
    )
    model = Stage(config)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    run_passes = get_forward_backward_func()
    group = parallel_state.get_data_parallel_group()
    for _ in range(steps):
        optimizer.zero_grad()
        with OnCpu():
            run_passes(
                forward_step_func=forward_step,
                data_iterator=iter([torch.randn(LENGTH, BATCH, WIDTH)] * MICROBATCHES),
                model=[model],
                num_microbatches=MICROBATCHES,
                seq_length=LENGTH,
                micro_batch_size=BATCH,
            )
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=group)
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
