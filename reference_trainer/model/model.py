"""The part of a decoder transformer that one pipeline stage holds.

The architecture is that of GPT-2 (Radford et al. 2019, section 2.3): learned positions,
norms in front of attention and MLP, GELU. Every block draws its weights from a generator
of its own, seeded by ``seed * 1000 + index in the whole model``, and tensor parallelism
slices what was drawn. So any split into stages and ranks starts from the same weights as
a single process. Shapes: B microbatch, T tokens, S tokens of this rank between pairs
of linear layers (fewer than T with sequence parallelism), D width, U vocabulary
rows of this rank, H heads of this rank, C channels of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ..config.config import ModelConfig
from ..parallel.comm import Communicator
from ..parallel.context_parallel import Attention, ContextSplit, local_attention
from ..parallel.mesh import MeshGroup
from ..parallel.tensor_parallel import (
    ColumnLinear,
    RowLinear,
    TensorSplit,
    column_linear,
    embed,
    own_rows,
)
from .moe import ExpertSplit, MoeMlp
from .pace import PartRunner

_INIT_STD = 0.02
"""As in GPT-2."""


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
        comm: Issues their collectives.
        runner: Runs the parts, with a pace or without.
        sequence_parallel: Whether these ranks split tokens between linear layers.
        context: The ranks that share a sequence; None: this rank alone.
        experts: The experts in place of each MLP; None: one dense MLP.
    """

    def __init__(  # noqa: PLR0913 - one keyword for each axis
        self,
        config: ModelConfig,
        part: StagePart,
        *,
        seed: int,
        tp: MeshGroup,
        comm: Communicator,
        runner: PartRunner,
        sequence_parallel: bool = False,
        context: ContextSplit | None = None,
        experts: ExpertSplit | None = None,
    ) -> None:
        super().__init__()
        self._runner = runner
        split = TensorSplit(tp, comm, sequence_parallel)
        own = (
            torch.arange(config.seq_len) if context is None else context.own_tokens(config.seq_len)
        )
        attention = local_attention if context is None else context.attention
        first_free = seed * 1000 + config.layers
        self.embedding = (
            Embedding(config, _generator(first_free), split, own) if part.first else None
        )
        self.blocks = nn.ModuleList(
            Block(
                config,
                _generator(seed * 1000 + layer),
                split,
                attention=attention,
                experts=experts,
            )
            for layer in part.layers
        )
        head_seed = first_free if config.tied else first_free + 1
        self.head = Head(config, _generator(head_seed), split) if part.last else None

    def recompute_halves(self, run: Callable[..., Tensor]) -> None:
        """Run what lies before each row-parallel layer through ``run(function, hidden)``."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.recompute_halves(run)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map ids (B, T) or hidden (B, S, D) to hidden (B, S, D) or logits (B, T, U)."""
        hidden = inputs
        if self.embedding is not None:
            hidden = self._runner.embed(self.embedding, hidden)
        for block in self.blocks:
            hidden = self._runner.layer(block, hidden)
        if self.head is not None:
            hidden = self._runner.head(self.head, hidden)
        return hidden


class Embedding(nn.Module):
    """Token and position embedding.

    Args:
        config: Shape of the model.
        generator: Draws the weights.
        split: The ranks that share the token table.
        own: Positions of this rank's tokens in the sequence, (T,).
    """

    positions_of_tokens: Tensor

    def __init__(
        self, config: ModelConfig, generator: torch.Generator, split: TensorSplit, own: Tensor
    ) -> None:
        super().__init__()
        self.tokens = own_rows(_draw(generator, config.vocab, config.hidden), split)
        self.positions = split.shared(_draw(generator, config.seq_len, config.hidden))
        here = own[split.own_tokens(len(own))]
        self.register_buffer("positions_of_tokens", here, persistent=False)
        self._split = split

    def forward(self, ids: Tensor) -> Tensor:
        """Map ids (B, T) to hidden (B, S, D)."""
        positions = nn.functional.embedding(self.positions_of_tokens, self.positions)
        return embed(ids, self.tokens, self._split) + positions


