"""FLOPs of training on one token, under conventions that have names.

One multiply-add is two FLOPs, and the backward pass is two forward passes: a matrix of N
parameters costs 6 N a token. No convention counts recomputation, lookups or element-wise work.
With H heads of width d, a token that attends to T keys costs ``6 H (d_qk + d_v) T`` in each layer:
scores and their use, forward and backward.

* ``nonembedding``: matrix products, and attention to all T tokens of the sequence, masked or not
  (torchtitan, torchtitan/models/utils.py); ``full`` is another name of it. The output head counts, tied or not.
* ``causal``: the same with the half of the scores that is not masked (Megatron-LM,
  megatron/training/training.py, since 2025).
* ``palm``: ``6 N + 12 L H Q T``, N all parameters, Q the width of a head (Chowdhery et al. 2022,
  arXiv 2204.02311, appendix B); of routed experts, N holds those that a token passes.
* ``no_attention``: matrix products of weights alone.

Under sliding windows T is the window where that is shorter, except in ``palm``. In packed
documents T is what a token sees on average, ``sum(L^2) / sum(L)`` over their lengths L.
"""

from __future__ import annotations

from .description import ModelDescription
from .parameters import (
    attention_matrices,
    has_experts,
    idle_parameters,
    mlp_matrices,
    total_parameters,
)

DEFAULT_CONVENTION = "nonembedding"
CONVENTIONS: dict[str, str] = {
    "nonembedding": "matrix products, full attention (torchtitan)",
    "causal": "matrix products, causal half of attention (Megatron)",
    "palm": "6 N + 12 L H Q T (PaLM)",
    "no_attention": "matrix products without attention",
}
"""Conventions by name, with one clause each."""
_PASSES = 3
"""A forward pass, and a backward pass that is worth two."""


def flops_per_token(
    model: ModelDescription,
    convention: str = DEFAULT_CONVENTION,
    keys_per_token: float | None = None,
) -> float:
    """Return the model FLOPs of training on one token.

    Args:
        model: The model.
        convention: A name of ``CONVENTIONS``, or ``full``.
        keys_per_token: Tokens of its own document that a token could attend to without a causal
            mask, on average: ``sum(L^2) / sum(L)``. None: those of a whole sequence.

    Raises:
        KeyError: There is no such convention.
    """
    seen = float(model.seq_len) if keys_per_token is None else keys_per_token
    return {
        "nonembedding": _matrix_flops(model) + _attention_flops(model, seen, causal=False),
        "full": _matrix_flops(model) + _attention_flops(model, seen, causal=False),
        "causal": _matrix_flops(model) + _attention_flops(model, seen, causal=True),
        "palm": _palm_flops(model, seen),
        "no_attention": _matrix_flops(model),
    }[convention]


def layer_flops(model: ModelDescription, layer: int) -> float:
    """Return the FLOPs of training a layer, counted from 0, on one token: full attention."""
    keys = _keys(model, layer, float(model.seq_len), causal=False)
    width = model.num_heads * (model.head_dim + model.v_head_dim)
    return 2.0 * _PASSES * (layer_products(model, layer) + width * keys)


def head_flops(model: ModelDescription) -> float:
    """Return the FLOPs of training the output head on one token."""
    return 2.0 * _PASSES * model.vocab_size * model.hidden_size


def layer_products(model: ModelDescription, layer: int) -> int:
    """Return the weights that a token multiplies in a layer: those of its experts alone."""
    attention = attention_matrices(model)
    if not has_experts(model, layer):
        return attention + mlp_matrices(model, model.ffn_size)
    width = model.experts_per_token * model.expert_ffn_size + model.shared_ffn_size
    router = model.experts * model.hidden_size
    return attention + router + mlp_matrices(model, width)


def _matrix_flops(model: ModelDescription) -> float:
    last = model.num_layers - 1
    head = model.vocab_size * model.hidden_size
    products = sum(layer_products(model, layer) for layer in range(model.num_layers)) + head
    each = layer_products(model, last) + 2 * model.hidden_size**2 + head
    return 2.0 * _PASSES * (products + model.mtp_layers * each)


def _attention_flops(model: ModelDescription, seen: float, *, causal: bool) -> float:
    last = model.num_layers - 1
    layers = [*range(model.num_layers), *[last] * model.mtp_layers]
    keys = sum(_keys(model, layer, seen, causal=causal) for layer in layers)
    return 2.0 * _PASSES * model.num_heads * (model.head_dim + model.v_head_dim) * keys


def _keys(model: ModelDescription, layer: int, seen: float, *, causal: bool) -> float:
    """Return the keys that a token of a layer attends to, on average over its document."""
    is_windowed = model.windowed_layers is None or layer in model.windowed_layers
    keys = min(seen, float(model.window)) if model.window and is_windowed else seen
    # The first tokens of a document see less than a window: w (1 - w / 2T), half of T at w = T.
    return keys * (1.0 - keys / (2.0 * seen)) if causal and seen else keys


def _palm_flops(model: ModelDescription, seen: float) -> float:
    parameters = (model.parameters or total_parameters(model)) - idle_parameters(model)
    width = model.num_heads * (model.head_dim + model.v_head_dim) / 2.0
    return 6.0 * parameters + 12.0 * model.num_layers * width * seen
