"""What a model counts: its parameters by part and rank, and the FLOPs of training on a token.

Tensor parallelism splits the matrices of a layer, the biases of its column-split matrices and the
vocabulary; norms, biases of row-split matrices, routers, positions and the down-projections of
latent attention are whole on every rank (Shoeybi et al. 2019, arXiv 1909.08053, section 3;
Megatron Core's multi-latent attention). Experts are split over the expert-parallel ranks.

FLOPs follow conventions that have names. One multiply-add is two FLOPs, and the backward pass is two forward passes: a matrix of N
parameters costs 6 N a token. No convention counts recomputation, lookups or element-wise work.
With H heads of width d, a token that attends to T keys costs ``6 H (d_qk + d_v) T`` in each layer:
scores and their use, forward and backward.

* ``nonembedding``: matrix products, and attention to all T tokens of the sequence, masked or not
  (torchtitan, torchtitan/models/utils.py). The output head counts, tied or not.
* ``full``: the same where layers have a window, with all T tokens in them too: what kernels multiply that
  mask scores instead of leaving them out, and torchtitan's figure of such a model.
* ``causal``: the same with the half of the scores that is not masked (Megatron-LM,
  megatron/training/training.py, since 2025).
* ``palm``: ``6 N + 12 L H Q T``, N all parameters, Q the width of a head (Chowdhery et al. 2022,
  arXiv 2204.02311, appendix B); of routed experts, N holds those that a token passes.
* ``no_attention``: matrix products of weights alone.

Under sliding windows T is the window where that is shorter, except in ``palm`` and ``full``; in chunks, that of
the own chunk. In packed
documents T is what a token sees on average, ``sum(L^2) / sum(L)`` over their lengths L.

Where the probe saw what ran (``ran_products``, ``ran_attention``, else ``ran_layers``), that takes the place
of the sizes: a layer that runs three times counts three times, a frozen weight two thirds, a pass without
gradients one third. The sizes count such passes of the trained model by their rows.
"""

from __future__ import annotations

from dataclasses import replace

from .description import ModelDescription


def attention_matrices(model: ModelDescription, tp: int = 1) -> int:
    """Return the parameters of the projections of one attention on one of ``tp`` ranks.

    ``h (H + 2 K) d + H d h`` with H heads and K heads of keys and values (Ainslie et al. 2023,
    arXiv 2305.13245); latent attention as in DeepSeek-V2 (arXiv 2405.04434, section 2.1).
    """
    hidden, heads = model.hidden_size, model.num_heads
    output = heads * model.v_head_dim * hidden
    if not model.kv_lora_rank:
        keys = _kv_heads(model, tp) * (model.head_dim + model.v_head_dim) * tp
        return (hidden * (heads * model.head_dim + keys) + output) // tp
    rank, up_in = model.q_lora_rank, model.q_lora_rank or hidden
    whole = hidden * (rank + model.kv_lora_rank + model.qk_rope_head_dim)
    keys = model.kv_lora_rank * heads * (model.qk_nope_head_dim + model.v_head_dim)
    return whole + (up_in * heads * model.head_dim + keys + output) // tp


def mlp_matrices(model: ModelDescription, width: int) -> int:
    """Return the parameters of the matrices of an MLP: ``2 h f``, gated ``3 h f`` (arXiv 2002.05202)."""
    return (3 if model.gated else 2) * model.hidden_size * width


def has_experts(model: ModelDescription, layer: int) -> bool:
    """Return whether a layer, counted from 0, has experts in the place of its MLP."""
    return model.experts > 0 and layer not in model.dense_layers


def norm_parameters(model: ModelDescription) -> int:
    """Return the parameters of one norm: a scale, and a shift where norms have one."""
    return model.hidden_size * (2 if model.norm_shift else 1)


def attention_parameters(model: ModelDescription, tp: int = 1) -> int:
    """Return the parameters of a layer outside its MLP, all its norms included."""
    queries = model.num_heads * model.head_dim // tp
    keys = _kv_heads(model, tp) * (model.head_dim + model.v_head_dim)
    biases = (queries + keys if model.qkv_bias else 0) + (
        model.hidden_size if model.out_bias else 0
    )
    norms = model.norms_per_layer * norm_parameters(model) + _inner_norms(model)
    return attention_matrices(model, tp) + biases + norms


