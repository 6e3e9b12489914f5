"""Settings of the pipeline: which schedule, how many microbatches, which blocks on which stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshscope.analyze.formulas.planning.stage_split import split_layers
from meshscope.analyze.formulas.schedules.published import MANY, SCHEDULES
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

from .checks import FINITE, in_range, require


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """How microbatches move through the pipeline stages."""

    kind: Literal["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v"] = "1f1b"
    """Order of the passes; ``schedules.py`` describes each. ``interleaved-1f1b`` takes its chunks
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
            ConfigError: No microbatch, a stage without a block, or weights that say nothing.
        """
        in_range(self.microbatches, 1, where="schedule.microbatches")
        require(
            all(count >= 1 for count in self.layers_per_stage),
            "every stage needs at least one block",
            where="schedule.layers_per_stage",
            remedy="Give counts of 1 or more",
        )
        require(
            all(0 < weight <= FINITE for weight in self.stage_weights),
            "every stage needs a weight above 0",
            where="schedule.stage_weights",
            remedy="Give finite numbers above 0",
        )
        for name in ("embedding_weight", "head_weight"):
            in_range(getattr(self, name), 0, where=f"schedule.{name}")
        weighted = self.stage_weights or self.embedding_weight or self.head_weight
        require(
            not (self.layers_per_stage and weighted),
            "is given together with weights",
            where="schedule.layers_per_stage",
            remedy="Split the blocks by hand or by weight",
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
        remedy = "Set it to 1, or schedule.kind to interleaved-1f1b"
        if own.is_v_shaped:
            remedy = f"Set it to 2: {kind} has two stages per rank"
        elif own.chunks == MANY:
            remedy = "Set it to 2 or more"
        require(
            own.fits_chunks(chunks),
            f"{chunks} per rank does not fit schedule {kind}",
            where="layout.vpp",
            remedy=remedy,
        )
        require(
            chunks == 1 or ranks >= 2,
            f"{chunks} chunks per rank need a pipeline",
            where="layout.pp",
            remedy="Set it to 2 or more, or layout.vpp to 1 with schedule.kind 1f1b",
        )
        require(
            kind != "interleaved-1f1b" or self.microbatches % ranks == 0,
            f"{self.microbatches} is not a multiple of layout.pp = {ranks}",
            where="schedule.microbatches",
            remedy=f"Use a multiple of {ranks}: {kind} works in rounds of one per rank",
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
            f"{layers} blocks do not fill layout.pp x layout.vpp = {stages} stages",
            where="model.layers",
            remedy="Give every stage at least one block",
        )
        require(
            not split or (len(split) == stages and sum(split) == layers),
            f"{list(split)} is not a split of {layers} blocks over {stages} stages",
            where="schedule.layers_per_stage",
            remedy="Give one count per stage that sum to model.layers",
        )
        require(
            len(self.stage_weights) in (0, stages),
            f"{len(self.stage_weights)} weights for {stages} stages",
            where="schedule.stage_weights",
            remedy="Give one weight per stage",
        )
