"""Pipeline parallelism: who holds which layers, and in which order stages work.

The orders are our own; torch's pipeline runtime adds the sends and receives and
executes them. The runtime never divides gradients: the loss of a microbatch is
already its share of the mean, so that gradients are final when the last
backward leaves them and the data-parallel reduction may start at once.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, chain

import torch
from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from .comm import Communicator
from .compat import FORWARD, FULL_BACKWARD, Action, ScheduleRuntime
from .config import TrainerConfig
from .mesh import Mesh
from .model import Stage, StagePart
from .tensor_parallel import TensorSplit
from .vocab_parallel import cross_entropy


def stage_part(config: TrainerConfig, stage: int) -> StagePart:
    """Return which part of the model a stage holds."""
    stages = config.layout.pp
    even, rest = divmod(config.model.layers, stages)
    counts = config.schedule.layers_per_stage or tuple(
        even + (index < rest) for index in range(stages)
    )
    begin, end = [0, *accumulate(counts)][stage : stage + 2]
    return StagePart(layers=range(begin, end), first=stage == 0, last=stage == stages - 1)


def gpipe_order(stage: int, stages: int, microbatches: int) -> list[Action | None]:
    """Return all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965).

    ``stages`` does not matter; it keeps the signature of all orders the same.
    """
    del stages
    return [
        Action(stage, kind, index)
        for kind in (FORWARD, FULL_BACKWARD)
        for index in range(microbatches)
    ]


def one_f_one_b_order(stage: int, stages: int, microbatches: int) -> list[Action | None]:
    """Return the 1F1B order (Narayanan et al. 2021, arXiv 2104.04473, section 2.2).

    A stage holds the activations of at most ``stages - stage`` microbatches.
    """
    forwards = [Action(stage, FORWARD, index) for index in range(microbatches)]
    backwards = [Action(stage, FULL_BACKWARD, index) for index in range(microbatches)]
    ahead = min(stages - 1 - stage, microbatches)
    warmup = forwards[:ahead]
    steady = chain.from_iterable(zip(forwards[ahead:], backwards, strict=False))
    cooldown = backwards[microbatches - ahead :]
    return [*warmup, *steady, *cooldown]


_ORDERS: dict[str, Callable[[int, int, int], list[Action | None]]] = {
    "gpipe": gpipe_order,
    "1f1b": one_f_one_b_order,
}


class Pipeline:
    """Runs the microbatches of one step through this rank's stage and its neighbours.

    Args:
        config: The run.
        mesh: This rank's groups.
        module: This rank's stage.
        comm: Issues the collectives of the loss.
    """

    def __init__(
        self, config: TrainerConfig, mesh: Mesh, module: Stage, comm: Communicator
    ) -> None:
        self._is_first = mesh.pp.position == 0
        self._is_last = mesh.pp.position == mesh.pp.size - 1
        inputs, outputs = _example_tensors(config, mesh)
        stage = PipelineStage(
            module,
            mesh.pp.position,
            mesh.pp.size,
            mesh.device,
            # With both examples the runtime knows all shapes and runs no forward to infer them.
            input_args=(inputs,),
            output_args=(outputs,),
            group=mesh.pp.handle,
        )
        microbatches = config.schedule.microbatches
        self._runtime = ScheduleRuntime(  # type: ignore[no-untyped-call]
            [stage],
            microbatches,
            loss_fn=_share_of_mean_loss(
                mesh.replicas.size * microbatches, TensorSplit(mesh.tp, comm)
            ),
            scale_grads=False,
        )
        order = _ORDERS[config.schedule.kind]
        self._runtime._prepare_schedule_with_comms(
            {rank: order(rank, mesh.pp.size, microbatches) for rank in range(mesh.pp.size)}
        )

    def step(self, ids: Tensor, labels: Tensor) -> Tensor | None:
        """Run forward and backward of all microbatches; gradients are in the parameters.

        Args:
            ids: (microbatches B, T) tokens of this rank, used by the first stage.
            labels: (microbatches B, T) next tokens, used by the last stage.

        Returns:
            This replica's share of the mean loss, on the last stage only.
        """
        losses: list[Tensor] = []
        self._runtime.step(
            *((ids,) if self._is_first else ()),
            target=labels if self._is_last else None,
            losses=losses,
            return_outputs=False,
        )
        return torch.stack(losses).sum().detach() if self._is_last else None


def _share_of_mean_loss(shares: int, split: TensorSplit) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss that sums to the global mean over all microbatches and replicas."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, split) / shares

    return loss


def _example_tensors(config: TrainerConfig, mesh: Mesh) -> tuple[Tensor, Tensor]:
    """Return a stage's input and output for one microbatch, without memory behind them."""
    size, model = config.microbatch_size, config.model
    tokens = model.seq_len // mesh.cp.size
    between = tokens // mesh.tp.size if config.tensor.sequence_parallel else tokens
    rows = model.vocab // mesh.tp.size
    ids = torch.empty(size, tokens, dtype=torch.int64, device="meta")
    hidden = torch.empty(size, between, model.hidden, device="meta", requires_grad=True)
    logits = torch.empty(size, tokens, rows, device="meta", requires_grad=True)
    return (
        ids if mesh.pp.position == 0 else hidden,
        logits if mesh.pp.position == mesh.pp.size - 1 else hidden,
    )
