"""Models that have the stated sizes and number of parameters.

Whether an embedding is tied, how many heads keys and values have, and whether MLPs are gated change
the number of parameters by known amounts. Where exactly one combination has the stated number, it
is the model. Experts are never inferred: parameters do not say how many a token passes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model.counts import total_parameters

_CLOSE = 0.002
"""Stated parameters may be rounded, or leave out norms: so much they may differ."""
_HEAD_DIMS = (64, 80, 96, 112, 128, 160, 192, 256)
_BIASES = ((False, False, False), (True, False, False), (True, True, True))
"""Of queries, keys and values; after attention; of the MLP."""


@lru_cache(maxsize=16)
def inferred_models(sizes: ModelDescription, parameters: int) -> tuple[ModelDescription, ...]:
    """Return the models with that many parameters: exactly as many, else nearly.

    Args:
        sizes: Layers, widths, heads, vocabulary and sequence; its other fields are left open.
        parameters: Of the whole model.
    """
    hidden, heads = sizes.hidden_size, sizes.num_heads
    usual = [hidden // heads] if hidden % heads == 0 else []
    for head_dims in (usual, [dim for dim in _HEAD_DIMS if dim not in usual]):
        off = [
            (abs(total_parameters(model) - parameters), model)
            for model in _candidates(sizes, head_dims)
        ]
        exact = tuple(model for by, model in off if by == 0)
        close = tuple(model for by, model in off if by <= _CLOSE * parameters)
        if exact or (close and head_dims is usual):
            return exact or close
    return ()


def _candidates(sizes: ModelDescription, head_dims: list[int]) -> list[ModelDescription]:
    heads = sizes.num_heads
    kv_heads = [number for number in range(1, heads + 1) if heads % number == 0]
    flags = product(head_dims, kv_heads, (True, False), (True, False), (True, False), _BIASES)
    return [
        replace(
            sizes,
            kv_heads=kv,
            head_dim=head_dim,
            v_head_dim=head_dim,
            gated=gated,
            tied=tied,
            qk_norm=qk_norm,
            qkv_bias=biases[0],
            out_bias=biases[1],
            mlp_bias=biases[2],
            norm_shift=biases[2],
            learned_positions=sizes.seq_len if biases[2] and not gated else 0,
        )
        for head_dim, kv, gated, tied, qk_norm, biases in flags
    ]
