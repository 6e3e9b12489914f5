"""The trainer's models in the words of the formulas: parameters, and what a block keeps of a token.

The parameters are counted by ``probe.schema.model``, what is kept by ``analyze.formulas.planning``.
The trainer keeps the rows of experts before and after their exchange, where the formula has them
once, and the paper leaves out the normaliser of attention and the router.
"""

from __future__ import annotations

from meshscope.analyze.formulas.planning.layer_parts import Part, Sharing, layer_parts
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model import counts as formulas

from ..config.config import ModelConfig, TrainerConfig
from ..config.parallel_config import MoeConfig

DENSE = MoeConfig()
"""One MLP per block."""


def described(model: ModelConfig, moe: MoeConfig = DENSE) -> ModelDescription:
    """Return the description of a model: gpt has biases and positions, llama a gated MLP.

    Experts have the width of the MLP whose place they take, and no biases.
    """
    is_gpt = model.family == "gpt"
    return ModelDescription(
        num_layers=model.layers,
        hidden_size=model.hidden,
        num_heads=model.heads,
        kv_heads=model.kv_heads,
        ffn_size=model.ffn,
        vocab_size=model.vocab,
        seq_len=model.seq_len,
        gated=not is_gpt,
        tied=model.tied,
        norm_shift=is_gpt,
        qkv_bias=is_gpt,
        out_bias=is_gpt,
        mlp_bias=is_gpt and not moe.experts,
        learned_positions=model.seq_len if is_gpt else 0,
        experts=moe.experts,
        experts_per_token=moe.chosen if moe.experts else 0,
    )


def parameter_count(model: ModelConfig, moe: MoeConfig = DENSE) -> int:
    """Return the parameters of the whole model, biases and norms included."""
    return formulas.total_parameters(described(model, moe))


def block_parameters(model: ModelConfig, tp: int = 1) -> int:
    """Return a dense block's parameters on one of ``tp`` ranks."""
    return formulas.layer_parameters(described(model), 0, tp)


def moe_block_parameters(model: ModelConfig, moe: MoeConfig, tp: int = 1, ep: int = 1) -> int:
    """Return the parameters of a block with experts on one of ``tp x ep`` ranks."""
    return formulas.layer_parameters(described(model, moe), 0, tp, ep)


def expert_parameters(model: ModelConfig, moe: MoeConfig, tp: int = 1, ep: int = 1) -> int:
    """Return the parameters of a block's experts."""
    return formulas.expert_parameters(described(model, moe), tp, ep)


def embedding_parameters(model: ModelConfig, tp: int = 1) -> int:
    """Return the parameters of token and position embedding on one of ``tp`` ranks."""
    return formulas.embedding_parameters(described(model), tp)


def head_parameters(model: ModelConfig, tp: int = 1) -> int:
    """Return the parameters of final norm and output matrix on one of ``tp`` ranks."""
    return formulas.head_parameters(described(model), tp)


def vocabulary_rows(model: ModelConfig, tp: int) -> int:
    """Return the vocabulary rows of one rank, rounded up."""
    return formulas.vocabulary_rows(described(model), tp)


_LEFT_OUT = frozenset({Part.NORMALISER, Part.ROUTER})


def block_parts(config: TrainerConfig, *, sequence_parallel: bool) -> dict[Part, float]:
    """Return bytes for one token on one rank in bf16, by part; they sum to what the paper has."""
    tp = config.layout.tp
    sharing = Sharing(tp=tp, expert_tp=tp, shared_by=tp if sequence_parallel else 1)
    parts = layer_parts(described(config.model, config.moe), 0, sharing)
    found = {one.part: one.bytes_per_token for one in parts if one.part not in _LEFT_OUT}
    if config.moe.experts:
        # A copy of an expert's part on every tensor-parallel rank: its width is split, its rows not.
        wide = config.model.ffn * config.moe.chosen / tp
        first = 4 if config.model.family == "llama" else 2
        found |= {Part.EXPERTS_IN: first * wide, Part.EXPERTS_OUT: 2 * wide}
        found[Part.ROWS] = 2 * 2 * config.model.hidden * config.moe.chosen
    return found


def block_tokens(config: TrainerConfig) -> int:
    """Return the tokens of a microbatch on one rank."""
    return config.microbatch_size * config.model.seq_len // config.layout.cp
