"""A job to plan: a model, a mesh, a schedule and the settings that decide about memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.terms import ScheduleKind

from ...wording.message import Message, message
from ..schedules.schedule_records import SCHEDULES, V_SHAPED, schedule_names

_MOST_SEQUENCES = 1 << 20
"""Of a microbatch: more is a slip of the pen."""
_MOST_PASSES = 1 << 20
"""Passes of a step that are ordered one by one."""


class Recompute(StrEnum):
    """What the backward computes again in place of keeping it."""

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job whose settings fit together."""

    model: ModelDescription
    """The transformer; ``seq_len`` is that of the training."""
    layout: ParallelLayout
    """The mesh."""
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B
    """Order of the passes on the pipeline axis."""
    microbatches: int = 1
    """Microbatches of a step of one replica."""
    microbatch_size: int = 1
    """Sequences of a microbatch."""
    layers_per_stage: tuple[int, ...] = ()
    """Layers of each stage in model order, pp x vpp of them; empty: equal."""
    expert_tp: int = 0
    """Tensor-parallel ranks of an expert; 0: as of the rest."""
    zero: int = 1
    """What replicas share: 0 nothing, 1 optimizer, 2 and gradients, 3 and weights."""
    sequence_parallel: bool = True
    """Tensor-parallel ranks share norms and residual stream."""
    recompute: Recompute = Recompute.NONE
    """What is computed again."""
    fused_cross_entropy: bool = False
    """Logits are not copied to fp32 outside the loss kernel."""
    fused_attention: bool = True
    """Attention keeps no scores (flash or fused attention)."""
    hidden_dropout: bool = False
    """Masks of one byte are kept after attention, MLP and embedding."""
    weight_bytes: int = 2
    """Of one weight as it computes."""
    gradient_bytes: int = 2
    """Of one accumulated gradient."""
    master_bytes: int = 4
    """Of one master weight; 0: the weight is its own."""
    moment_bytes: int = 4
    """Of one of Adam's two moments."""
    gradient_fusion: bool = True
    """Weight gradients are added to the main gradient inside the matrix product."""

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other.

        Raises:
            ConfigError: With what, where and the remedy.
        """
        _check_counts(self)
        _check_mesh(self)
        _check_schedule(self)
        _check_split(self)

    @property
    def stages(self) -> int:
        """Return the stages of the model: chunks of all pipeline ranks."""
        return self.layout.pp * self.layout.vpp

    @property
    def split(self) -> tuple[int, ...]:
        """Return the layers of each stage in model order."""
        even = self.model.num_layers // self.stages
        return self.layers_per_stage or (even,) * self.stages

    @property
    def tokens(self) -> float:
        """Return the tokens of one microbatch on one rank."""
        return self.microbatch_size * self.model.seq_len / self.layout.cp

    @property
    def etp(self) -> int:
        """Return the tensor-parallel ranks of an expert."""
        return self.expert_tp or self.layout.tp

    @property
    def shared_by(self) -> int:
        """Return the ranks that share the residual stream."""
        return self.layout.tp if self.sequence_parallel else 1

    @property
    def replicas(self) -> int:
        """Return the ranks that hold the same dense weights."""
        return self.layout.dp * self.layout.cp

    @property
    def expert_replicas(self) -> int:
        """Return the ranks that hold the same experts."""
        return self.layout.tp * self.replicas // (self.etp * self.layout.ep)


def _require(holds: object, what: Message, where: str, remedy: Message) -> None:
    if not holds:
        raise ConfigError(what, where=where, remedy=remedy)


def _check_counts(job: PlannedJob) -> None:
    for name in ("microbatches", "microbatch_size"):
        value = getattr(job, name)
        text = message("refused.no_count", value=value)
        _require(value >= 1, text, name, message("advice.set_at_least", least=1))
    size, remedy = job.microbatch_size, message("advice.set_at_most", most=_MOST_SEQUENCES)
    text = message("refused.too_many", count=size)
    _require(size <= _MOST_SEQUENCES, text, "microbatch_size", remedy)
    text = message("refused.no_zero_stage", value=job.zero)
    _require(0 <= job.zero <= 3, text, "zero", message("advice.zero"))
    passes = job.microbatches * job.stages
    remedy = message("advice.set_at_most", most=_MOST_PASSES // job.stages)
    text = message("refused.too_many", count=job.microbatches)
    _require(passes <= _MOST_PASSES, text, "microbatches", remedy)
    halves = job.model.seq_len % job.layout.cp == 0
    text = message("refused.tokens_over_cp", tokens=job.model.seq_len, cp=job.layout.cp)
    _require(halves, text, "seq_len", message("advice.multiple_of_cp"))


def _check_mesh(job: PlannedJob) -> None:
    model, layout = job.model, job.layout
    text = message("refused.heads_over_tp", tp=layout.tp, heads=model.num_heads)
    _require(model.num_heads % layout.tp == 0, text, "tp", message("advice.divisor_of_heads"))
    fits = model.kv_heads % layout.tp == 0 or layout.tp % model.kv_heads == 0
    text = message("refused.kv_heads_over_tp", heads=model.kv_heads, tp=layout.tp)
    _require(fits, text, "tp", message("advice.fit_kv_heads"))
    if model.ffn_size:
        text = message("refused.width_over_tp", tp=layout.tp, width=model.ffn_size)
        remedy = message("advice.divisor_of_mlp_width")
        _require(model.ffn_size % layout.tp == 0, text, "tp", remedy)
    if not model.experts:
        remedy = message("advice.set_to", value=1)
        _require(layout.ep == 1, message("refused.no_experts"), "ep", remedy)
        return
    text = message("refused.experts_over_ep", ep=layout.ep, experts=model.experts)
    _require(model.experts % layout.ep == 0, text, "ep", message("advice.divisor_of_experts"))
    text = message("refused.width_over_etp", etp=job.etp, width=model.expert_ffn_size)
    remedy = message("advice.divisor_of_width")
    _require(model.expert_ffn_size % job.etp == 0, text, "etp", remedy)
    ranks = layout.tp * layout.dp * layout.cp
    text = message("refused.mesh_over_experts", ep=layout.ep, etp=job.etp, ranks=ranks)
    need = layout.ep * job.etp
    remedy = message("advice.raise_dp", ranks=need)
    _require(ranks % need == 0, text, "ep", remedy)


def _check_schedule(job: PlannedJob) -> None:
    kind, layout = job.schedule, job.layout
    known = kind in SCHEDULES or kind is ScheduleKind.NONE
    remedy = message("advice.use_schedule", known=schedule_names())
    _require(known, message("refused.order_unknown", schedule=kind), "schedule", remedy)
    has_order = kind is not ScheduleKind.NONE or layout.pp == 1
    _require(has_order, message("refused.pp_needs_schedule", pp=layout.pp), "schedule", remedy)
    if kind in SCHEDULES and SCHEDULES[kind].in_rounds:
        remedy = message("advice.set_at_least", least=2)
        _require(layout.pp > 1, message("refused.needs_pipeline", schedule=kind), "pp", remedy)
        _require(layout.vpp > 1, message("refused.needs_chunks", schedule=kind), "vpp", remedy)
        text = message("refused.no_multiple_of_pp", count=job.microbatches, pp=layout.pp)
        fits = job.microbatches % layout.pp == 0 or job.microbatches > layout.pp
        remedy = message("advice.multiple_of_pp", pp=layout.pp, schedule=kind)
        _require(fits, text, "microbatches", remedy)
    elif kind in V_SHAPED:
        text = message("refused.chunks_of_rank", schedule=kind, needs="2 chunks")
        _require(layout.vpp == 2, text, "vpp", message("advice.set_to", value=2))
        SCHEDULES[kind].require_filled(layout.pp, job.microbatches, where="microbatches")
    else:
        text = message("refused.chunks_of_rank", schedule=kind, needs="one chunk")
        _require(layout.vpp == 1, text, "vpp", message("advice.one_chunk"))


def _check_split(job: PlannedJob) -> None:
    layers, stages, split = job.model.num_layers, job.stages, job.layers_per_stage
    if split:
        text = message(
            "refused.no_split", split=",".join(map(str, split)), layers=layers, stages=stages
        )
        fits = len(split) == stages and sum(split) == layers and min(split) >= 0
        remedy = message("advice.counts_with_sum", stages=stages, layers=layers)
        _require(fits, text, "layers", remedy)
        return
    text = message("refused.layers_over_stages", layers=layers, stages=stages)
    low, more = divmod(layers, stages)
    shown = [low + (stage < more) for stage in range(stages)]
    remedy = message("advice.even_counts", counts=",".join(map(str, shown)))
    if layers < stages:
        remedy = message("advice.most_stages", stages=layers)
    _require(more == 0 and layers >= stages, text, "layers", remedy)
