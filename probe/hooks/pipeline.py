"""Forward and backward of pipeline stages, by microbatch.

The stage methods are wrapped, not the schedule's actions: an action includes
the wait for its input, which would spread one slow stage over all others. The
methods are wrapped on the base class, so every schedule of
``torch.distributed.pipelining`` is covered, whenever it was built.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from ..compat.torch_names import pipeline_schedule_classes, pipeline_stage_class
from ..job.run_facts import RunFacts
from ..schema.terms import Direction, ScheduleKind, SpanKind
from ..watches.imports import ImportWatch
from .base import Capture, Patches, Place, compute_span
from .model_watch import ModelWatch
from .module_calls import ModuleCalls
from .tags import MessageTags

_STAGE_MODULE = "torch.distributed.pipelining.stage"
_SCHEDULE_MODULE = "torch.distributed.pipelining.schedules"

SCHEDULES = {
    "ScheduleGPipe": ScheduleKind.GPIPE,
    "Schedule1F1B": ScheduleKind.ONE_F_ONE_B,
    "ScheduleInterleaved1F1B": ScheduleKind.INTERLEAVED,
    "ScheduleInterleavedZeroBubble": ScheduleKind.ZB_H1,
    "ScheduleZBVZeroBubble": ScheduleKind.ZB_V,
    "ScheduleDualPipeV": ScheduleKind.DUALPIPE_V,
}
"""Schedule classes of torch by name; a subclass counts as its nearest base."""

_MESSAGES = {
    "get_fwd_recv_ops": Direction.RECV,
    "get_bwd_recv_ops": Direction.RECV,
    "get_fwd_send_ops": Direction.SEND,
    "get_bwd_send_ops": Direction.SEND,
}

_TRIAL = "_prepare_forward_infra"
"""Runs the first microbatch once more, to learn the shapes of messages: its tokens are none of training."""

_METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")
_KINDS = {
    "forward_one_chunk": SpanKind.FORWARD,
    "backward_weight_one_chunk": SpanKind.BACKWARD_WEIGHT,
}
"""What a method of a stage computes; of the others its arguments tell."""


class PipelineHook:
    """Records the spans of pipeline stages and the facts of their schedule."""

    def __init__(
        self, capture: Capture, tags: MessageTags, watch: ImportWatch, facts: RunFacts
    ) -> None:
        self.source = capture.source("pipeline")
        self._capture = capture
        self._tags = tags
        self._watch = watch
        self._facts = facts
        self._model = ModelWatch(facts.learn, is_whole=False)
        self._patches = Patches(self.source)
        self._described: set[int] = set()

    def install(self) -> None:
        """Wrap the stage and schedule classes, now or when they are imported."""
        self._watch.when_imported(_STAGE_MODULE, self._wrap_stages, self.source)
        self._watch.when_imported(_SCHEDULE_MODULE, self._wrap_schedules, self.source)

    def remove(self) -> None:
        """Restore the stage and schedule classes."""
        self.source.on = False
        self._patches.restore()

    def _wrap_stages(self) -> None:
        if not self.source.on:
            return
        stage = pipeline_stage_class()
        for method in _METHODS:
            self._patches.replace(stage, method, self._wrap_method)
        for method in _MESSAGES.keys() & vars(stage).keys():
            self._patches.replace(stage, method, self._wrap_messages)
        for kind in (stage, *stage.__subclasses__()):
            if _TRIAL in vars(kind):
                self._patches.replace(kind, _TRIAL, self._wrap_trial)

    def _wrap_schedules(self) -> None:
        if not self.source.on:
            return
        base, single, multi = pipeline_schedule_classes()
        self._patches.replace(base, "_maybe_compute_loss", self._wrap_loss)
        self._patches.replace(single, "step", self._wrap_step)
        self._patches.replace(multi, "step", self._wrap_step)

    def _wrap_method(self, original: Any) -> Any:
        source, calls = self.source, ModuleCalls(self._capture.meter)
        kind, place_of, count = _KINDS.get(original.__name__), self._place, self._count

        @wraps(original)
        def method(stage: Any, *args: Any, **kwargs: Any) -> Any:
            place = place_of(kind, stage, args, kwargs) if source.on else None
            if place is None:
                return original(stage, *args, **kwargs)
            if place.kind is SpanKind.FORWARD:
                calls.note(getattr(stage, "submod", None))
                count(stage, args, kwargs)
            return compute_span(source, place, original, (stage, *args), kwargs)

        return method

    def _count(self, stage: Any, args: Any, kwargs: Any) -> None:
        """Add the tokens of a microbatch of training to those of the step: the first stage is given them."""
        try:
            if stage.is_first and sys.modules["torch"].is_grad_enabled():
                inputs = args[1] if len(args) > 1 else kwargs.get("args", ())
                named = args[2] if len(args) > 2 else kwargs.get("kwargs")
                tokens = self._model.tokens(stage.submod, inputs, named or {})
                self._capture.activity.tokens += tokens
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def _wrap_trial(self, original: Any) -> Any:
        activity = self._capture.activity

        @wraps(original)
        def prepare(*args: Any, **kwargs: Any) -> Any:
            before = activity.tokens
            try:
                return original(*args, **kwargs)
            finally:
                activity.tokens = before

        return prepare

    def _wrap_loss(self, original: Any) -> Any:
        """Count the loss as forward of the last stage: it is part of its imbalance."""
        source = self.source

        @wraps(original)
        def loss(schedule: Any, stage: Any, *args: Any, **kwargs: Any) -> Any:
            place = self._loss_place(schedule, stage, args, kwargs) if source.on else None
            if place is None:
                return original(schedule, stage, *args, **kwargs)
            return compute_span(source, place, original, (schedule, stage, *args), kwargs)

        return loss

    def _loss_place(self, schedule: Any, stage: Any, args: Any, kwargs: Any) -> Place | None:
        try:
            if not stage.is_last or schedule._loss_fn is None:
                return None
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None
        return self._place(SpanKind.FORWARD, stage, args[2:], kwargs)

    def _place(self, kind: SpanKind | None, stage: Any, args: Any, kwargs: Any) -> Place | None:
        """Return where a call of a stage belongs; its kind is None where its arguments tell.

        Looped and V-shaped placement both give each rank one stage of every ``group_size``
        consecutive ones, so that quotient is the rank's chunk.
        """
        try:
            index = int(stage.stage_index)
            self._capture.activity.stages.add(index)
            return Place(
                kind or _kind_of_backward(args, kwargs),
                index,
                index // int(stage.group_size),
                int(args[0]) if args else _named_microbatch(kwargs),
            )
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None

    def _wrap_messages(self, original: Any) -> Any:
        source, tags = self.source, self._tags
        direction = _MESSAGES[original.__name__]

        @wraps(original)
        def operations(stage: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(stage, *args, **kwargs)
            if found and source.on:
                try:
                    microbatch = int(args[0]) if args else _named_microbatch(kwargs)
                    chunk = int(stage.stage_index) // int(stage.group_size)
                    for operation in found:
                        tags.put(direction, operation.tensor, microbatch, chunk)
                except Exception as error:  # noqa: BLE001 - counted; training goes on
                    source.failed(error)
            return found

        return operations

    def _wrap_step(self, original: Any) -> Any:
        source = self.source

        @wraps(original)
        def step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            if source.on and id(schedule) not in self._described:
                try:
                    self._described.add(id(schedule))
                    self._describe(schedule)
                except Exception as error:  # noqa: BLE001 - counted; training goes on
                    source.failed(error)
            return original(schedule, *args, **kwargs)

        return step

    def _describe(self, schedule: Any) -> None:
        stages = getattr(schedule, "_stages", None) or [schedule._stage]
        ranks = getattr(stages[0], "stage_index_to_group_rank", None) or {}
        kind, microbatches = schedule_kind(type(schedule)), int(schedule._n_microbatches)
        self._facts.learn({"schedule": kind.value, "microbatches": microbatches})
        self._facts.learn_chunks(len(stages))
        self._capture.recorder.annotate(
            "pipeline",
            {
                "schedule": kind.value,
                "schedule_class": type(schedule).__name__,
                "microbatches": microbatches,
                "stages": int(stages[0].num_stages),
                "own_stages": [int(stage.stage_index) for stage in stages],
                "group_rank_of_stage": {str(stage): int(rank) for stage, rank in ranks.items()},
            },
        )


def schedule_kind(schedule_class: type) -> ScheduleKind:
    """Return the kind of a schedule class, ``OTHER`` for one that torch does not define."""
    for base in schedule_class.__mro__:
        if base.__name__ in SCHEDULES:
            return SCHEDULES[base.__name__]
    return ScheduleKind.OTHER


def _kind_of_backward(args: tuple[Any, ...], kwargs: dict[str, Any]) -> SpanKind:
    full = kwargs.get("full_backward", args[2] if len(args) > 2 else True)
    return SpanKind.BACKWARD if full else SpanKind.BACKWARD_INPUT


def _named_microbatch(kwargs: dict[str, Any]) -> int:
    """Return the microbatch of a stage call that has it by name."""
    for name in ("fwd_chunk_id", "bwd_chunk_id", "mb_index"):
        if name in kwargs:
            return int(kwargs[name])
    raise TypeError("a stage method was called without its microbatch")
