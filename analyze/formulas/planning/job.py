"""A job to plan: a model, a mesh, a schedule and the settings that decide about memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.model import ModelDescription
from meshscope.probe.schema.terms import ScheduleKind

from ..schedules.published import SCHEDULES, V_SHAPED, schedule_names

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


def _require(holds: object, what: str, where: str, remedy: str) -> None:
    if not holds:
        raise ConfigError(what, where=where, remedy=remedy)


def _check_counts(job: PlannedJob) -> None:
    for name in ("microbatches", "microbatch_size"):
        value = getattr(job, name)
        _require(value >= 1, f"{value} is no count", name, "Set it to 1 or more")
    size, remedy = job.microbatch_size, f"Set it to {_MOST_SEQUENCES} or less"
    _require(size <= _MOST_SEQUENCES, f"{size} is too many", "microbatch_size", remedy)
    _require(0 <= job.zero <= 3, f"{job.zero} is no stage of ZeRO", "zero", "Use 0, 1, 2 or 3")
    passes = job.microbatches * job.stages
    remedy = f"Set it to {_MOST_PASSES // job.stages} or less"
    _require(passes <= _MOST_PASSES, f"{job.microbatches} is too many", "microbatches", remedy)
    halves = job.model.seq_len % job.layout.cp == 0
    text = f"{job.model.seq_len} tokens do not divide over cp = {job.layout.cp}"
    _require(halves, text, "seq_len", "Use a multiple of cp")


def _check_mesh(job: PlannedJob) -> None:
    model, layout = job.model, job.layout
    text = f"{layout.tp} does not divide {model.num_heads} attention heads"
    _require(model.num_heads % layout.tp == 0, text, "tp", "Use a divisor of the heads")
    fits = model.kv_heads % layout.tp == 0 or layout.tp % model.kv_heads == 0
    text = f"{model.kv_heads} KV heads and tp = {layout.tp} do not divide each other"
    _require(fits, text, "tp", "Use a divisor or a multiple of the KV heads")
    if model.ffn_size:
        text = f"{layout.tp} does not divide the MLP width {model.ffn_size}"
        _require(model.ffn_size % layout.tp == 0, text, "tp", "Use a divisor of the MLP width")
    if not model.experts:
        _require(layout.ep == 1, "the model has no experts", "ep", "Set it to 1")
        return
    text = f"{layout.ep} does not divide {model.experts} experts"
    _require(model.experts % layout.ep == 0, text, "ep", "Use a divisor of the experts")
    text = f"{job.etp} does not divide the expert width {model.expert_ffn_size}"
    _require(model.expert_ffn_size % job.etp == 0, text, "etp", "Use a divisor of the width")
    ranks = layout.tp * layout.dp * layout.cp
    text = f"ep {layout.ep} x {job.etp} expert-tensor ranks do not divide tp x dp x cp = {ranks}"
    need = layout.ep * job.etp
    remedy = f"Raise dp until tp x dp x cp is a multiple of {need}, or lower ep"
    _require(ranks % need == 0, text, "ep", remedy)


def _check_schedule(job: PlannedJob) -> None:
    kind, layout = job.schedule, job.layout
    known = kind in SCHEDULES or kind is ScheduleKind.NONE
    remedy = f"Use {schedule_names()}"
    _require(known, f"the order of {kind} is unknown", "schedule", remedy)
    _require(
        kind is not ScheduleKind.NONE or layout.pp == 1,
        f"pp = {layout.pp} needs a schedule",
        "schedule",
        remedy,
    )
    if kind is ScheduleKind.INTERLEAVED:
        _require(layout.pp > 1, f"{kind} needs a pipeline", "pp", "Set it to 2 or more")
        _require(layout.vpp > 1, f"{kind} needs 2 chunks or more", "vpp", "Set it to 2 or more")
        text = f"{job.microbatches} is no multiple of pp = {layout.pp}"
        fits = job.microbatches % layout.pp == 0 or job.microbatches > layout.pp
        remedy = f"Use a multiple of {layout.pp}: {kind} works in rounds"
        _require(fits, text, "microbatches", remedy)
    elif kind in V_SHAPED:
        _require(layout.vpp == 2, f"{kind} has 2 chunks a rank", "vpp", "Set it to 2")
        SCHEDULES[kind].require_filled(layout.pp, job.microbatches, where="microbatches")
    else:
        remedy = "Set it to 1, or the schedule to interleaved-1f1b"
        _require(layout.vpp == 1, f"{kind} has one chunk a rank", "vpp", remedy)


def _check_split(job: PlannedJob) -> None:
    layers, stages, split = job.model.num_layers, job.stages, job.layers_per_stage
    if split:
        text = f"{','.join(map(str, split))} is no split of {layers} layers over {stages} stages"
        fits = len(split) == stages and sum(split) == layers and min(split) >= 0
        remedy = f"Give {stages} counts with the sum {layers}"
        _require(fits, text, "layers", remedy)
        return
    text = f"{layers} layers do not divide over {stages} stages (pp x vpp)"
    low, more = divmod(layers, stages)
    shown = [low + (stage < more) for stage in range(stages)]
    remedy = f"Give counts by stage: --layers {','.join(map(str, shown))}"
    if layers < stages:
        remedy = f"Use at most {layers} stages"
    _require(more == 0 and layers >= stages, text, "layers", remedy)
