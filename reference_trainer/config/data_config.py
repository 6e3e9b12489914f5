"""Settings of the input pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshscope.probe.schema.message import message

from .checks import in_range, require


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The input pipeline."""

    num_workers: int = 0
    """Worker processes of the DataLoader; 0 makes the data in the training process."""
    prefetch_factor: int = 2
    """Batches that each worker loads ahead."""
    text: str = ""
    """A file whose bytes are the tokens; empty: synthetic tokens."""
    documents: Literal["whole", "long_tail"] = "whole"
    """Synthetic sequences of one document each, or packed with documents of long-tailed length."""
    median_document: int = 8
    """Tokens of the median document where they are packed."""
    tell_sequences: bool = True
    """Tell the probe how long the sequences of each microbatch are."""

    def __post_init__(self) -> None:
        """Validate the counts.

        Raises:
            ConfigError: A count is out of range, or a text would be packed.
        """
        in_range(self.num_workers, 0, where="data.num_workers")
        for name in ("prefetch_factor", "median_document"):
            in_range(getattr(self, name), 1, where=f"data.{name}")
        require(
            not (self.text and self.documents == "long_tail"),
            message("refused.synthetic_documents"),
            where="data.documents",
            remedy=message("advice.no_text"),
        )
