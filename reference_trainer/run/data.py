"""Tokens to train on: synthetic ones, or those of a text, packed or not.

What a rank reads is a function of seed, step and place in the batch, whether
worker processes load it or the training process. Synthetic documents count up
from a random token by a stride of 1 to 4, so the next token can be learned from
the last two and the loss has somewhere to go. A text is read as bytes, from
places drawn at random.

A packed sequence is filled with documents, the last of which is cut off. All sequences
have the same number of tokens and yet not the same work: attention inside
documents costs the sum of their squared lengths (Krell et al. 2021, arXiv
2107.02027, section 3), so a sequence with one long document has many times the
work of one with many short ones. Everything is a function of seed, step and
place in the batch, which each rank can compute for itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import isqrt
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.message import message

from ..config.config import TrainerConfig
from ..faults.ground_truth import Span

_LOG_SIGMA = 1.5
"""Spread of the log-normal lengths: the longest of a hundred is 30 times the median."""
_SAMPLE = 512
"""Sequences from which the usual work is taken."""


def document_lengths(config: TrainerConfig, step: int, sequence: int) -> tuple[int, ...]:
    """Return the lengths of the documents in one sequence; they sum to its tokens.

    >>> from .config import DataConfig, ModelConfig
    >>> document_lengths(TrainerConfig(model=ModelConfig(seq_len=16)), 0, 0)
    (16,)

    Args:
        config: The run.
        step: Index of the step.
        sequence: Index in the global batch.
    """
    left = config.model.seq_len
    if config.data.documents == "whole":
        return (left,)
    draw = random.Random(f"{config.train.seed} documents {step} {sequence}")
    lengths = []
    while left:
        drawn = round(config.data.median_document * draw.lognormvariate(0.0, _LOG_SIGMA))
        lengths.append(min(max(drawn, 1), left))
        left -= lengths[-1]
    return tuple(lengths)


class MicrobatchWork:
    """The work of each microbatch of one replica, over that of a usual one.

    Args:
        config: The run.
        dp_rank: The replica.
    """

    def __init__(self, config: TrainerConfig, dp_rank: int) -> None:
        self._config = config
        share = config.train.global_batch // config.layout.dp
        self._own = range(dp_rank * share, (dp_rank + 1) * share)
        # Step -1 is never trained on; any sequences show what is usual.
        usual = _work(document_lengths(config, -1, sequence) for sequence in range(_SAMPLE))
        self._usual = usual / _SAMPLE * config.microbatch_size
        tokens = config.model.seq_len * config.microbatch_size
        self._alike = _lengths_with(tokens, round(self._usual))

    def of_step(self, step: int) -> list[float]:
        """Return one number per microbatch; 1.0 is a usual amount of work."""
        return [_work([lengths]) / self._usual for lengths in self.documents_of_step(step)]

    def sequences_of_step(self, step: int, *, apart: bool) -> list[tuple[int, ...]]:
        """Return the lengths of what attends to itself alone in each microbatch.

        Args:
            step: Index of the step.
            apart: Whether these are the documents; else they are alike, with the usual work.
        """
        if apart or self._config.data.documents == "whole":
            return self.documents_of_step(step)
        return [self._alike] * self._config.schedule.microbatches

    def documents_of_step(self, step: int) -> list[tuple[int, ...]]:
        """Return the lengths of the documents in each microbatch."""
        size = self._config.microbatch_size
        return [
            tuple(
                length
                for place in self._own[at : at + size]
                for length in document_lengths(self._config, step, place)
            )
            for at in range(0, len(self._own), size)
        ]


def _lengths_with(tokens: int, squares: int) -> tuple[int, ...]:
    """Return lengths with these tokens and, to a few tokens, this sum of squares.

    >>> _lengths_with(32, 512), _lengths_with(32, 1024)
    ((22, 4, 3, 1, 1, 1), (32,))
    """
    lengths = []
    while tokens:
        # The longest one that leaves at least one square for each token of the others.
        longest = (1 + isqrt(max(1 + 4 * (squares - tokens), 1))) // 2
        lengths.append(min(longest, tokens))
        tokens -= lengths[-1]
        squares -= lengths[-1] ** 2
    return tuple(lengths)


def _work(sequences: Iterable[Sequence[int]]) -> int:
    """Return the sum of the squared document lengths."""
    return sum(length * length for lengths in sequences for length in lengths)


LoadStall = Callable[[int], Span]
"""Holds up the loading of a step's batch where it is loaded, and returns when; (0, 0): not."""
StallLog = Callable[[int, Span], None]
"""Takes the step of a batch and when its loading was held up, in the training process."""

_STRIDES = 4
"""So few are learned within some steps: the loss falls."""


def _no_stall(_step: int) -> Span:
    """Hold nothing up."""
    return (0, 0)


