"""What a block of the trainer keeps of a token, by the formulas of ``analyze.formulas.planning``.

The trainer keeps the rows of experts before and after their exchange, where the formula has them
once, and the paper leaves out the normaliser of attention and the router.
"""

from __future__ import annotations

from meshscope.analyze.formulas.planning.layer_parts import Part, Sharing, layer_parts

from ..config.config import TrainerConfig
from .parameter_counts import described

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
