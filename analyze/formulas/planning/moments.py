"""What a rank holds only for a moment: in a backward of a layer, of the head, of the embedding.

Three moments can be the highest of a step, beside what is kept for backwards to come:

* backward of a layer: the gradient before the nonlinearity of the MLP (or the rows of experts
  twice: before and after their exchange), and the residual gradient whole;
* the loss and the backward of the head: logits, their gradient, and the gradient of the output
  matrix in the weights' type;
* backward of the embedding: its dense gradient in the weights' type.

The formulas follow from which tensors autograd and Megatron-core's linear layers have at once.
"""

from __future__ import annotations

from meshscope.probe.schema.model import counts as counts

from .job import PlannedJob, Recompute
from .layer_parts import Part, Sharing, layer_parts, rows_spread

WORKSPACE_BYTES = 64 << 20
"""Workspaces of matrix libraries, which stay allocated."""


def sharing_of(job: PlannedJob) -> Sharing:
    """Return how the ranks of a job share a layer."""
    return Sharing(
        tp=job.layout.tp,
        expert_tp=job.etp,
        shared_by=job.shared_by,
        dropout=job.hidden_dropout,
        fused_attention=job.fused_attention,
        cp=job.layout.cp,
    )


def hidden_bytes(job: PlannedJob) -> float:
    """Return the residual stream of one microbatch, not shared."""
    return 2.0 * job.tokens * job.model.hidden_size


def dropped(recompute: Recompute) -> frozenset[Part]:
    """Return the parts that the backward computes again.

    Selective recomputation repeats the core of attention, as Megatron-core does by default. Where
    fused attention keeps no scores, the normaliser is all that it saves.
    """
    if recompute is Recompute.SELECTIVE:
        return frozenset({Part.NORMALISER, Part.SCORES})
    return frozenset(Part) if recompute is Recompute.FULL else frozenset()


def kept_of_layer(job: PlannedJob, layer: int) -> dict[Part, float]:
    """Return the bytes that a layer keeps of one microbatch, by part."""
    if job.recompute is Recompute.FULL:
        return {Part.RESIDUAL: hidden_bytes(job) / job.shared_by}
    gone = dropped(job.recompute)
    parts = layer_parts(job.model, layer, sharing_of(job))
    return {one.part: one.bytes_per_token * job.tokens for one in parts if one.part not in gone}


def layer_backward_bytes(job: PlannedJob, layer: int) -> float:
    """Return what the backward of a layer holds beside what was kept."""
    model, whole = job.model, hidden_bytes(job)
    first = 4 if model.gated else 2
    if counts.has_experts(model, layer):
        rows = job.tokens * model.experts_per_token * rows_spread(sharing_of(job))
        width, hidden = model.expert_ffn_size / job.etp, model.hidden_size
        moment = rows * max(4 * hidden, 2 * hidden + 2 * width, first * width)
    else:
        moment = job.tokens * first * model.ffn_size / job.layout.tp
    total = moment + whole + whole / job.shared_by
    if not job.gradient_fusion:
        total += max(matrix_bytes(job, layer))
    if job.recompute is not Recompute.NONE:
        gone = dropped(job.recompute)
        parts = layer_parts(model, layer, sharing_of(job))
        again = sum(one.bytes_per_token for one in parts if one.part in gone) * job.tokens
        total += again - (whole / job.shared_by if job.recompute is Recompute.FULL else 0)
    return total


def matrix_bytes(job: PlannedJob, layer: int) -> tuple[float, ...]:
    """Return the gradients of a layer's matrices in the weights' type, one for each shape."""
    model, tp, each = job.model, job.layout.tp, job.weight_bytes
    hidden, up = model.hidden_size, 2 if model.gated else 1
    attention = counts.attention_matrices(model, tp)
    output = model.num_heads * model.v_head_dim * hidden // tp
    width = model.ffn_size if not counts.has_experts(model, layer) else model.shared_ffn_size
    shapes = [attention - output, output, up * hidden * width / tp, hidden * width / tp]
    if counts.has_experts(model, layer):
        expert = hidden * model.expert_ffn_size / job.etp
        shapes += [up * expert, expert]
    return tuple(each * size for size in shapes)


def stand_in_bytes(job: PlannedJob, layers: list[int]) -> float:
    """Return the empty gradients that fused accumulation hands to autograd, one for each shape.

    Transformer Engine keeps them between steps (transformer_engine/pytorch/module/base.py,
    get_dummy_wgrad, since 2.3). They exist where gradients have another type than weights.
    """
    if not job.gradient_fusion or job.gradient_bytes == job.weight_bytes or not layers:
        return 0.0
    kinds = {counts.has_experts(job.model, layer): layer for layer in layers}
    shapes = {size for layer in kinds.values() for size in matrix_bytes(job, layer)}
    return float(sum(shapes))


def vocabulary_gradient_bytes(job: PlannedJob) -> float:
    """Return the gradient of embedding or output matrix in the weights' type."""
    model, tp = job.model, job.layout.tp
    return float(job.weight_bytes * counts.vocabulary_rows(model, tp) * model.hidden_size)


def logit_bytes(job: PlannedJob, each: int) -> float:
    """Return one copy of the logits of a microbatch, of so many bytes each."""
    heads = 1 + job.model.mtp_layers
    return each * heads * job.tokens * counts.vocabulary_rows(job.model, job.layout.tp)


def logits_kept_bytes(job: PlannedJob) -> float:
    """Return what the loss keeps for its backward: probabilities in fp32, fused the logits alone."""
    return logit_bytes(job, 2 if job.fused_cross_entropy else 4)