class Block(nn.Module):
    """Pre-norm transformer block: attention and MLP, each one column-row pair.

    Args:
        config: Shape of the model.
        generator: Draws the weights.
        split: The ranks that share the block's matrices.
        attention: Causal attention of this rank's tokens to the whole sequence.
        experts: The experts in place of the MLP; None: one dense MLP.
    """

    def __init__(
        self,
        config: ModelConfig,
        generator: torch.Generator,
        split: TensorSplit,
        *,
        attention: Attention = local_attention,
        experts: ExpertSplit | None = None,
    ) -> None:
        super().__init__()
        hidden = config.hidden
        self._heads = config.heads // split.group.size
        self._attention = attention
        self.attention_norm = split.norm(hidden)
        self.qkv = ColumnLinear(_draw(generator, 3 * hidden, hidden), 3, split)
        self.projection = RowLinear(_draw(generator, hidden, hidden), split)
        self.mlp_norm = split.norm(hidden)
        self.mlp: Mlp | MoeMlp
        if experts is None:
            self.mlp = Mlp(config, generator, split)
        else:
            draw = partial(_draw, generator)
            self.mlp = MoeMlp((hidden, config.ffn), draw, split, experts)
        self._run_half: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor] = _run_half

    def recompute_halves(self, run: Callable[..., Tensor]) -> None:
        """Run what lies before each row-parallel layer through ``run(function, hidden)``."""
        self._run_half = run

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden (B, S, D) to hidden (B, S, D)."""
        hidden = hidden + self.projection(self._run_half(self._mix_tokens, hidden))
        if isinstance(self.mlp, Mlp):
            return hidden + torch.as_tensor(self.mlp.down(self._run_half(self._widen, hidden)))
        return hidden + torch.as_tensor(self.mlp(self.mlp_norm(hidden)))

    def _mix_tokens(self, hidden: Tensor) -> Tensor:
        """Norm, projection and attention: hidden (B, S, D) to (B, T, H C)."""
        return self._attend(self.qkv(self.attention_norm(hidden)))

    def _widen(self, hidden: Tensor) -> Tensor:
        """Norm and first half of the MLP: hidden (B, S, D) to (B, T, F)."""
        assert isinstance(self.mlp, Mlp)
        return self.mlp.widen(self.mlp_norm(hidden))

    def _attend(self, qkv: Tensor) -> Tensor:
        """Causal self-attention of this rank's heads: (B, T, 3 H C) to (B, T, H C)."""
        batch, tokens, width = qkv.shape
        split = qkv.view(batch, tokens, 3, self._heads, width // (3 * self._heads))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, H, T, C)
        mixed = self._attention(query, key, value)
        return mixed.transpose(1, 2).reshape(batch, tokens, width // 3)


class Mlp(nn.Module):
    """Two linear layers around a GELU: one column-row pair."""

    def __init__(self, config: ModelConfig, generator: torch.Generator, split: TensorSplit) -> None:
        super().__init__()
        self.up = ColumnLinear(_draw(generator, config.ffn, config.hidden), 1, split)
        self.down = RowLinear(_draw(generator, config.hidden, config.ffn), split)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden (B, S, D) to hidden (B, S, D)."""
        return torch.as_tensor(self.down(self.widen(hidden)))

    def widen(self, hidden: Tensor) -> Tensor:
        """Map hidden (B, S, D) to (B, T, F), F the split width."""
        return nn.functional.gelu(self.up(hidden))


class Head(nn.Module):
    """Final norm and output head, whose vocabulary rows are split over the tensor-parallel ranks."""

    def __init__(self, config: ModelConfig, generator: torch.Generator, split: TensorSplit) -> None:
        super().__init__()
        self.norm = split.norm(config.hidden)
        self.output = own_rows(_draw(generator, config.vocab, config.hidden), split)
        self._split = split

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden (B, S, D) to logits (B, T, U) of this rank's rows."""
        return column_linear(self.norm(hidden), self.output, None, self._split)


def _run_half(function: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """Run half a block and keep what its backward needs."""
    return function(hidden)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _draw(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    """Return a normal matrix, drawn on the CPU so that every device gets the same numbers."""
    return torch.empty(rows, columns).normal_(0.0, _INIT_STD, generator=generator)