def dense_mlp_parameters(model: ModelDescription, tp: int = 1) -> int:
    """Return the parameters of a dense MLP on one of ``tp`` ranks."""
    return mlp_matrices(model, model.ffn_size) // tp + _mlp_biases(model, model.ffn_size, tp)


def expert_parameters(model: ModelDescription, tp: int = 1, ep: int = 1) -> int:
    """Return the parameters of the routed experts of a layer on one of ``tp x ep`` ranks."""
    width = model.expert_ffn_size
    return model.experts // ep * (mlp_matrices(model, width) // tp + _mlp_biases(model, width, tp))


def router_parameters(model: ModelDescription) -> int:
    """Return the parameters of the router of a layer: a width for each expert."""
    return model.experts * (model.hidden_size + (1 if model.mlp_bias else 0))


def shared_expert_parameters(model: ModelDescription, tp: int = 1) -> int:
    """Return the parameters of the shared experts of a layer."""
    return mlp_matrices(model, model.shared_ffn_size) // tp


def layer_parameters(model: ModelDescription, layer: int, tp: int = 1, ep: int = 1) -> int:
    """Return the parameters of a layer, counted from 0, on one of ``tp x ep`` ranks."""
    outside = attention_parameters(model, tp)
    if not has_experts(model, layer):
        return outside + dense_mlp_parameters(model, tp)
    routed = router_parameters(model) + expert_parameters(model, tp, ep)
    return outside + routed + shared_expert_parameters(model, tp)


