"""torchtitan's own trainer on its smallest Llama, on the CPU, with random tokens.

torchtitan takes CUDA and Triton for granted. It is given the name and the memory of a device,
and nothing in the place of kernels that this model does not use. FSDP2 is told to divide
before and after the sum, as gloo cannot within it. Nothing else of it is changed.
"""

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import _utils
from torch.distributed.fsdp import FSDPModule

LENGTH, MICROBATCHES, VOCABULARY = 32, 4, 2048


def answer_for_a_device() -> None:
    """Make the CPU the device that torchtitan finds, with answers to all that it asks."""
    _utils._get_available_device_type = lambda: "cpu"
    cpu: Any = torch.cpu
    cpu.get_device_name = lambda *_: "CPU"
    cpu.get_device_properties = lambda *_: SimpleNamespace(total_memory=1 << 30)
    cpu.memory_stats = lambda *_: {}
    cpu.reset_peak_memory_stats = lambda: None
    cpu.empty_cache = lambda: None
    cpu.current_device = lambda: 0


def leave_out_kernels() -> None:
    """Put an empty module where torchtitan's kernels for experts would import Triton."""
    kernels: Any = ModuleType("torchtitan.models.moe.kernels")
    kernels.generate_permute_indices = None
    sys.modules[kernels.__name__] = kernels


answer_for_a_device()
leave_out_kernels()

from torchtitan.config import JobConfig  # noqa: E402
from torchtitan.models import llama3  # noqa: E402
from torchtitan.protocols.train_spec import register_train_spec  # noqa: E402
from torchtitan.train import Trainer  # noqa: E402


class RandomTokens:
    """Batches of token ids (B, T), which are their own labels."""

    def __init__(self, job_config: JobConfig, **_: Any) -> None:
        self.shape = (job_config.training.local_batch_size, LENGTH)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        """Yield inputs and labels without an end."""
        while True:
            tokens = torch.randint(VOCABULARY, self.shape)
            yield {"input": tokens}, tokens


def configured() -> JobConfig:
    """Return torchtitan's configuration for the arguments of the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--schedule", default="1F1B")
    parser.add_argument("--tensor", type=int, default=1)
    asked = parser.parse_args()
    config = JobConfig()
    config.model.name = "llama3_of_random_tokens"
    config.training.local_batch_size = MICROBATCHES
    config.training.seq_len = LENGTH
    config.training.steps = asked.steps
    config.training.mixed_precision_param = "float32"
    config.metrics.log_freq = 1
    config.optimizer.implementation = "for-loop"
    config.activation_checkpoint.mode = "none"
    config.comm.trace_buf_size = 0
    config.parallelism.pipeline_parallel_degree = asked.stages
    config.parallelism.pipeline_parallel_schedule = asked.schedule
    config.parallelism.tensor_parallel_degree = asked.tensor
    return config


def main() -> None:
    """Train for a few steps."""
    config = configured()
    spec = dataclasses.replace(
        llama3.get_train_spec(),
        build_dataloader_fn=RandomTokens,
        build_tokenizer_fn=None,
        build_validator_fn=None,
    )
    register_train_spec(config.model.name, spec)
    trainer = Trainer(config)
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)
    trainer.train()
    trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
