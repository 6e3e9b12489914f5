"""Weights that the same ranks hold alike: their gradients, the sums, and what the optimizer updates.

A rank has one share of its weights for each group that sums gradients
(``gradient_norm.py``), with buckets of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from meshscope.analyze.formulas.schedules.schedule_records import SPLIT_BACKWARD
from meshscope.probe.schema.terms import Axis

from ..config.config import TrainerConfig
from ..model.precision import gradient_dtype, model_dtype
from ..parallel.comm import Communicator
from ..parallel.gradient_norm import Piece, copies_over
from ..parallel.mesh import MeshGroup
from ..parallel.weight_places import TrainedPart
from .data_parallel import GradientReducer, ReductionPlan
from .gradient_wire import MASTER_DTYPE, split_into_buckets, wire_for
from .optimizer import MasterWeights
from .tied_embedding import TiedEmbedding


class WeightShare:
    """Weights that the same ranks hold alike.

    Args:
        config: The run.
        uses: The weights in model order, and how many of this rank's stages use each.
        group: The ranks that hold them.
        tied: Names the weight that needs a bucket of its own.
        comm: Issues the collectives.
        tp_size: Tensor-parallel ranks, as far as they are not in the group.

    Attributes:
        weights: The weights, in model order, each once.
        masters: What the optimizer updates in their place; None where it updates them.
        reducer: Sums their gradients.
    """

    def __init__(
        self,
        config: TrainerConfig,
        uses: Mapping[nn.Parameter, int],
        group: MeshGroup,
        tied: TiedEmbedding,
        comm: Communicator,
        *,
        tp_size: int,
    ) -> None:
        zero = config.data_parallel.zero
        assert zero != 3  # that is FullyShardedReplica
        self.weights = list(uses)
        self._group = group
        self._tp_size = tp_size
        self._zero = zero
        self._tied_weight = tied.weight
        self._buckets = split_into_buckets(
            self.weights,
            config.train.bucket_bytes,
            dtype=gradient_dtype(config),
            parts=group.size if zero else 1,
            alone=tied.weight,
        )
        dtype = model_dtype(config)
        self.masters: MasterWeights | None = None
        if zero or dtype != MASTER_DTYPE:
            self.masters = MasterWeights(
                self._buckets, group, comm, dtype=dtype, sharded=bool(zero)
            )
        wire = wire_for(config.data_parallel.compression, group, comm)
        plan = ReductionPlan(
            backwards=config.schedule.microbatches,
            zero=zero,
            hooked=config.schedule.kind not in SPLIT_BACKWARD,
            dtype=gradient_dtype(config),
        )
        shared = [weight for weight, count in uses.items() if count > 1]
        self.reducer = GradientReducer(self._buckets, group, wire, plan, shared)

    def finish(self, tied: TiedEmbedding) -> None:
        """Return when every gradient is the sum over the replicas and over tied copies."""
        self.reducer.finish()
        for bucket, flat in zip(self._buckets, self.reducer.sums, strict=True):
            if bucket.members[0] is self._tied_weight:
                tied.sum_gradient(flat)

    @property
    def trained(self) -> list[nn.Parameter]:
        """Return what the optimizer updates."""
        return self.weights if self.masters is None else self.masters.masters

    def trained_parts(self) -> list[TrainedPart]:
        """Return what this rank trains of each weight."""
        if self.masters is None:
            return [TrainedPart(w, 0, w, slice(0, w.numel())) for w in self.weights]
        return [
            TrainedPart(piece.parameter, piece.start, master, piece.place)
            for bucket, master in zip(self._buckets, self.masters.masters, strict=True)
            for piece in bucket.pieces(self._part)
        ]

    @property
    def _part(self) -> int:
        """Return which part of each bucket is this rank's."""
        return self._group.position if self._zero else 0

    def pieces(self) -> list[Piece]:
        """Return the sums by weight, as views, so that clipping them clips the sums."""
        replicas = 1 if self._zero else self._group.size
        return [
            Piece(flat[place], replicas * self._copies(weight))
            for bucket, flat in zip(self._buckets, self.reducer.sums, strict=True)
            for weight, _, place in bucket.pieces(self._part)
        ]

    def _copies(self, weight: nn.Parameter) -> int:
        """Return how many ranks of one replica hold the same of a weight."""
        ends = 2 if weight is self._tied_weight else 1
        return ends * copies_over(Axis.TP, weight, self._tp_size)
