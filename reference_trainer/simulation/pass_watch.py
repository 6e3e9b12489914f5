"""The passes of a pipeline rank as they run, and what memory they leave behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

from torch.distributed.pipelining import PipelineStage

from meshscope.analyze.formulas.schedules.passes import Pass, PassKind

from ..compat import receive_buffers, take_shapes_for_granted
from ..replica.memory_account import LiveStorage, Origin


class Holding(StrEnum):
    """What memory is held for."""

    WEIGHTS = "weights"
    """Weights, under ZeRO-3 also those that were gathered for the step."""
    MASTERS = "masters"
    """fp32 masters that are no weights of the model."""
    GRADIENTS = "gradients"
    """Buffers of gradients."""
    OPTIMIZER = "optimizer"
    """State of the optimizer."""
    MESSAGES = "messages"
    """Buffers that stages receive into, and what they have sent, until the step is over."""
    ACTIVATIONS = "activations"
    """Made by a forward or by the loss after it."""
    BACKWARD = "backward"
    """Made by a backward: gradients, and between the halves of a split one what the second needs."""
    UPDATE = "update"
    """Made by sums over the replicas and by the optimizer."""
    OTHER = "other"
    """Tokens and tables."""


class PassWatch:
    """Notes the passes of the pipeline, and what lies between them for backwards to come.

    Args:
        stages: This rank's stages, whose methods are wrapped.
        live: What lives; gets the label of the pass that runs.

    Attributes:
        order: The passes that ran.
        kept_bytes: The most that forwards left behind between two passes.
        kept: The same by the operator that made it.
        received_bytes: Of all buffers that are received into.
        sent_bytes: Of all that was sent.
    """

    def __init__(self, stages: list[Any], live: LiveStorage) -> None:
        self._stages = stages
        self._live = live
        self.order: list[Pass] = []
        self.kept_bytes = 0
        self.kept: Mapping[Origin, tuple[int, int]] = {}
        self.received_bytes = 0
        self.sent_bytes = 0
        self._sent: list[Any] = []
        for stage in stages:
            take_shapes_for_granted(stage)
            for name in ("get_fwd_send_ops", "get_bwd_send_ops"):
                setattr(stage, name, partial(self._send, getattr(stage, name)))
            for name, kind in (
                ("forward_one_chunk", PassKind.FORWARD),
                ("backward_one_chunk", PassKind.BACKWARD),
                ("backward_weight_one_chunk", PassKind.WEIGHT),
            ):
                setattr(stage, name, partial(self._run, stage, kind, getattr(stage, name)))

    def forget_sent(self) -> None:
        """Let go of what was sent, as the runtime does at the end of a step."""
        self._sent.clear()

    def _send(self, operations: Callable[[int], list[Any]], microbatch: int) -> list[Any]:
        """Note what is sent.

        The runtime waits for its sends at the end of the step, and until then a backend keeps
        their tensors alive; the fake one does not.
        """
        sent = operations(microbatch)
        self._sent += sent
        self._live.relabel((one.tensor for one in sent), Holding.MESSAGES)
        self.sent_bytes += sum(one.tensor.nbytes for one in sent)
        return sent

    def _run(
        self,
        stage: PipelineStage,
        kind: PassKind,
        run: Callable[..., Any],
        microbatch: int,
        *args: Any,
        **options: Any,
    ) -> Any:
        """Note what is kept, and run a pass; what it leaves bears its label until the next one."""
        if not self.order:
            buffers = [buffer for one in self._stages for buffer in receive_buffers(one)]
            self._live.relabel(buffers, Holding.MESSAGES)
            self.received_bytes += sum(buffer.nbytes for buffer in buffers)
        if self._live.by_label[Holding.ACTIVATIONS] > self.kept_bytes:
            self.kept_bytes = self._live.by_label[Holding.ACTIVATIONS]
            self.kept = self._live.made_by(Holding.ACTIVATIONS)
        if kind is PassKind.BACKWARD and not options.get("full_backward", True):
            kind = PassKind.INPUT
        is_forward = kind is PassKind.FORWARD
        self._live.label = Holding.ACTIVATIONS if is_forward else Holding.BACKWARD
        self.order.append(Pass(kind, stage.stage_index, microbatch))
        return run(microbatch, *args, **options)
