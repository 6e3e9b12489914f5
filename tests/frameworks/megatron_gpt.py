"""A GPT of Megatron-core with its gradient buffers, optimizers and schedules, on the CPU.

Megatron-core asks for CUDA devices, streams and types of tensors by name. It is given those
of the CPU, where nothing runs aside; nothing else of it is changed.
"""

import argparse
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from torch.overrides import TorchFunctionMode

VOCABULARY, WIDTH, LENGTH, BATCH, MICROBATCHES = 64, 32, 8, 2, 4


class OnCpu(TorchFunctionMode):
    """Makes on the CPU what is asked for on a CUDA device; tensors call themselves CUDA's."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call on with the device replaced."""
        kwargs = dict(kwargs or {})
        if "device" in kwargs and str(kwargs["device"]).startswith(("cuda", "0")):
            kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.")
        return result


class NoStream:
    """A stream, and an event of it, of a device that has finished before it is asked."""

    def wait_stream(self, _other: Any) -> None:
        """Return at once."""

    def synchronize(self) -> None:
        """Return at once."""

    def record_event(self) -> "NoStream":
        """Return an event that has happened."""
        return self


def to_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Return a tensor as the sizes of an exchange, as it would come from a CUDA device."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def answer_for_a_device() -> None:
    """Answer what Megatron-core asks of CUDA and of Transformer Engine, which is not there."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"
    cuda.current_stream = lambda *_: NoStream()
    cuda.synchronize = lambda *_: None
    cuda.stream = lambda *_: nullcontext()
    cuda.Stream = NoStream
    moe_utils.te_general_gemm = None
    token_dispatcher.maybe_move_tensor_to_cpu = to_host
    initialize_rng_tracker(inference_rng_tracker=True)


def model_of(config: TransformerConfig, chunk: int) -> DistributedDataParallel:
    """Return a chunk of this rank's layers, with its gradients in buffers."""
    place = {"ignore_virtual": False, "vp_stage": chunk}
    model = GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=config.num_moe_experts),
        VOCABULARY,
        LENGTH,
        pre_process=parallel_state.is_pipeline_first_stage(**place),
        post_process=parallel_state.is_pipeline_last_stage(**place),
        share_embeddings_and_output_weights=False,
        vp_stage=chunk,
    )
    buffers = DistributedDataParallelConfig(use_distributed_optimizer=True)
    return DistributedDataParallel(config, buffers, model)


def forward_step(batches: Any, model: Any) -> Any:
    """Run one microbatch; return the output and the function that makes the loss of it."""
    tokens = next(batches)
    positions = torch.arange(LENGTH).expand(BATCH, LENGTH)
    output = model(tokens, positions, None, labels=tokens)
    return output, partial(lambda losses: (losses.mean(), {}))


def train(config: TransformerConfig, steps: int) -> None:
    """Train for some steps on random tokens."""
    chunks = [model_of(config, chunk) for chunk in range(2)]
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=1e-3, use_distributed_optimizer=True), chunks
    )
    run_passes = get_forward_backward_func()
    for _ in range(steps):
        for chunk in chunks:
            chunk.zero_grad_buffer()
        optimizer.zero_grad()
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
        run_passes(
            forward_step_func=forward_step,
            data_iterator=[iter([tokens] * MICROBATCHES) for _ in chunks],
            model=chunks,
            num_microbatches=MICROBATCHES,
            seq_length=LENGTH,
            micro_batch_size=BATCH,
        )
        optimizer.step()


def main() -> None:
    """Train on two stages of two chunks, two replicas that share four experts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    steps = parser.parse_args().steps
    answer_for_a_device()
    dist.init_process_group("gloo")
    sizes: dict[str, Any] = {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "expert_model_parallel_size": 2,
    }
    parallel_state.initialize_model_parallel(**sizes)
    config = TransformerConfig(
        num_layers=4,
        hidden_size=WIDTH,
        num_attention_heads=2,
        num_moe_experts=4,
        moe_token_dispatcher_type="alltoall",
        moe_router_load_balancing_type="none",
        pipeline_dtype=torch.float32,
        use_cpu_initialization=True,
        deallocate_pipeline_outputs=True,
        gradient_accumulation_fusion=False,
        **sizes,
    )
    config.finalize_model_grads_func = finalize_model_grads
    with OnCpu():
        train(config, steps)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
