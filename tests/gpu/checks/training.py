"""Models that the checks train, and a process group of one rank."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional


def wait_for_device(device: str) -> None:
    """Wait until the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def one_rank(device: str) -> Iterator[str]:
    """Have a process group of this process alone; yield its backend."""
    backend = "nccl" if device == "cuda" else "gloo"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}  # fmt: skip
    os.environ.update(variables)
    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group(backend)
    try:
        yield backend
    finally:
        dist.destroy_process_group()
        for name in variables:
            os.environ.pop(name, None)


class Block(nn.Module):
    """A transformer layer: causal attention, then a feed-forward of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, width) to the same shape."""
        batch, tokens, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Transformer(nn.Module):
    """A small language model; the defaults are those of GPT-2 with 124 M parameters."""

    def __init__(
        self, vocab: int = 50304, width: int = 768, layers: int = 12, heads: int = 12
    ) -> None:
        super().__init__()
        self.vocab = vocab
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the loss of predicting each token from those before it."""
        x = self.embed(ids[:, :-1])
        for layer in self.layers:
            x = layer(x)
        scores = self.head(self.norm(x)).float()
        return functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten())


def small_model(device: str, width: int = 256) -> nn.Module:
    """Return a stack of linear layers with the same weights on every call."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(device)


def steps_of(model: nn.Module, batch: torch.Tensor, steps: int) -> list[float]:
    """Train a model on one batch; return the loss of each step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses: list[Any] = []
    for _ in range(steps):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [float(loss) for loss in losses]
