"""What one layer keeps of one token for its backward, part by part.

bf16, fused attention. With width h, query width q, keys and values k and v, MLP width f, t
tensor-parallel ranks, bytes a token (Korthikanti et al. 2022, arXiv 2205.05198, section 4)::

    inputs of the norms      2 h each                / t with sequence parallelism
    outputs of the norms     2 h each                / t with sequence parallelism
    queries, keys, values    2 (q + k + v)           / t
    output of attention      2 H v                   / t
    normaliser of attention  4 H                     / t   (one fp32 a head)
    scores, not fused        2 H s, dropout + 3 H s  / t   (in place of the normaliser)
    first matrices of MLP    2 f, gated 4 f          / t
    before the last matrix   2 f                     / t
    masks of dropout         1 byte for each value   / t with sequence parallelism

Latent attention (arXiv 2405.04434, section 2.1) keeps the low ranks and their norms whole on every
rank. Experts keep a row of 2 h for each choice, and for it the parts of an MLP.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model.counts import has_experts

PAPER = "arXiv 2205.05198, section 4"
_LATENT_PAPER = "arXiv 2405.04434, section 2.1"


class Part(StrEnum):
    """A part of what a layer keeps."""

    RESIDUAL = "inputs of norms"
    NORMS = "outputs of norms"
    LATENT = "low ranks of latent attention"
    QKV = "queries, keys, values"
    ATTENTION = "output of attention"
    NORMALISER = "normaliser of attention"
    SCORES = "attention scores"
    MLP_IN = "first matrices of the MLP"
    MLP_OUT = "before the last matrix of the MLP"
    ROUTER = "router"
    ROWS = "rows sent to experts"
    EXPERTS_IN = "first matrices of the experts"
    EXPERTS_OUT = "before the last matrix of the experts"
    SHARED = "shared experts"
    DROPOUT = "masks of dropout"


class PartBytes(msgspec.Struct, frozen=True):
    """One part, for one token on one rank."""

    part: Part
    bytes_per_token: float
    formula: str
    source: str = PAPER


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks share a layer."""

    tp: int = 1
    expert_tp: int = 1
    shared_by: int = 1
    """Ranks that share the residual stream."""
    dropout: bool = False
    """There are masks of dropout after attention and MLP."""
    fused_attention: bool = True
    """Attention keeps no scores."""
    cp: int = 1
    """Ranks that share a sequence."""


def layer_parts(model: ModelDescription, layer: int, sharing: Sharing) -> list[PartBytes]:
    """Return what a layer, counted from 0, keeps of one token in bf16.

    Args:
        model: The model.
        layer: Its number; layers differ in dense MLP or experts.
        sharing: How many ranks share which part.
    """
    norms, wide = model.norms_per_layer, model.hidden_size / sharing.shared_by
    found = [
        PartBytes(Part.RESIDUAL, 2 * norms * wide, f"{norms} x 2 h{_over(sharing.shared_by)}"),
        PartBytes(Part.NORMS, 2 * norms * wide, f"{norms} x 2 h{_over(sharing.shared_by)}"),
        *_attention(model, sharing),
    ]
    if has_experts(model, layer):
        found += _experts(model, sharing)
    else:
        found += _mlp(model, sharing)
    if sharing.dropout:
        found.append(PartBytes(Part.DROPOUT, 2 * wide, f"2 x h{_over(sharing.shared_by)}"))
    return found


def _attention(model: ModelDescription, sharing: Sharing) -> list[PartBytes]:
    tp, heads = sharing.tp, model.num_heads
    output = PartBytes(Part.ATTENTION, 2 * heads * model.v_head_dim / tp, f"2 H d{_over(tp)}")
    normaliser = PartBytes(Part.NORMALISER, 4 * heads / tp, f"4 H{_over(tp)}")
    if not sharing.fused_attention:
        each = 5 if sharing.dropout else 2
        size = each * heads * model.seq_len / (tp * sharing.cp)
        normaliser = PartBytes(Part.SCORES, size, f"{each} H s{_over(tp)}")
    if not model.kv_lora_rank:
        keys = max(1.0, model.kv_heads / tp) * (model.head_dim + model.v_head_dim)
        width = heads * model.head_dim / tp + keys
        return [PartBytes(Part.QKV, 2 * width, f"2 (q + k + v){_over(tp)}"), output, normaliser]
    ranks = 2 * (model.q_lora_rank + model.kv_lora_rank) + model.qk_rope_head_dim
    width = heads * (2 * model.head_dim + model.v_head_dim) / tp
    return [
        PartBytes(
            Part.LATENT,
            2 * ranks / sharing.shared_by,
            f"2 (2 r_q + 2 r_kv + d_rope){_over(sharing.shared_by)}",
            _LATENT_PAPER,
        ),
        PartBytes(Part.QKV, 2 * width, f"2 H (2 d_qk + d_v){_over(tp)}", _LATENT_PAPER),
        output,
        normaliser,
    ]


def _over(ranks: int) -> str:
    return f" / {ranks}" if ranks > 1 else ""


def rows_spread(sharing: Sharing) -> float:
    """Return the rows of experts of a rank for each choice of a token of the microbatch.

    With an even load a rank gets as many rows as its tokens have choices. Ranks that each have
    part of an expert see the rows of all of them.
    """
    return sharing.expert_tp / sharing.shared_by if sharing.shared_by > 1 else 1.0


def _mlp(model: ModelDescription, sharing: Sharing) -> list[PartBytes]:
    first, width = (4 if model.gated else 2), model.ffn_size / sharing.tp
    return [
        PartBytes(Part.MLP_IN, first * width, f"{first} f{_over(sharing.tp)}"),
        PartBytes(Part.MLP_OUT, 2 * width, f"2 f{_over(sharing.tp)}"),
    ]


def _experts(model: ModelDescription, sharing: Sharing) -> list[PartBytes]:
    first, chosen = (4 if model.gated else 2), model.experts_per_token
    spread = rows_spread(sharing)
    rows, width = chosen * spread, chosen * spread * model.expert_ffn_size / sharing.expert_tp
    found = [
        PartBytes(Part.ROUTER, 4 * 2 * model.experts / sharing.shared_by, "2 x 4 E: fp32 scores"),
        PartBytes(Part.ROWS, 2 * model.hidden_size * rows, f"2 h k x {spread:g}, even load"),
        PartBytes(Part.EXPERTS_IN, first * width, f"{first} k f_e, even load"),
        PartBytes(Part.EXPERTS_OUT, 2 * width, "2 k f_e, even load"),
    ]
    if model.shared_ffn_size:
        width = model.shared_ffn_size / sharing.tp
        formula = f"{first + 2} f_s{_over(sharing.tp)}"
        found.append(PartBytes(Part.SHARED, (first + 2) * width, formula))
    return found
