"""Documents of long-tailed length, packed into sequences of one length.

A sequence is filled with documents, the last of which is cut off. All sequences
have the same number of tokens and yet not the same work: attention inside
documents costs the sum of their squared lengths (Krell et al. 2021, arXiv
2107.02027, section 3), so a sequence with one long document has many times the
work of one with many short ones. Everything is a function of seed, step and
place in the batch, which each rank can compute for itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from math import isqrt

from ..config.config import TrainerConfig

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
