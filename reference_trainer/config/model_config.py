"""The shape of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshscope.probe.schema.message import message

from .checks import in_range, require

_MOST_LAYERS = 10_000
"""Ten times the deepest transformer published (arXiv 2203.00555); each is planned by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The decoder transformer."""

    layers: int = 4
    """Transformer blocks in the whole model."""
    hidden: int = 64
    """Width of the residual stream."""
    ffn: int = 256
    """Width inside the MLP."""
    heads: int = 4
    """Attention heads; each has hidden / heads channels."""
    vocab: int = 256
    """Rows of the embedding and of the output head."""
    seq_len: int = 32
    """Tokens per sequence."""
    tied: bool = False
    """The output head is the token embedding, one parameter for both (Press and Wolf 2017)."""
    family: Literal["gpt", "llama"] = "gpt"
    """``gpt``: learned positions, layer norm, biases, GELU. ``llama``: rotary positions, RMS norm,
    no biases, gated MLP; it can be planned with --dry-run, but is not built here."""
    kv_heads: int = 0
    """Heads of keys and values that groups of heads share; 0: as many as heads. llama only."""

    def __post_init__(self) -> None:
        """Validate sizes.

        Raises:
            ConfigError: A size is below one, or heads do not divide the width.
        """
        in_range(self.layers, 1, _MOST_LAYERS, where="model.layers")
        for name in ("hidden", "ffn", "heads", "vocab", "seq_len"):
            in_range(getattr(self, name), 1, where=f"model.{name}")
        require(
            self.hidden % self.heads == 0,
            message("refused.width_of_heads", hidden=self.hidden, heads=self.heads),
            where="model.hidden",
            remedy=message("advice.width_of_heads"),
        )
        require(
            self.kv_heads == 0 or (self.kv_heads > 0 and self.heads % self.kv_heads == 0),
            message("refused.kv_heads_of_model", kv_heads=self.kv_heads, heads=self.heads),
            where="model.kv_heads",
            remedy=message("advice.divisor_of_heads_or_0"),
        )
        require(
            self.family == "llama" or self.kv_heads in (0, self.heads),
            message("refused.kv_heads_of_family"),
            where="model.kv_heads",
            remedy=message("advice.llama"),
        )

    @property
    def kv_width(self) -> int:
        """Return the width of the keys, which is that of the values."""
        return self.hidden // self.heads * (self.kv_heads or self.heads)
