"""Weights, gradients and optimizer of a pipeline rank.

P parameters on a rank cost ``w P + g P + (master + 2 moment) P`` bytes: 2 + 2 + 12 for bf16 with
fp32 Adam, 2 + 4 + 12 with fp32 gradients (Rajbhandari et al. 2020, ZeRO, arXiv 1910.02054, section
3.1). ZeRO-1 divides the optimizer over the replicas, ZeRO-2 the gradients too, ZeRO-3 all (section
5). Experts have replicas of their own: tp dp cp / (etp ep).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import msgspec

from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.model import counts as counts

from ..schedules import schedule_records
from .job import PlannedJob
from .terms import Category, Term

ZERO = "arXiv 1910.02054, sections 3.1 and 5"


class RankParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters on one GPU of a pipeline rank."""

    dense: int
    """All but routed experts; embedding and head included."""
    experts: int
    """Routed experts."""
    vocabulary: int
    """Of the dense ones: embedding and output matrix."""

    @property
    def total(self) -> int:
        """Return the sum."""
        return self.dense + self.experts


def stages_of_rank(job: PlannedJob, rank: int) -> tuple[int, ...]:
    """Return the stages of a pipeline rank in model order."""
    return schedule_records.stages_of_rank(job.schedule, rank, job.layout.pp, job.layout.vpp)


def layers_of_stage(job: PlannedJob, stage: int) -> range:
    """Return the layers of a stage, counted from 0."""
    split = job.split
    first = sum(split[:stage])
    return range(first, first + split[stage])


@lru_cache(maxsize=64)
def layer_on_rank(
    model: ModelDescription, layer: int, tp: int, etp: int, ep: int
) -> tuple[int, int]:
    """Return the parameters of a layer on one rank: outside its routed experts, and theirs."""
    if not counts.has_experts(model, layer):
        return counts.layer_parameters(model, layer, tp), 0
    outside = counts.attention_parameters(model, tp) + counts.router_parameters(model)
    outside += counts.shared_expert_parameters(model, tp)
    return outside, counts.expert_parameters(model, etp, ep)


def rank_parameters(job: PlannedJob, rank: int) -> RankParameters:
    """Return the parameters on one GPU of a pipeline rank; a tied embedding is on both ends."""
    model, tp = job.model, job.layout.tp
    stages, last = stages_of_rank(job, rank), job.stages - 1
    sizes = (tp, job.etp, job.layout.ep)
    layers = [layer for stage in stages for layer in layers_of_stage(job, stage)]
    parts = [layer_on_rank(model, layer, *sizes) for layer in layers]
    dense, experts = (sum(part[at] for part in parts) for at in (0, 1))
    vocabulary = 0
    rows = counts.vocabulary_rows(model, tp) * model.hidden_size
    if 0 in stages:
        dense += counts.embedding_parameters(model, tp)
        vocabulary += rows
    if last in stages:
        dense += counts.head_parameters(model, tp) + _prediction(job)
        experts += model.mtp_layers * layer_on_rank(model, model.num_layers - 1, *sizes)[1]
        vocabulary += rows
    if model.tied and 0 in stages and last in stages:
        dense, vocabulary = dense - rows, vocabulary - rows
    return RankParameters(dense=dense, experts=experts, vocabulary=vocabulary)


def _prediction(job: PlannedJob) -> int:
    """Return the dense parameters of multi-token prediction on one rank."""
    model = job.model
    sizes = (job.layout.tp, job.etp, job.layout.ep)
    each = layer_on_rank(model, model.num_layers - 1, *sizes)[0]
    each += 2 * model.hidden_size**2 // job.layout.tp + 3 * counts.norm_parameters(model)
    return model.mtp_layers * each


def state_terms(job: PlannedJob, found: RankParameters) -> Iterator[Term]:
    """Yield what a rank keeps from step to step."""
    shares = {"dense": (found.dense, job.replicas), "experts": (found.experts, job.expert_replicas)}
    adam = job.master_bytes + 2 * job.moment_bytes
    for category, each, from_zero in (
        (Category.PARAMETERS, job.weight_bytes, 3),
        (Category.GRADIENTS, job.gradient_bytes, 2),
        (Category.OPTIMIZER, adam, 1),
    ):
        for name, (count, replicas) in shares.items():
            if count:
                divided = replicas if job.zero >= from_zero else 1
                text = f"{each} bytes x {count:,}" + (f" / {divided}" if divided > 1 else "")
                yield Term(
                    category=category,
                    name=f"{name} {category}",
                    size_bytes=each * count / divided,
                    formula=text,
                    source=ZERO,
                )
