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


def head_in_layers(run: Mapping[str, object]) -> float | None:
    """Return how many transformer layers the output head is worth, None if the shape is unknown.

    Per token the head multiplies ``2 h V``, a layer ``8 h^2 + 4 h f + 4 h T`` (four attention
    projections, two feed-forward ones, scores and their use; f is 4 h if not known).
    """
    shape = model_shape(run)
    if shape is None or min(shape.hidden_size, shape.seq_len) < 1:
        return None
    width = shape.hidden_size
    ffn = run.get("ffn_size")
    ffn_size = ffn if isinstance(ffn, int) and ffn > 0 else 4 * width
    layer = 8 * width**2 + 4 * width * ffn_size + 4 * width * shape.seq_len
    return 2 * width * shape.vocab_size / layer


def flops_per_token(shape: ModelShape, convention: str = DEFAULT_CONVENTION) -> float:
    """Return the model FLOPs of training on one token.

    Raises:
        KeyError: There is no such convention.
    """
    attention = 12.0 * shape.num_layers * shape.hidden_size * shape.seq_len
    embedding = shape.vocab_size * shape.hidden_size
    return {
        "palm": 6.0 * shape.parameters + attention,
        "nonembedding": 6.0 * (shape.parameters - embedding) + attention,
        "causal": 6.0 * (shape.parameters - embedding) + attention / 2,
    }[convention]
