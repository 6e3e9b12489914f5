"""DeepSpeed: where its step ends, and the stages of its pipeline module.

Its engines gather updated parameters after the inner optimizer is done, so their own
step is the boundary. Its pipeline runs stages through a table of instructions and sends
on the default group: stage and mesh are known to the engine only.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import Any

from ..job.run_facts import RunFacts
from ..schema.layout import MESH_AXES, ParallelLayout
from ..schema.terms import ScheduleKind, SpanKind
from ..watches.imports import ImportWatch
from .base import Capture, Patches, Place, compute_span
from .steps import Boundary, StepHook

_ENGINE = "deepspeed.runtime.engine"
_PIPELINE = "deepspeed.runtime.pipe.engine"

_KINDS = {"ForwardPass": SpanKind.FORWARD, "BackwardPass": SpanKind.BACKWARD}
"""Instructions that compute, by the name of their class."""
_AXES = {"pipe": "pp", "data": "dp", "model": "tp"}
"""Axes of a pipeline topology as DeepSpeed calls them."""


class DeepSpeedHook:
    """Ends steps where DeepSpeed ends them; records its pipeline stages."""

    def __init__(
        self, capture: Capture, watch: ImportWatch, facts: RunFacts, steps: StepHook
    ) -> None:
        self.source = capture.source("deepspeed")
        self._capture = capture
        self._watch = watch
        self._facts = facts
        self._steps = steps
        self._patches = Patches(self.source)
        self._passes: dict[SpanKind, int] = {}

    def install(self) -> None:
        """Wrap the engines, now or when they are imported."""
        self._watch.when_imported(_ENGINE, self._wrap_engine, self.source)
        self._watch.when_imported(_PIPELINE, self._wrap_pipeline, self.source)

    def remove(self) -> None:
        """Restore the engines."""
        self.source.on = False
        self._patches.restore()

    def _wrap_engine(self) -> None:
        engine = sys.modules[_ENGINE].DeepSpeedEngine
        self._patches.replace(engine, "__init__", self._wrap_init)
        self._patches.replace(engine, "_take_model_step", self._wrap_model_step)

    def _wrap_pipeline(self) -> None:
        engine = sys.modules[_PIPELINE].PipelineEngine
        self._patches.replace(engine, "__init__", self._wrap_init)
        self._patches.replace(engine, "train_batch", self._wrap_train_batch)
        self._patches.replace(engine, "_INSTRUCTION_MAP", self._wrap_instructions)

    def _wrap_init(self, original: Any) -> Any:
        """Take the end of steps over before the first one, and learn what the engine knows."""

        @wraps(original)
        def init(engine: Any, *args: Any, **kwargs: Any) -> None:
            original(engine, *args, **kwargs)
            if self.source.on:
                self._safely(self._learn, engine)

        return init

    def _wrap_model_step(self, original: Any) -> Any:
        @wraps(original)
        def take_model_step(engine: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(engine, *args, **kwargs)
            if self.source.on and not hasattr(engine, "num_stages"):
                self._safely(self._end_step, engine)
            return result

        return take_model_step

    def _wrap_train_batch(self, original: Any) -> Any:
        """End the step of a pipeline once its losses are combined over the stages."""

        @wraps(original)
        def train_batch(engine: Any, *args: Any, **kwargs: Any) -> Any:
            self._passes.clear()
            result = original(engine, *args, **kwargs)
            if self.source.on:
                self._safely(self._end_step, engine)
            return result

        return train_batch

    def _wrap_instructions(self, original: Any) -> dict[Any, Any]:
        return {
            instruction: self._wrap_pass(execute, _KINDS[instruction.__name__])
            if instruction.__name__ in _KINDS
            else execute
            for instruction, execute in original.items()
        }

    def _wrap_pass(self, original: Any, kind: SpanKind) -> Any:
        """Record a pass; the passes of one kind come in the order of their microbatches."""
        source = self.source

        @wraps(original)
        def execute(engine: Any, *args: Any, **kwargs: Any) -> Any:
            place = self._place(engine, kind) if source.on else None
            if place is None:
                return original(engine, *args, **kwargs)
            return compute_span(source, place, original, (engine, *args), kwargs)

        return execute

    def _place(self, engine: Any, kind: SpanKind) -> Place | None:
        try:
            microbatch = self._passes.get(kind, 0)
            self._passes[kind] = microbatch + 1
            stage = int(engine.stage_id)
            self._capture.activity.stages.add(stage)
            return Place(kind, stage, 0, microbatch)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None

    def _end_step(self, _engine: Any) -> None:
        self._steps.end_step(None, Boundary.FRAMEWORK)

    def _learn(self, engine: Any) -> None:
        """Note the mesh, the schedule and the microbatches of an engine."""
        self._steps.leave_to(Boundary.FRAMEWORK)
        facts: dict[str, Any] = {"microbatches": int(engine.gradient_accumulation_steps())}
        layout = _layout(engine)
        if layout is not None:
            facts["layout"] = layout.to_json()
        if hasattr(engine, "num_stages"):
            facts["schedule"] = ScheduleKind.ONE_F_ONE_B.value
        self._facts.learn(facts)

    def _safely(self, act: Any, engine: Any) -> None:
        try:
            act(engine)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)


def _layout(engine: Any) -> ParallelLayout | None:
    """Return the mesh of an engine, or None where only its groups can tell."""
    import torch.distributed as dist

    grid = getattr(engine, "grid", None)
    if grid is None:
        size = int(engine.dp_world_size)
        return ParallelLayout(dp=size) if size == dist.get_world_size() else None
    topology = grid.topology()
    names = topology.get_axis_names()
    if not set(names) <= _AXES.keys():
        return None
    present = [_AXES[name] for name in names]
    order = [*present, *(axis for axis in MESH_AXES if axis not in present)]
    return ParallelLayout(
        **{_AXES[name]: int(topology.get_dim(name)) for name in names},
        order="-".join(order),
    )
