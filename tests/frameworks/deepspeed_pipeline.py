"""A trainer with DeepSpeed's pipeline module: two stages, two replicas, four microbatches."""

import argparse
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("DS_SKIP_CUDA_CHECK", "1")

import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch import nn

VOCABULARY, WIDTH, LENGTH = 128, 32, 16


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy of logits (B, T, V) and labels (B, T)."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main() -> None:
    """Train for a few steps on random tokens."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    steps = parser.parse_args().steps
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    blocks = [nn.TransformerEncoderLayer(WIDTH, 2, 64, 0.0, batch_first=True) for _ in range(4)]
    layers = [nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY)]
    model = PipelineModule(layers, num_stages=2, loss_fn=loss_of, partition_method="uniform")
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 0.1),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 4,
            "steps_per_print": 10**9,
        },
    )
    tokens = torch.randint(0, VOCABULARY, (2, LENGTH))
    for _ in range(steps):
        engine.train_batch(iter([(tokens, tokens)] * 4))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
