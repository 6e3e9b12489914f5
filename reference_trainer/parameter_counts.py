"""How many parameters a model has, and how many of them lie on one rank.

Tensor parallelism splits the matrices of a block, the biases of its column-split layers
and the vocabulary; norms, the biases of row-split layers and positions are whole on every
rank (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from .config import ModelConfig
from .split_config import MoeConfig

DENSE = MoeConfig()
"""One MLP per block."""


def parameter_count(model: ModelConfig, moe: MoeConfig = DENSE) -> int:
    """Return the parameters of the whole model, biases and norms included."""
    matrices = 1 if model.tied else 2
    edges = matrices * model.vocab * model.hidden + positions(model) + norm_parameters(model)
    block = moe_block_parameters(model, moe) if moe.experts else block_parameters(model)
    return model.layers * block + edges


def block_parameters(model: ModelConfig, tp: int = 1) -> int:
    """Return a dense block's parameters on one of ``tp`` ranks.

    gpt: 4 h^2 + 2 h f in matrices and 5 h + f in biases; llama: queries and output h^2
    each, keys and values h x kv width each, and three matrices h f.
    """
    return attention_parameters(model, tp) + mlp_parameters(model, tp)


def moe_block_parameters(model: ModelConfig, moe: MoeConfig, tp: int = 1, ep: int = 1) -> int:
    """Return the parameters of a block with experts on one of ``tp x ep`` ranks.

    A router of h per expert, whole on every rank, and experts without biases.
    """
    router = moe.experts * model.hidden
    return attention_parameters(model, tp) + router + expert_parameters(model, moe, tp, ep)


def attention_parameters(model: ModelConfig, tp: int = 1) -> int:
    """Return a block's parameters outside the MLP, both norms included."""
    hidden = model.hidden
    split = 2 * hidden * hidden + 2 * hidden * model.kv_width
    if model.family == "llama":
        return split // tp + 2 * norm_parameters(model)
    return (split + 3 * hidden) // tp + hidden + 2 * norm_parameters(model)


def mlp_parameters(model: ModelConfig, tp: int = 1) -> int:
    """Return the parameters of a block's dense MLP."""
    split = _mlp_matrices(model)
    if model.family == "llama":
        return split // tp
    return (split + model.ffn) // tp + model.hidden


def expert_parameters(model: ModelConfig, moe: MoeConfig, tp: int = 1, ep: int = 1) -> int:
    """Return the parameters of a block's experts."""
    return moe.experts // ep * (_mlp_matrices(model) // tp)


def _mlp_matrices(model: ModelConfig) -> int:
    return (3 if model.family == "llama" else 2) * model.hidden * model.ffn


def embedding_parameters(model: ModelConfig, tp: int = 1) -> int:
    """Return the parameters of token and position embedding on one of ``tp`` ranks."""
    return vocabulary_rows(model, tp) * model.hidden + positions(model)


def head_parameters(model: ModelConfig, tp: int = 1) -> int:
    """Return the parameters of final norm and output matrix on one of ``tp`` ranks."""
    return norm_parameters(model) + vocabulary_rows(model, tp) * model.hidden


def positions(model: ModelConfig) -> int:
    """Return the parameters of the position embedding; rotary positions have none."""
    return 0 if model.family == "llama" else model.seq_len * model.hidden


def norm_parameters(model: ModelConfig) -> int:
    """Return the parameters of one norm: a scale, and for gpt a shift."""
    return model.hidden if model.family == "llama" else 2 * model.hidden


def vocabulary_rows(model: ModelConfig, tp: int) -> int:
    """Return the vocabulary rows of one rank, rounded up."""
    return -(-model.vocab // tp)
