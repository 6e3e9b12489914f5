"""A pipeline stage whose split backwards keep the pace.

The pace of a part sits at its two ends in the autograd graph, which the weights' half of a
backward never visits; its time is kept around the half as a whole, inside the stage's own
call, where an observer of the stage sees it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from torch.distributed.pipelining import PipelineStage

from .pace import WeightPace


class PacedStage(PipelineStage):
    """A stage for schedules that split the backward.

    Attributes:
        pace: How long the halves take; None leaves them as they are.
    """

    pace: WeightPace | None = None
    _microbatch = -1

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **options: Any) -> Any:
        """Run the backward of a microbatch, or the half for its inputs."""
        self._microbatch = bwd_chunk_id
        return super().backward_one_chunk(bwd_chunk_id, *args, **options)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:  # noqa: FBT001, FBT002
        """Run the weights' half of a microbatch's backward."""
        self._microbatch = bwd_chunk_id
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def backward_maybe_with_nosync(
        self,
        backward_type: str,
        bwd_kwargs: dict[str, Any],
        last_backward: bool = False,  # noqa: FBT001, FBT002 - the signature is torch's
    ) -> Any:
        """Run a backward of one kind (``full``, ``input`` or ``weight``) in its time."""
        keep: Any = nullcontext()
        if self.pace is not None and backward_type == "weight":
            keep = self.pace.weights(self._microbatch)
        elif self.pace is not None and backward_type == "full":
            keep = self.pace.whole_backward(self._microbatch)
        with keep:
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
