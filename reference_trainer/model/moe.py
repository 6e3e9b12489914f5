"""Mixture of experts: a router sends every token to a few of many MLPs.

The output of a token is the sum of its experts' outputs, weighted by the
router's probabilities of the chosen experts, which are made to sum to one
(Mixtral: Jiang et al. 2024, arXiv 2401.04088, section 2.1). A second loss keeps
the router from sending everything to one expert: for each sequence, the sum over
experts of (share of tokens) x (mean probability), least where both are even
(DeepSeek-V3: arXiv 2412.19437, section 2.1.2). Being a mean over sequences, it
does not depend on how the batch is cut into microbatches and replicas.

Tensor-parallel ranks hold a slice of every expert, see the same tokens, and send
them along their own expert group. Shapes: B microbatch, T tokens, S tokens of
this rank between pairs of linear layers, N = B T, D width, F split width, E
experts, k experts per token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..config.parallel_config import MoeConfig
from ..parallel.expert_parallel import Dispatch, ship_all, ship_capacity
from ..parallel.gradient_norm import Reduction, mark_split, reduced_over
from ..parallel.mesh import MeshGroup
from ..parallel.tensor_parallel import TensorSplit, enter, leave
from ..parallel.weight_places import split_over


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSplit:
    """The experts of the blocks, and who holds them."""

    config: MoeConfig
    """How many experts, and how tokens choose."""
    group: MeshGroup
    """The ranks that share the experts."""
    context: MeshGroup
    """The ranks that share a sequence, whose balance is that of the whole sequence."""
    loss_shares: int
    """Microbatches of a step over all replicas: each counts 1 / shares of the loss."""


class MoeMlp(nn.Module):
    """The router and this rank's experts.

    Args:
        widths: D, and the width inside each expert.
        draw: Returns a normal matrix of some rows and columns; equal on every rank.
        tensor: The ranks that share each expert's matrices.
        experts: The ranks that share the experts.

    Attributes:
        routing_bias: (E,) added to the router's scores; zero unless an expert is made hot.
    """

    routing_bias: Tensor

    def __init__(
        self,
        widths: tuple[int, int],
        draw: Callable[[int, int], Tensor],
        tensor: TensorSplit,
        experts: ExpertSplit,
    ) -> None:
        super().__init__()
        self._tensor, self._experts = tensor, experts
        hidden, ffn = widths
        count, group = experts.config.experts, experts.group
        router = nn.Parameter(draw(count, hidden))
        # Each tensor-parallel rank sees a summand of every expert's output, and so of the gradient.
        kind = Reduction.REPLICAS_AND_TP if tensor.group.size > 1 else Reduction.REPLICAS
        self.router = reduced_over(kind, router)
        share = count // group.size
        mine = range(group.position * share, (group.position + 1) * share)
        ups, downs = [], []
        for index in range(count):
            up, down = draw(ffn, hidden), draw(hidden, ffn)
            if index in mine:
                ups.append(up.chunk(tensor.group.size, dim=0)[tensor.group.position])
                downs.append(down.chunk(tensor.group.size, dim=1)[tensor.group.position])
        self.up, self.down = (
            _expert_weight(own, tensor.group, group, dim) for own, dim in ((ups, 1), (downs, 2))
        )
        self.register_buffer("routing_bias", torch.zeros(count), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (B, S, D) to (B, S, D)."""
        config, tensor = self._experts.config, self._tensor
        tokens = enter(hidden, tensor)
        probabilities = self._route(tokens)  # (B, T, E)
        weights, chosen = probabilities.topk(config.experts_per_token, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        balance = self._balance_loss(probabilities, chosen)
        mixed = self._mix(tokens.flatten(0, 1), weights.flatten(0, 1), chosen.flatten(0, 1))
        output = leave(mixed.view_as(tokens), tensor)
        return _WithLoss.apply(output, balance)  # type: ignore[no-any-return, no-untyped-call]

    def _mix(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Return the weighted outputs (N, D) of the chosen experts.

        Args:
            tokens: (N, D).
            weights: (N, k), summing to one.
            chosen: (N, k) experts.
        """
        config, split = self._experts.config, self._experts
        # First choices of all tokens, then the second ones: (k N,).
        experts = chosen.T.flatten()
        if config.capacity_factor == 0:
            shipment = ship_all(experts, config.experts)
        else:
            shipment = ship_capacity(experts, config.experts, config.capacity_factor)
        # An empty row carries the first token, and weighs nothing.
        row_tokens = shipment.assignments % len(tokens)
        all_weights = torch.cat((weights.T.flatten(), weights.new_zeros(1)))
        row_weights = all_weights[shipment.assignments].to(tokens.dtype)
        dispatch = Dispatch(shipment, config.experts, split.group, self._tensor.comm)
        outputs = dispatch.run(tokens[row_tokens], self._expert)
        return torch.zeros_like(tokens).index_add(0, row_tokens, outputs * row_weights[:, None])

    def _route(self, tokens: Tensor) -> Tensor:
        """Return the probabilities (B, T, E) of the experts in fp32."""
        scores = nn.functional.linear(tokens.float(), self.router.float())
        return torch.softmax(scores + self.routing_bias, dim=-1)

    def _expert(self, index: int, rows: Tensor) -> Tensor:
        """Map rows (any, D) to this rank's summand (any, D) of an expert's output."""
        wide = nn.functional.gelu(nn.functional.linear(rows, self.up[index]))
        return nn.functional.linear(wide, self.down[index])

    def _balance_loss(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """Return this rank's share of the balance loss of the microbatch."""
        config, split = self._experts.config, self._experts
        batch, tokens, count = probabilities.shape
        sequence = tokens * split.context.size
        counts = torch.zeros_like(probabilities[:, 0]).scatter_add_(
            1, chosen.flatten(1), torch.ones_like(chosen.flatten(1), dtype=probabilities.dtype)
        )
        self._tensor.comm.all_reduce(counts, split.context).wait()
        shares = counts * (count / (config.experts_per_token * sequence))
        loss = (shares * probabilities.sum(dim=1) / sequence).sum() / batch
        # Every tensor-parallel rank computes it: their gradients are summed.
        return loss * config.balance_weight / (split.loss_shares * self._tensor.group.size)


def _expert_weight(
    own: Sequence[Tensor], tensor: MeshGroup, experts: MeshGroup, dim: int
) -> nn.Parameter:
    """Return this rank's experts (E, rows, columns), of each its slice along a dimension."""
    weight = mark_split(nn.Parameter(torch.stack(list(own))), tensor.axis)
    weight = split_over(split_over(weight, experts, 0), tensor, dim)
    return reduced_over(Reduction.EXPERT_REPLICAS, weight)


class _WithLoss(torch.autograd.Function):
    """An identity whose backward starts that of a loss, which needs no way out of the stage."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (loss,) = ctx.saved_tensors
        return grads[0], torch.ones_like(loss)