def global_batch(config: TrainerConfig, step: int) -> tuple[Tensor, Tensor]:
    """Return ids and labels, each (global batch, T), of one step; the same on every rank.

    Raises:
        ConfigError: The text cannot be read, or is shorter than a sequence.
    """
    generator = torch.Generator().manual_seed(config.train.seed * 1_000_003 + step)
    if config.data.text:
        tokens = _text_tokens(config, generator)
    elif config.data.documents == "whole":
        tokens = _counting_tokens(config, generator)
    else:
        tokens = _packed_tokens(config, generator, step)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _counting_tokens(config: TrainerConfig, generator: torch.Generator) -> Tensor:
    """Return (global batch, T + 1) tokens, one document per sequence."""
    sequences, vocab = config.train.global_batch, config.model.vocab
    first = torch.randint(vocab, (sequences, 1), generator=generator)
    stride = torch.randint(1, _STRIDES + 1, (sequences, 1), generator=generator)
    return (first + stride * torch.arange(config.model.seq_len + 1)) % vocab


def _packed_tokens(config: TrainerConfig, generator: torch.Generator, step: int) -> Tensor:
    """Return (global batch, T + 1) tokens, several documents per sequence."""
    vocab = config.model.vocab
    rows = []
    for sequence in range(config.train.global_batch):
        lengths = torch.tensor(document_lengths(config, step, sequence))
        first = torch.randint(vocab, (len(lengths),), generator=generator)
        stride = torch.randint(1, _STRIDES + 1, (len(lengths),), generator=generator)
        begin = torch.repeat_interleave(lengths.cumsum(0) - lengths, lengths)
        place = torch.arange(config.model.seq_len) - begin
        row = torch.repeat_interleave(first, lengths) + place * stride.repeat_interleave(lengths)
        # The last label continues the last document.
        rows.append(torch.cat([row, row[-1:] + stride[-1:]]) % vocab)
    return torch.stack(rows)


def _text_tokens(config: TrainerConfig, generator: torch.Generator) -> Tensor:
    """Return (global batch, T + 1) bytes of the text, from random places."""
    text, wanted = _open_text(config), config.model.seq_len + 1
    begin = torch.randint(
        len(text) - wanted + 1, (config.train.global_batch, 1), generator=generator
    )
    return text[begin + torch.arange(wanted)].long()


def _open_text(config: TrainerConfig) -> Tensor:
    """Return the bytes of the text, mapped and not read: each step touches what it needs.

    Raises:
        ConfigError: It cannot be read, or is shorter than a sequence.
    """
    path, wanted = Path(config.data.text), config.model.seq_len + 1
    try:
        size = path.stat().st_size
        if size < wanted:
            raise ConfigError(
                message("refused.text_too_short", path=path, size=size, wanted=wanted),
                where="data.text",
                remedy=message("advice.longer_text"),
            )
        return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            message("refused.path_unreadable", path=path, error=error),
            where="data.text",
            remedy=message("advice.file_of_every_host"),
        ) from error


class StepBatches(Dataset[tuple[Tensor, Tensor, Span]]):
    """One item per step: the sequences of one data-parallel rank.

    Args:
        config: The run.
        dp_rank: The replica.
        stall: Holds up the loading of some items.
    """

    def __init__(self, config: TrainerConfig, dp_rank: int, stall: LoadStall = _no_stall) -> None:
        self._config = config
        share = config.train.global_batch // config.layout.dp
        self._own = slice(dp_rank * share, (dp_rank + 1) * share)
        self._stall = stall
        if config.data.text:
            # A file that is not there is refused here, and not by a worker process.
            _open_text(config)

    def __len__(self) -> int:
        """Return the number of steps."""
        return self._config.train.steps

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor, Span]:
        """Return ids and labels of a step, each (sequences of this rank, T), and its stall."""
        span_ns = self._stall(step)
        ids, labels = global_batch(self._config, step)
        return ids[self._own], labels[self._own], span_ns


def batches(
    config: TrainerConfig,
    dp_rank: int,
    *,
    first_step: int = 0,
    stall: LoadStall = _no_stall,
    log: StallLog | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the batches of this data-parallel rank, step by step; workers start now.

    Each is ids and labels, (sequences of this rank, T).

    Args:
        config: The run.
        dp_rank: The replica.
        first_step: Where to begin: the position in the data is the step.
        stall: Holds up the loading of some batches, in the process that loads them.
        log: Is told of each batch that was held up, when it arrives here.
    """
    settings = config.data
    loader = DataLoader(
        StepBatches(config, dp_rank, stall),
        batch_size=None,
        sampler=range(first_step, config.train.steps),
        num_workers=settings.num_workers,
        prefetch_factor=settings.prefetch_factor if settings.num_workers else None,
        # From pageable memory a copy to the device would wait for all that is queued there.
        pin_memory=config.device.kind == "cuda",
    )
    return _unpack(iter(loader), log, first_step)


def _unpack(
    items: Iterator[tuple[Tensor, Tensor, Span]], log: StallLog | None, first_step: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids and labels, and pass on when their loading was held up."""
    for step, (ids, labels, span_ns) in enumerate(items, start=first_step):
        start_ns, end_ns = span_ns
        if log is not None and end_ns:
            log(step, (start_ns, end_ns))
        yield ids, labels
