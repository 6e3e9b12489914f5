"""Deterministic synthetic text: a function of seed, step and position in the batch.

Each sequence counts up from a random token by a stride of 1 to 4, so the next
token can be learned from the last two and the loss has somewhere to go.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .config import TrainerConfig

_STRIDES = 4


def global_batch(config: TrainerConfig, step: int) -> tuple[Tensor, Tensor]:
    """Return ids and labels, each (global batch, T), of one step; the same on every rank."""
    sequences, vocab = config.train.global_batch, config.model.vocab
    generator = torch.Generator().manual_seed(config.train.seed * 1_000_003 + step)
    first = torch.randint(vocab, (sequences, 1), generator=generator)
    stride = torch.randint(1, _STRIDES + 1, (sequences, 1), generator=generator)
    tokens = (first + stride * torch.arange(config.model.seq_len + 1)) % vocab
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class StepBatches(Dataset[tuple[Tensor, Tensor]]):
    """One item per step: the sequences of one data-parallel rank."""

    def __init__(self, config: TrainerConfig, dp_rank: int) -> None:
        """Keep what the items are computed from."""
        self._config = config
        share = config.train.global_batch // config.layout.dp
        self._own = slice(dp_rank * share, (dp_rank + 1) * share)

    def __len__(self) -> int:
        """Return the number of steps."""
        return self._config.train.steps

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return ids and labels of a step, each (sequences of this rank, T)."""
        ids, labels = global_batch(self._config, step)
        return ids[self._own], labels[self._own]


def batches(config: TrainerConfig, dp_rank: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the batches of this data-parallel rank, step by step."""
    loader = DataLoader(
        StepBatches(config, dp_rank), batch_size=None, num_workers=config.data.num_workers
    )
    return iter(loader)
