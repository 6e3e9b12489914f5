"""How many parameters a model has, and how many of them lie on one rank.

Tensor parallelism splits the matrices of a block, the biases of its column-split layers
and the vocabulary; norms, the biases of row-split layers and positions are whole on every
rank (Shoeybi et al. 2019, arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from .config import ModelConfig
from .split_config import MoeConfig


def parameter_count(model: ModelConfig, moe: MoeConfig | None = None) -> int:
    """Return the parameters of the whole model, biases and norms included."""
    matrices = 1 if model.tied else 2
    edges = matrices * model.vocab * model.hidden + positions(model) + norm_parameters(model)
    block = block_parameters(model)
    if moe is not None and moe.experts:
        block += expert_parameters(model, moe) - mlp_parameters(model)
    return model.layers * block + edges


def mlp_parameters(model: ModelConfig) -> int:
    """Return the parameters of a block's dense MLP: 2 h f + h + f for gpt, 3 h f for llama."""
    hidden, ffn = model.hidden, model.ffn
    return 3 * hidden * ffn if model.family == "llama" else 2 * hidden * ffn + hidden + ffn


def expert_parameters(model: ModelConfig, moe: MoeConfig) -> int:
    """Return the parameters of a block's router (h each) and experts, which have no bias."""
    matrices = 3 if model.family == "llama" else 2
    return moe.experts * (matrices * model.hidden * model.ffn + model.hidden)


def block_parameters(model: ModelConfig, tp: int = 1) -> int:
    """Return one block's parameters on one of ``tp`` ranks.

    gpt: 4 h^2 + 2 h f in matrices and 5 h + f in biases; llama: queries and output h^2
    each, keys and values h x kv width each, and three matrices h f.
    """
    hidden, ffn = model.hidden, model.ffn
    attention = 2 * hidden * hidden + 2 * hidden * model.kv_width
    if model.family == "llama":
        return (attention + 3 * hidden * ffn) // tp + 2 * norm_parameters(model)
    column_biases = 3 * hidden + ffn
    split = (attention + 2 * hidden * ffn + column_biases) // tp
    return split + 2 * hidden + 2 * norm_parameters(model)


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
