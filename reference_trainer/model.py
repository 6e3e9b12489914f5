"""The part of a decoder transformer that one pipeline stage holds.

Every block draws its weights from a generator of its own, seeded by
``seed * 1000 + index in the whole model``, and tensor parallelism slices what
was drawn. So any split into stages and ranks starts from the same weights as a
single process. Shapes: B microbatch, T tokens, D width, V vocabulary, H heads of
this rank, C channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .comm import Communicator
from .config import ModelConfig
from .mesh import MeshGroup
from .pace import PartRunner
from .tensor_parallel import ColumnLinear, RowLinear

_INIT_STD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePart:
    """Which part of the model a stage holds."""

    layers: range
    """Indices of its blocks in the whole model."""
    first: bool
    """It holds the embedding."""
    last: bool
    """It holds the final norm and the output head."""


class Stage(nn.Module):
    """Embedding, blocks and head, as far as they belong to the stage.

    Args:
        config: Shape of the whole model.
        part: What of it this stage holds.
        seed: Seed of the weights.
        tp: The ranks that share this stage's blocks.
        comm: Issues the collectives of tensor parallelism.
        runner: Runs the parts, with a pace or without.
    """

    def __init__(
        self,
        config: ModelConfig,
        part: StagePart,
        *,
        seed: int,
        tp: MeshGroup,
        comm: Communicator,
        runner: PartRunner,
    ) -> None:
        super().__init__()
        self._runner = runner
        first_free = seed * 1000 + config.layers
        self.embedding = Embedding(config, _generator(first_free)) if part.first else None
        self.blocks = nn.ModuleList(
            Block(config, _generator(seed * 1000 + layer), tp, comm) for layer in part.layers
        )
        head_seed = first_free if config.tied else first_free + 1
        self.head = Head(config, _generator(head_seed)) if part.last else None

    def recompute_halves(self, run: Callable[..., Tensor]) -> None:
        """Run what lies before each row-parallel layer through ``run(function, hidden)``."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.recompute_halves(run)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ids (B, T) or hidden (B, T, D) to hidden (B, T, D) or logits (B, T, V)."""
        hidden = inputs
        if self.embedding is not None:
            hidden = self._runner.embed(self.embedding, hidden)
        for block in self.blocks:
            hidden = self._runner.layer(block, hidden)
        if self.head is not None:
            hidden = self._runner.head(self.head, hidden)
        return hidden


class Embedding(nn.Module):
    """Token and position embedding, replicated over the tensor-parallel ranks."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.tokens = nn.Parameter(_draw(generator, config.vocab, config.hidden))
        self.positions = nn.Parameter(_draw(generator, config.seq_len, config.hidden))

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to hidden (B, T, D)."""
        return nn.functional.embedding(ids, self.tokens) + self.positions


class Block(nn.Module):
    """Pre-norm transformer block: attention and MLP, each one column-row pair."""

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, tp: MeshGroup, comm: Communicator
    ) -> None:
        super().__init__()
        hidden, ffn = config.hidden, config.ffn
        self._heads = config.heads // tp.size
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = ColumnLinear(_draw(generator, 3 * hidden, hidden), 3, tp, comm)
        self.projection = RowLinear(_draw(generator, hidden, hidden), tp, comm)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.up = ColumnLinear(_draw(generator, ffn, hidden), 1, tp, comm)
        self.down = RowLinear(_draw(generator, hidden, ffn), tp, comm)
        self._run_half: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] = _run_half

    def recompute_halves(self, run: Callable[..., Tensor]) -> None:
        """Run what lies before each row-parallel layer through ``run(function, hidden)``."""
        self._run_half = run

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden (B, T, D) to hidden (B, T, D)."""
        hidden = hidden + self.projection(self._run_half(self._mix_tokens, hidden))
        return hidden + torch.as_tensor(self.down(self._run_half(self._widen, hidden)))

    def _mix_tokens(self, hidden: Tensor) -> Tensor:
        """Norm, projection and attention: hidden (B, T, D) to (B, T, H C)."""
        return self._attend(self.qkv(self.attention_norm(hidden)))

    def _widen(self, hidden: Tensor) -> Tensor:
        """First half of the MLP: hidden (B, T, D) to (B, T, F), F the split MLP width."""
        return nn.functional.gelu(self.up(self.mlp_norm(hidden)))

    def _attend(self, qkv: Tensor) -> Tensor:
        """Causal self-attention of this rank's heads: (B, T, 3 H C) to (B, T, H C)."""
        batch, tokens, width = qkv.shape
        split = qkv.view(batch, tokens, 3, self._heads, width // (3 * self._heads))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, H, T, C)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(batch, tokens, width // 3)


class Head(nn.Module):
    """Final norm and output head, replicated over the tensor-parallel ranks."""

    def __init__(self, config: ModelConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.hidden)
        self.output = nn.Parameter(_draw(generator, config.vocab, config.hidden))

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden (B, T, D) to logits (B, T, V)."""
        return nn.functional.linear(self.norm(hidden), self.output)


def _run_half(function: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """Run half a block and keep what its backward needs."""
    return function(hidden)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _draw(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    """Return a normal matrix, drawn on the CPU so that every device gets the same numbers."""
    return torch.empty(rows, columns).normal_(0.0, _INIT_STD, generator=generator)
