"""Pipeline parallelism: this rank's stages, and the runtime that works through their order.

The orders are our own (``schedules.py``); torch's pipeline runtime adds the sends and
receives and executes them, the same for every schedule. The runtime never divides
gradients: the loss of a microbatch is already its share of the mean, so that gradients
are final when the last backward leaves them and the data-parallel reduction may start
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from meshscope.analyze.formulas.planning.stage_split import layer_ranges
from meshscope.analyze.formulas.schedules.schedule_records import rank_orders, stages_of_rank

from ..compat import PASS_TYPES, REDUCE_GRAD, Action, ScheduleRuntime
from ..config.config import TrainerConfig
from ..model.model import Stage, StagePart
from ..model.pace import PacedStage, WeightPace
from ..model.precision import model_dtype
from ..parallel.comm import Communicator
from ..parallel.mesh import Mesh
from ..parallel.tensor_parallel import TensorSplit, cross_entropy


def stage_part(config: TrainerConfig, stage: int) -> StagePart:
    """Return which part of the model a stage holds."""
    return StagePart(
        layers=layer_ranges(config.layers_per_stage)[stage],
        first=stage == 0,
        last=stage == config.stages - 1,
    )


def own_stages(config: TrainerConfig, pp_position: int) -> tuple[int, ...]:
    """Return the stages that a pipeline rank holds, by chunk."""
    layout = config.layout
    return stages_of_rank(config.schedule.kind, pp_position, layout.pp, layout.vpp)


class GradientListener(Protocol):
    """Hears what the order of passes says of gradients, where autograd's hooks are silent."""

    def collect(self, stage: nn.Module) -> None:
        """Take the gradients that a backward of a stage has just written."""

    def mark_final(self, stage: nn.Module) -> None:
        """Take the gradients of a stage as final for this step."""


class Pipeline:
    """Runs the microbatches of one step through this rank's stages and their neighbours.

    Args:
        config: The run.
        mesh: This rank's groups.
        modules: This rank's stages, by chunk.
        comm: Issues the collectives of the loss.
        gradients: Hears what the runtime knows of gradients; None leaves that to torch,
            which tells FSDP2.
        paces: The pace of each stage's backward halves; None leaves a stage as it is, and an
            empty list all of them.

    Attributes:
        stages: The stages as torch's runtime sees them, by chunk.
    """

    def __init__(
        self,
        config: TrainerConfig,
        mesh: Mesh,
        modules: Sequence[Stage],
        comm: Communicator,
        gradients: GradientListener | None = None,
        paces: Sequence[WeightPace | None] = (),
    ) -> None:
        own = own_stages(config, mesh.pp.position)
        self._has_first = 0 in own
        self._has_last = config.stages - 1 in own
        microbatches = config.schedule.microbatches
        self.stages = [
            _stage(config, mesh, module, index) for module, index in zip(modules, own, strict=True)
        ]
        for stage, pace in zip_longest(self.stages, paces):
            stage.gradients, stage.pace = gradients, pace
        self._runtime = ScheduleRuntime(  # type: ignore[no-untyped-call]
            self.stages,
            microbatches,
            loss_fn=_share_of_mean_loss(
                mesh.replicas.size * microbatches, TensorSplit(mesh.tp, comm)
            ),
            scale_grads=False,
        )
        if gradients is not None:
            module_of = dict(zip(own, modules, strict=True))
            self._runtime.register_custom_function(
                REDUCE_GRAD,
                lambda action, _context: gradients.mark_final(module_of[action.stage_index]),
            )
        self._runtime._prepare_schedule_with_comms(_runtime_orders(config))

    def step(self, ids: Tensor, labels: Tensor) -> Tensor | None:
        """Run forward and backward of all microbatches; gradients are in the parameters.

        Args:
            ids: (microbatches B, T) tokens of this rank, used by the first stage.
            labels: (microbatches B, T) next tokens, used by the last stage.

        Returns:
            This replica's share of the mean loss, where the last stage is.
        """
        losses: list[Tensor] = []
        self._runtime.step(
            *((ids,) if self._has_first else ()),
            target=labels if self._has_last else None,
            losses=losses,
            return_outputs=False,
        )
        return torch.stack(losses).sum().detach() if self._has_last else None


class _Stage(PacedStage):
    """Tells of backwards that write gradients without autograd's hooks."""

    gradients: GradientListener | None = None

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:  # noqa: FBT001, FBT002
        """Run the weights' half of one microbatch's backward."""
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
        if self.gradients is not None:
            self.gradients.collect(self.submod)


def _stage(config: TrainerConfig, mesh: Mesh, module: Stage, index: int) -> _Stage:
    """Wrap a stage; with both examples torch knows all shapes and runs no forward to infer them."""
    inputs, outputs = _example_tensors(config, index)
    return _Stage(
        module,
        index,
        config.stages,
        mesh.device,
        input_args=(inputs,),
        output_args=(outputs,),
        group=mesh.pp.handle,
    )


def _runtime_orders(config: TrainerConfig) -> dict[int, list[Action | None]]:
    """Return the order of every pipeline rank as torch's actions."""
    layout, schedule = config.layout, config.schedule
    orders = rank_orders(schedule.kind, layout.pp, schedule.microbatches, layout.vpp)
    return {
        rank: [Action(one.stage, PASS_TYPES[one.kind], one.microbatch) for one in order]
        for rank, order in enumerate(orders)
    }


def _share_of_mean_loss(shares: int, split: TensorSplit) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a loss that sums to the global mean over all microbatches and replicas."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(logits, labels, split) / shares

    return loss


def _example_tensors(config: TrainerConfig, stage: int) -> tuple[Tensor, Tensor]:
    """Return a stage's input and output for one microbatch, without memory behind them."""
    size, model = config.microbatch_size, config.model
    tokens = model.seq_len // config.layout.cp
    between = tokens // config.layout.tp if config.tensor.sequence_parallel else tokens
    ids = torch.empty(size, tokens, dtype=torch.int64, device="meta")
    real: dict[str, Any] = {
        "dtype": model_dtype(config),
        "device": "meta",
        "requires_grad": True,
    }
    hidden = torch.empty(size, between, model.hidden, **real)
    logits = torch.empty(size, tokens, model.vocab // config.layout.tp, **real)
    return (
        ids if stage == 0 else hidden,
        logits if stage == config.stages - 1 else hidden,
    )