def vocabulary_rows(model: ModelDescription, tp: int = 1) -> int:
    """Return the vocabulary rows of one of ``tp`` ranks, rounded up."""
    return -(-model.vocab_size // tp)


def embedding_parameters(model: ModelDescription, tp: int = 1) -> int:
    """Return the parameters of token and position embedding on one of ``tp`` ranks."""
    rows = vocabulary_rows(model, tp) + model.learned_positions
    return rows * model.hidden_size


def head_parameters(model: ModelDescription, tp: int = 1) -> int:
    """Return the parameters of final norm and output matrix on one of ``tp`` ranks, tied or not."""
    return norm_parameters(model) + vocabulary_rows(model, tp) * model.hidden_size


def mtp_parameters(model: ModelDescription, tp: int = 1, ep: int = 1) -> int:
    """Return the parameters of multi-token prediction, which shares embedding and head.

    Each of its layers has a projection ``2 h x h``, three norms and a layer as the last one is
    (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    last = layer_parameters(model, model.num_layers - 1, tp, ep)
    each = 2 * model.hidden_size**2 // tp + 3 * norm_parameters(model) + last
    return model.mtp_layers * each


def total_parameters(model: ModelDescription) -> int:
    """Return the parameters of the whole model, biases and norms included."""
    layers = sum(layer_parameters(model, layer) for layer in range(model.num_layers))
    head = head_parameters(model)
    shared = model.vocab_size * model.hidden_size if model.tied else 0
    return layers + mtp_parameters(model) + embedding_parameters(model) + head - shared


def idle_parameters(model: ModelDescription) -> int:
    """Return the parameters of the routed experts that a token does not pass."""
    if not model.experts:
        return 0
    layers = model.num_layers - len(model.dense_layers)
    last_has = has_experts(model, model.num_layers - 1)
    layers += model.mtp_layers if last_has else 0
    unused = model.experts - model.experts_per_token
    return layers * unused * mlp_matrices(model, model.expert_ffn_size)


def _mlp_biases(model: ModelDescription, width: int, tp: int) -> int:
    """Return the biases of an MLP: those of the matrix after it are whole on every rank."""
    columns = (2 if model.gated else 1) * width // tp
    return columns + model.hidden_size if model.mlp_bias else 0


def _kv_heads(model: ModelDescription, tp: int) -> int:
    """Return the heads of keys and values of one rank; fewer than ranks are copied."""
    return max(1, model.kv_heads // tp)


def _inner_norms(model: ModelDescription) -> int:
    """Return the parameters of norms inside attention: of heads, or of the ranks of latent attention."""
    heads = 2 * model.head_dim if model.qk_norm else 0
    return heads + (model.q_lora_rank + model.kv_lora_rank if model.kv_lora_rank else 0)


DEFAULT_CONVENTION = "nonembedding"
CONVENTIONS: dict[str, str] = {
    "nonembedding": "matrix products, attention to all keys inside of windows (torchtitan)",
    "causal": "matrix products, causal half of attention (Megatron)",
    "palm": "6 N + 12 L H Q T (PaLM)",
    "no_attention": "matrix products without attention",
}
"""Conventions by name, with one clause each."""
FULL = "full"
"""Convention that leaves windows out: another one where a model has a window that is shorter than its sequences."""
_WHOLE = 0.99
"""Attention over less than this share of all keys leaves out what a window masks."""
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
        convention: A name of ``CONVENTIONS``, or ``FULL``.
        keys_per_token: Tokens of its own document that a token could attend to without a causal
            mask, on average: ``sum(L^2) / sum(L)``. None: those of a whole sequence.

    Raises:
        KeyError: There is no such convention.
    """
    seen = (model.ran_keys or float(model.seq_len)) if keys_per_token is None else keys_per_token
    products = _matrix_flops(model)
    flops = {
        "nonembedding": lambda: products + _attention_flops(model, seen, causal=False),
        FULL: lambda: products + _attention_flops(replace(model, window=0), seen, causal=False),
        "causal": lambda: products + _attention_flops(model, seen, causal=True),
        "palm": lambda: _palm_flops(model, seen),
        "no_attention": lambda: products,
    }[convention]()
    # What was seen to run has its passes without gradients in it.
    return flops if model.ran_products else flops * (1.0 + model.forward_rows / _PASSES)


def conventions_of(model: ModelDescription) -> tuple[str, ...]:
    """Return the names of the conventions by which a model is counted: ``FULL`` where it has a window."""
    return (*CONVENTIONS, FULL) if 0 < model.window < model.seq_len else tuple(CONVENTIONS)


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
    """Return the FLOPs of training on a token in products with weights: those seen, else those of the sizes."""
    return 2.0 * _PASSES * (model.ran_products or products_of_sizes(model))


def products_of_sizes(model: ModelDescription) -> int:
    """Return the weights that a token multiplies if each layer and the head run once, and all are trained."""
    last = model.num_layers - 1
    head = model.vocab_size * model.hidden_size
    products = sum(layer_products(model, layer) for layer in range(model.num_layers)) + head
    each = layer_products(model, last) + 2 * model.hidden_size**2 + head
    return products + model.mtp_layers * each


def _attention_flops(model: ModelDescription, seen: float, *, causal: bool) -> float:
    last = model.num_layers - 1
    layers = [*range(model.num_layers), *[last] * model.mtp_layers]
    ran = model.ran_layers or len(layers)
    width = model.num_heads * (model.head_dim + model.v_head_dim)
    if model.ran_attention:
        # Each of so many layers would multiply a token with all keys, masked or not.
        alike = model.ran_attention / (width * model.ran_keys)
        # More than that are products of another kind, as of weights that are gathered for each token.
        is_all_keys = _WHOLE * ran <= alike <= ran / _WHOLE
        if not model.window or not is_all_keys:
            flops = 2.0 * _PASSES * model.ran_attention * seen / model.ran_keys
            return flops / 2.0 if causal else flops
        ran = alike
    keys = sum(_keys(model, layer, seen, causal=causal) for layer in layers)
    return 2.0 * _PASSES * width * keys * ran / len(layers)


def _keys(model: ModelDescription, layer: int, seen: float, *, causal: bool) -> float:
    """Return the keys that a token of a layer attends to, on average over its document."""
    is_windowed = model.windowed_layers is None or layer in model.windowed_layers
    if not (model.window and is_windowed and seen > model.window):
        return seen / 2.0 if causal else seen
    window = float(model.window)
    if model.chunked:
        whole, rest = divmod(seen, window)
        keys = (whole * window**2 + rest**2) / seen
        return keys / 2.0 if causal else keys
    # The first tokens of a document see less than a window: w (1 - w / 2T).
    return window * (1.0 - window / (2.0 * seen)) if causal else window


def _palm_flops(model: ModelDescription, seen: float) -> float:
    parameters = (model.parameters or total_parameters(model)) - idle_parameters(model)
    width = model.num_heads * (model.head_dim + model.v_head_dim) / 2.0
    not_of_sizes = model.ran_products - products_of_sizes(model) if model.ran_products else 0.0
    attention = 12.0 * (model.ran_layers or model.num_layers) * width * seen
    if model.ran_attention:
        attention = 6.0 * model.ran_attention * seen / model.ran_keys
    return 6.0 * (parameters + not_of_sizes) + attention
