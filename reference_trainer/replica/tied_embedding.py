"""One matrix as token embedding and output head, though the first and the last stage hold them.

Where both stages are on one rank they share the parameter. Otherwise each has a copy,
drawn from the same seed, and the copies stay equal because both get the sum of their
gradients, reduced over a group of its own: the first and the last rank of the pipeline.
The scheme is that of Megatron-LM (Narayanan et al. 2021, arXiv 2104.04473, and its
embedding group).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn

from meshscope.probe.schema.layout import ParallelLayout

from ..config.config import TrainerConfig
from ..layout.group_members import EMBEDDING
from ..model.model import Stage
from ..parallel.comm import Communicator
from ..parallel.mesh import Mesh, MeshGroup


class TiedEmbedding:
    """Keeps the two uses of a tied embedding equal; does nothing where nothing is tied.

    Args:
        config: The run.
        mesh: This rank's groups; every rank of the job must come here, as groups are made.
        stages: This rank's stages.
        comm: Issues the all-reduce.

    Attributes:
        weight: This rank's copy, where another rank has one too.
    """

    def __init__(
        self, config: TrainerConfig, mesh: Mesh, stages: Sequence[Stage], comm: Communicator
    ) -> None:
        self._comm = comm
        self.weight: nn.Parameter | None = None
        self._group = _own_group(config.embedding_groups(), mesh.rank, mesh.layout)
        if not config.model.tied:
            return
        embedding = next((stage.embedding for stage in stages if stage.embedding), None)
        head = next((stage.head for stage in stages if stage.head), None)
        if embedding is not None and head is not None:
            head.output = embedding.tokens
        elif embedding is not None:
            self.weight = embedding.tokens
        elif head is not None:
            self.weight = head.output

    def sum_gradient(self, gradient: Tensor) -> None:
        """Give both copies the sum of their gradients, or of the same part of them.

        Args:
            gradient: This copy's, flat, final over the replicas; replaced by the sum.
        """
        if self._group is not None:
            self._comm.all_reduce(gradient, self._group).wait()


def _own_group(
    groups: Sequence[tuple[int, ...]], rank: int, layout: ParallelLayout
) -> MeshGroup | None:
    """Create all groups, as every rank must, and return this rank's."""
    own: MeshGroup | None = None
    for ranks in groups:
        handle = dist.new_group(list(ranks), group_desc=EMBEDDING)
        if rank in ranks:
            axis = layout.axis_of(ranks)
            own = MeshGroup(axis=axis, ranks=ranks, position=ranks.index(rank), handle=handle)
    return own
