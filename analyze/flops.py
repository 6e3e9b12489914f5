"""Model FLOPs of a decoder transformer, under conventions that are named.

Counting one multiply-add as two FLOPs, forward + backward = 3 x forward, and no
recomputation:

* ``palm``: ``6 N + 12 L h T`` per token, N all parameters (Chowdhery et al.,
  PaLM, 2022, appendix B; h is heads x head dim);
* ``nonembedding``: ``6 (N - N_embedding) + 12 L h T``: a lookup multiplies
  nothing, so the input table does not count;
* ``causal``: the same with half of the attention term, because half of the
  scores are masked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_CONVENTION = "nonembedding"
CONVENTIONS = ("palm", "nonembedding", "causal")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the FLOPs formulas need to know of a model."""

    num_layers: int
    hidden_size: int
    seq_len: int
    vocab_size: int
    parameters: int


def model_shape(run: Mapping[str, object]) -> ModelShape | None:
    """Return the shape in the run table, None if a part of it is not known."""
    values = {name: run.get(name) for name in ModelShape.__slots__}
    if any(not isinstance(value, int) for value in values.values()):
        return None
    return ModelShape(**values)  # type: ignore[arg-type]


def flops_per_token(shape: ModelShape, convention: str = DEFAULT_CONVENTION) -> float:
    """Return the model FLOPs of training on one token.

    Raises:
        KeyError: The convention is none of ``CONVENTIONS``.
    """
    attention = 12.0 * shape.num_layers * shape.hidden_size * shape.seq_len
    embedding = shape.vocab_size * shape.hidden_size
    return {
        "palm": 6.0 * shape.parameters + attention,
        "nonembedding": 6.0 * (shape.parameters - embedding) + attention,
        "causal": 6.0 * (shape.parameters - embedding) + attention / 2,
    }[convention]
