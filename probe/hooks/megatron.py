"""Megatron-core: its mesh, and the passes and steps that its own schedules run.

The schedules call ``forward_step`` and ``backward_step`` of their module once a
microbatch and stage. Both leave communication to the schedule, so their time is that of
the stage alone. Backward goes past ``torch.autograd.backward`` where outputs are
deallocated, and would not be seen otherwise.
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
from .megatron_model import model_facts
from .steps import Boundary, StepHook

_STATE = "megatron.core.parallel_state"
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_OPTIMIZER = "megatron.core.optimizer.optimizer"

_RUNNERS = {
    "forward_backward_no_pipelining": None,
    "forward_backward_pipelining_without_interleaving": ScheduleKind.ONE_F_ONE_B,
    "forward_backward_pipelining_with_interleaving": ScheduleKind.INTERLEAVED,
}
"""Functions that run the passes of one step, and their schedule."""
_OPTIMIZERS = ("FP32Optimizer", "MixedPrecisionOptimizer", "ChainedOptimizer")
"""Classes with a ``step`` of their own; a chain calls those of its members."""
_SIZES = {
    "tp": "get_tensor_model_parallel_world_size",
    "pp": "get_pipeline_model_parallel_world_size",
    "dp": "get_data_parallel_world_size",
    "cp": "get_context_parallel_world_size",
    "ep": "get_expert_model_parallel_world_size",
}
_USUAL_ORDER = "tp-cp-ep-dp-pp"
"""Order of the axes from the fastest varying, where the caller gives none."""
_MOST_PASSES = 65_536
"""Forward passes without a backward that are remembered (evaluation has no backward)."""


class MegatronHook:
    """Records the passes of Megatron-core's schedules, and learns its mesh."""

    def __init__(
        self, capture: Capture, watch: ImportWatch, facts: RunFacts, steps: StepHook
    ) -> None:
        self.source = capture.source("megatron")
        self._capture = capture
        self._watch = watch
        self._facts = facts
        self._steps = steps
        self._patches = Patches(self.source)
        self._forwards: dict[int, Place] = {}
        self._inside_step = False

    def install(self) -> None:
        """Wrap the modules, now or when they are imported."""
        self._watch.when_imported(_STATE, self._wrap_state, self.source)
        self._watch.when_imported(_SCHEDULES, self._wrap_schedules, self.source)
        self._watch.when_imported(_OPTIMIZER, self._wrap_optimizers, self.source)

    def remove(self) -> None:
        """Restore the modules."""
        self.source.on = False
        self._patches.restore()
        self._forwards.clear()

    def _wrap_state(self) -> None:
        self._patches.replace(sys.modules[_STATE], "initialize_model_parallel", self._wrap_init)

    def _wrap_schedules(self) -> None:
        module = sys.modules[_SCHEDULES]
        self._patches.replace(module, "forward_step", self._wrap_forward)
        self._patches.replace(module, "backward_step", self._wrap_backward)
        for name in _RUNNERS.keys() & vars(module).keys():
            self._patches.replace(module, name, self._wrap_runner)

    def _wrap_optimizers(self) -> None:
        module = sys.modules[_OPTIMIZER]
        for name in _OPTIMIZERS:
            optimizer = getattr(module, name, None)
            if optimizer is not None and "step" in vars(optimizer):
                self._patches.replace(optimizer, "step", self._wrap_step)

    def _wrap_init(self, original: Any) -> Any:
        @wraps(original)
        def initialize(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if self.source.on:
                try:
                    layout = _layout(sys.modules[_STATE], kwargs.get("order") or _USUAL_ORDER)
                    self._facts.learn({"layout": layout.to_json()})
                except Exception as error:  # noqa: BLE001 - counted; training goes on
                    self.source.failed(error)
            return result

        return initialize

    def _wrap_runner(self, original: Any) -> Any:
        """Learn the schedule and its microbatches, which are keywords of every runner."""
        schedule = _RUNNERS[original.__name__]
        noted: set[int] = set()

        @wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.source.on and not kwargs.get("forward_only"):
                try:
                    microbatches = int(kwargs.get("num_microbatches") or 0)
                    if microbatches not in noted:
                        noted.add(microbatches)
                        named = {} if schedule is None else {"schedule": schedule.value}
                        of_model = model_facts(kwargs, _replicas())
                        self._facts.learn({"microbatches": microbatches, **named, **of_model})
                except Exception as error:  # noqa: BLE001 - counted; training goes on
                    self.source.failed(error)
            return original(*args, **kwargs)

        return run

    def _wrap_forward(self, original: Any) -> Any:
        source = self.source

        @wraps(original)
        def forward_step(*args: Any, **kwargs: Any) -> Any:
            place = self._place(kwargs) if source.on else None
            if place is None:
                return original(*args, **kwargs)
            result = compute_span(source, place, original, args, kwargs)
            self._remember(result, place)
            return result

        return forward_step

    def _wrap_backward(self, original: Any) -> Any:
        """Record a backward at the place of the forward whose output it is given."""
        source = self.source

        @wraps(original)
        def backward_step(*args: Any, **kwargs: Any) -> Any:
            place = self._place_of_forward(args, kwargs) if source.on else None
            if place is None:
                return original(*args, **kwargs)
            return compute_span(source, place, original, args, kwargs)

        return backward_step

    def _wrap_step(self, original: Any) -> Any:
        """End a step with the outermost optimizer, which gathers parameters last."""

        @wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside_step or not self.source.on:
                return original(optimizer, *args, **kwargs)
            self._inside_step = True
            self._steps.leave_to(Boundary.FRAMEWORK)
            try:
                return original(optimizer, *args, **kwargs)
            finally:
                self._inside_step = False
                try:
                    self._forwards.clear()
                    self._steps.end_step(None, Boundary.FRAMEWORK)
                except Exception as error:  # noqa: BLE001 - counted; training goes on
                    self.source.failed(error)

        return step

    def _remember(self, result: Any, place: Place) -> None:
        """Note where the output of a forward was computed, for its backward."""
        try:
            if len(self._forwards) >= _MOST_PASSES:
                self._forwards.clear()
            output = _first(result[0] if isinstance(result, tuple) else result)
            self._forwards[id(output)] = place
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def _place_of_forward(self, args: Any, kwargs: dict[str, Any]) -> Place | None:
        try:
            output = kwargs.get("output_tensor", args[1] if len(args) > 1 else None)
            place = self._forwards.pop(id(_first(output)), Place(SpanKind.FORWARD))
            return place._replace(kind=SpanKind.BACKWARD)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None

    def _place(self, kwargs: dict[str, Any]) -> Place | None:
        try:
            chunk = int(kwargs.get("vp_stage") or 0)
            microbatch = kwargs.get("current_microbatch")
            stage = _stage(chunk)
            if stage >= 0:
                self._capture.activity.stages.add(stage)
            return Place(
                SpanKind.FORWARD, stage, chunk, -1 if microbatch is None else int(microbatch)
            )
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None


def _first(tensors: Any) -> Any:
    return tensors[0] if isinstance(tensors, list | tuple) and tensors else tensors


def _stage(chunk: int) -> int:
    """Return the stage of a chunk in model order, -1 where the mesh is not Megatron's own."""
    state = sys.modules.get(_STATE)
    if state is None or not state.model_parallel_is_initialized():
        return -1
    size = int(state.get_pipeline_model_parallel_world_size())
    return chunk * size + int(state.get_pipeline_model_parallel_rank())


def _replicas() -> int:
    """Return the data-parallel ranks, 0 where Megatron does not tell."""
    size = getattr(sys.modules.get(_STATE), _SIZES["dp"], None)
    return int(size()) if callable(size) else 0


def _layout(state: Any, order: str) -> ParallelLayout:
    """Return the mesh that Megatron's state holds.

    Args:
        state: Its module of process groups.
        order: Its axes from the fastest varying.
    """
    sizes = {axis: int(getattr(state, name)()) for axis, name in _SIZES.items()}
    fastest_first = [axis for axis in order.split("-") if axis in MESH_AXES]
    missing = [axis for axis in MESH_AXES if axis not in fastest_first]
    return ParallelLayout(
        **sizes,
        vpp=int(state.get_virtual_pipeline_model_parallel_world_size() or 1),
        order="-".join([*missing, *reversed(fastest_first)]),
    )
