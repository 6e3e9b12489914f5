"""The optimizer of a run, the fp32 weights that it updates, and how they become the model's.

The weights of a bucket move into one flat buffer in the precision of the model.
The optimizer owns fp32 masters, flat as well: of the whole bucket, or with
sharded optimizer state of this rank's part. After its step each rank writes its
masters into its part of the buffer, and an all-gather brings the other parts::

    gradient parts -> optimizer on the master part -> own part of the buffer
                                                   -> all-gather -> all weights

The all-gathers end before the next forward, not before the step does: they may
overlap the wait for the next batch. (Sharded optimizer state: Rajbhandari et
al. 2020, arXiv 1910.02054, section 5.1. Masters: Micikevicius et al. 2018,
arXiv 1710.03740, section 3.1.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from ..config.config import TrainConfig
from ..parallel.comm import Communicator, Pending
from ..parallel.mesh import MeshGroup
from .gradient_wire import MASTER_DTYPE, Bucket


def build_optimizer(config: TrainConfig, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that the run asks for.

    Both kinds update every element by itself, so flat buffers and parts of
    weights train like the weights themselves.
    """
    if config.optimizer == "sgd":
        return torch.optim.SGD(weights, lr=config.learning_rate, momentum=config.momentum)
    return torch.optim.AdamW(weights, lr=config.learning_rate, weight_decay=0.0)


def fill_state(config: TrainConfig, optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Give an optimizer the state that it has after some updates, all averages still zero.

    torch makes the state in the first update, which is too late to load it. Zeros are where
    each average starts, so filling in an optimizer before its first update changes nothing.
    """
    for group in optimizer.param_groups:
        for weight in group["params"]:
            state = optimizer.state[weight]
            for name in config.averages:
                state.setdefault(name, torch.zeros_like(weight, requires_grad=False))
            if config.optimizer == "adamw":
                state["step"] = torch.tensor(float(updates))


class MasterWeights:
    """Masters of some buckets; from now on the model's weights lie in flat buffers.

    Args:
        buckets: Parameters in fp32 by bucket.
        group: The replicas.
        comm: Issues the all-gathers.
        dtype: Precision of the model's weights from now on.
        sharded: Keep masters of this rank's part only.

    Attributes:
        masters: What the optimizer updates, one flat tensor per bucket.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        group: MeshGroup,
        comm: Communicator,
        *,
        dtype: torch.dtype,
        sharded: bool,
    ) -> None:
        self._buckets = list(buckets)
        self._group = group
        self._comm = comm
        self._sharded = sharded
        self._weights = [_flat_weights(bucket) for bucket in buckets]
        # In fp32 a master is its part of the buffer; no second copy is needed.
        self.masters = [nn.Parameter(self._own(flat)) for flat in self._weights]
        if dtype != MASTER_DTYPE:
            self._weights = [flat.to(dtype) for flat in self._weights]
            self.masters = [nn.Parameter(master.detach().clone()) for master in self.masters]
        self._copied = dtype != MASTER_DTYPE
        for bucket, flat in zip(self._buckets, self._weights, strict=True):
            for member, parameter in enumerate(bucket.members):
                parameter.data = bucket.view(flat, member)
        self._pending: list[Pending] = []

    @property
    def copies(self) -> Sequence[Tensor]:
        """Return the masters that are not the model's weights themselves: all or none."""
        return self.masters if self._copied else ()

    def take_gradients(self, sums: Sequence[Tensor]) -> None:
        """Give each master its gradient, flat and of its size, as fp32 if it is not."""
        for master, gradient in zip(self.masters, sums, strict=True):
            master.grad = gradient.to(master.dtype)

    def drop_gradients(self) -> None:
        """Let go of what was made fp32 for the update."""
        for master in self.masters:
            master.grad = None

    def publish(self) -> None:
        """Start to make the model's weights those of the masters."""
        # The last bucket holds the first layers, which the next forward needs first.
        for flat, master in zip(reversed(self._weights), reversed(self.masters), strict=True):
            own = self._own(flat)
            if self._copied:
                own.copy_(master.detach())
            if self._sharded:
                self._pending.append(self._comm.all_gather_into(flat, own, self._group))

    def settle(self) -> None:
        """Return when the model's weights are whole."""
        for pending in self._pending:
            pending.wait()
        self._pending.clear()

    def _own(self, flat: Tensor) -> Tensor:
        """Return the part of a buffer whose masters are here."""
        return flat.chunk(self._group.size)[self._group.position] if self._sharded else flat


def _flat_weights(bucket: Bucket) -> Tensor:
    """Return the weights of a bucket one after the other, zeros in the padding."""
    flat = torch.zeros(bucket.size, dtype=MASTER_DTYPE, device=bucket.device)
    for member, parameter in enumerate(bucket.members):
        bucket.view(flat, member).copy_(parameter.detach())
    return flat
