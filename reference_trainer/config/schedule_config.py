"""Settings of the pipeline: which schedule, how many microbatches, which blocks on which stage."""

from __future__ import annotations

from dataclasses import dataclass

from meshscope.analyze.formulas.planning.stage_split import split_layers
from meshscope.analyze.formulas.schedules.schedule_records import (
    MANY,
    SCHEDULES,
    schedule_names,
)
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.message import message
from meshscope.probe.schema.terms import ScheduleKind

from .checks import FINITE, in_range, require


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How microbatches move through the pipeline stages."""

    kind: str = ScheduleKind.ONE_F_ONE_B.value
    """Order of the passes; one of ``SCHEDULES``. ``interleaved-1f1b`` takes its chunks
    from layout.vpp; ``zb-v`` and ``dualpipe-v`` have two."""
    microbatches: int = 4
    """Microbatches per step and data-parallel rank."""
    layers_per_stage: tuple[int, ...] = ()
    """Blocks of each stage in model order, by hand; empty: by the weights below. A rank with
    layout.vpp chunks has as many stages."""
    stage_weights: tuple[float, ...] = ()
    """Share of the work that each stage should get, relative to the others; empty: equal."""
    embedding_weight: float = 0.0
    """What the embedding costs the first stage, in blocks, when blocks are split by weight."""
    head_weight: float = 0.0
    """What the output head costs the last stage, in blocks, when blocks are split by weight."""

    def __post_init__(self) -> None:
        """Validate the counts.

        Raises:
            ConfigError: A schedule without an order, no microbatch, a stage without a block, or weights that say nothing.
        """
        require(
            self.kind in SCHEDULES,
            message("refused.order_not_known", schedule=self.kind),
            where="schedule.kind",
            remedy=message("advice.choose_schedule", known=schedule_names()),
        )
        in_range(self.microbatches, 1, where="schedule.microbatches")
        require(
            all(count >= 1 for count in self.layers_per_stage),
            message("refused.empty_stage"),
            where="schedule.layers_per_stage",
            remedy=message("advice.counts_from_1"),
        )
        require(
            all(0 < weight <= FINITE for weight in self.stage_weights),
            message("refused.stage_without_weight"),
            where="schedule.stage_weights",
            remedy=message("advice.numbers_above_0"),
        )
        for name in ("embedding_weight", "head_weight"):
            in_range(getattr(self, name), 0, where=f"schedule.{name}")
        weighted = self.stage_weights or self.embedding_weight or self.head_weight
        require(
            not (self.layers_per_stage and weighted),
            message("refused.with_weights"),
            where="schedule.layers_per_stage",
            remedy=message("advice.by_hand_or_weight"),
        )

    def split(self, layers: int, stages: int) -> tuple[int, ...]:
        """Return the blocks of each stage in model order."""
        return self.layers_per_stage or split_layers(
            layers,
            stages,
            weights=self.stage_weights,
            embedding_weight=self.embedding_weight,
            head_weight=self.head_weight,
        )

    def check_mesh(self, layout: ParallelLayout) -> None:
        """Validate chunks and microbatches against the mesh.

        Raises:
            ConfigError: The schedule cannot run on it.
        """
        ranks, chunks, kind = layout.pp, layout.vpp, self.kind
        own = SCHEDULES[ScheduleKind(kind)]
        remedy = message("advice.one_chunk_of_kind")
        if own.is_v_shaped:
            remedy = message("advice.two_chunks", kind=kind)
        elif own.chunks == MANY:
            remedy = message("advice.set_at_least", least=2)
        require(
            own.fits_chunks(chunks),
            message("refused.chunks_of_kind", chunks=chunks, kind=kind),
            where="layout.vpp",
            remedy=remedy,
        )
        require(
            chunks == 1 or ranks >= 2,
            message("refused.chunks_without_pipeline", chunks=chunks),
            where="layout.pp",
            remedy=message("advice.pipeline_or_one_chunk"),
        )
        require(
            not own.in_rounds or self.microbatches % ranks == 0,
            message("refused.microbatches_over_pp", microbatches=self.microbatches, ranks=ranks),
            where="schedule.microbatches",
            remedy=message("advice.multiple_for_rounds", ranks=ranks, kind=kind),
        )
        own.require_filled(ranks, self.microbatches, where="schedule.microbatches")

    def check_layers(self, layout: ParallelLayout, layers: int) -> None:
        """Validate the split of the blocks over the stages.

        Raises:
            ConfigError: Too few blocks, or a split that does not match the stages.
        """
        stages, split = layout.pp * layout.vpp, self.layers_per_stage
        require(
            layers >= stages,
            message("refused.too_few_blocks", layers=layers, stages=stages),
            where="model.layers",
            remedy=message("advice.one_block_each"),
        )
        require(
            not split or (len(split) == stages and sum(split) == layers),
            message("refused.split_of_blocks", split=list(split), layers=layers, stages=stages),
            where="schedule.layers_per_stage",
            remedy=message("advice.count_for_each_stage"),
        )
        require(
            len(self.stage_weights) in (0, stages),
            message("refused.weights_of_stages", count=len(self.stage_weights), stages=stages),
            where="schedule.stage_weights",
            remedy=message("advice.weight_for_each_stage"),
        )
