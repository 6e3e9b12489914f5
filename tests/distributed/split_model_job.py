"""A decoder split by ``torch.distributed.pipelining``, whose stages carry the arguments of the whole model."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from meshscope import probe

MICROBATCHES, SEQUENCES, LENGTH = 4, 8, 16


@dataclass
class ModelArgs:
    """Arguments as those of torchtitan are named."""

    dim: int = 32
    n_layers: int = 4
    n_heads: int = 4
    vocab_size: int = 64
    multiple_of: int = 32


class Part(nn.Module):
    """Some layers of the decoder, with its table at the begin or its head at the end."""

    def __init__(self, args, *, is_first):
        super().__init__()
        self.model_args = args
        self.table = nn.Embedding(args.vocab_size, args.dim) if is_first else None
        self.layer = nn.TransformerEncoderLayer(args.dim, args.n_heads, batch_first=True)
        self.output = None if is_first else nn.Linear(args.dim, args.vocab_size)

    def forward(self, x):
        """Run this part."""
        x = self.layer(x if self.table is None else self.table(x))
        return x if self.output is None else self.output(x)


def main(run, steps):
    """Run one rank of the training, and an evaluation after each step."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    probe.attach(run)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    part = Part(ModelArgs(), is_first=rank == 0)
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    loss = nn.CrossEntropyLoss()
    schedule = Schedule1F1B(
        stage, MICROBATCHES, loss_fn=lambda y, wanted: loss(y.flatten(0, 1), wanted.flatten())
    )
    optimizer = torch.optim.SGD(part.parameters(), 0.01)
    for _ in range(steps):
        ids = torch.randint(64, (SEQUENCES, LENGTH))
        given, wanted = ([ids], {}) if rank == 0 else ([], {"target": ids})
        optimizer.zero_grad()
        schedule.step(*given, **wanted)
        optimizer.step()
        part.eval()
        schedule.eval(*given, **wanted)
        part.train()
    dist.destroy_process_group()
    probe.detach()
