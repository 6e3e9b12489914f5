"""Forward, backward and recomputation of training without a pipeline.

A forward is an outermost call of a module, a backward one call of
``torch.autograd.backward``, a recomputation an outermost module call inside a
backward (activation checkpointing). Module calls are seen by wrapping
``Module.__call__``, which costs a call with nothing to record one attribute
test and one Python frame; torch's global module hooks would push every module
of the model onto the slow call path. Losses that are plain functions and ops
between modules are not seen. Gradient clipping is recorded where the training
code calls it through its module.

Threads that run modules for something else (transforms of a prefetch) are left out: once a
thread has run a backward, forwards are those of threads that do, and a recomputation is
what autograd itself calls.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import wraps
from typing import Any

from ..clock import now_ns
from ..compat.torch_names import has_compiled, is_compiling, is_in_autograd, wrapper_frame_ns
from ..job.run_facts import RunFacts
from ..schema.terms import SpanKind
from .base import BACKWARD_KINDS, NO_SPANS, Activity, Capture, Patches, Place, Source, compute_span
from .model_watch import ModelWatch
from .module_calls import ModuleCalls
from .run_work import RunWork
from .work_observer import WorkObserver

_FORWARD = SpanKind.FORWARD
"""Looked up once: in its class that takes a third of the time that a span's place takes."""


class ComputeHook:
    """Records module calls, backward calls and gradient clipping.

    Args:
        capture: Where records go.
        facts: Told the model, and what runs of it.
        before: The one that recorded an earlier part of the run: what it saw to run counts on.
    """

    def __init__(
        self, capture: Capture, facts: RunFacts | None = None, before: ComputeHook | None = None
    ) -> None:
        self.source = capture.source("compute")
        self._capture = capture
        self._facts = facts
        self._run = None if facts is None else RunWork(facts.learn)
        if before is not None and before._run is not None:
            self._run = before._run
        self._work = None if self._run is None else WorkObserver(self._run, capture.meter)
        self._model = None if facts is None else ModelWatch(self._learn_model)
        self._activity = capture.activity
        self._meter = capture.meter
        self._calls = ModuleCalls(capture.meter)
        self._patches = Patches(self.source)

    def install(self) -> None:
        """Wrap module calls, the backward call and gradient clipping."""
        import torch
        from torch.nn.utils import clip_grad

        self._activity.enter(self._activity.place)
        if not self._meter.frame_ns:
            self._meter.frame_ns = _frame_ns(self.source, self._calls)
        self._patches.replace(torch.nn.Module, "__call__", self._wrap_module_call)
        self._patches.replace(torch.autograd, "backward", self._wrap_backward)
        self._patches.replace_alike(
            (clip_grad, torch.nn.utils), "clip_grad_norm_", self._wrap_clipping
        )

    def step_ended(self) -> None:
        """Take what was observed of the step, and begin to observe the next one, or stop."""
        if self._work is None or self._run is None:
            return
        activity, work, run = self._activity, self._work, self._run
        if activity.observer is work:
            work.step_ended()
        if not activity.stages:
            run.count_step(self._capture.recorder.step)
        # With a stage of a pipeline, or what is compiled, calls do not show the whole model.
        wanted = run.wants(self._capture.recorder.step) and not activity.stages
        activity.observer = work if wanted and not has_compiled() else None
        activity.enter(activity.place)

    def remove(self) -> None:
        """Restore everything."""
        self.source.on = False
        self._activity.observer = None
        self._activity.listen = False
        self._patches.restore()

    def _learn_model(self, found: Mapping[str, Any]) -> None:
        if self._run is not None and "observed" in found:
            self._run.doubts = found["observed"]
        if self._facts is not None:
            self._facts.learn(found)

    def _wrap_module_call(self, original: Any) -> Any:
        watches = None if self._model is None else (self._model, self._run, self._work)
        return _module_call(original, self.source, self._activity, self._calls, watches)

    def _wrap_backward(self, original: Any) -> Any:
        source, activity, compiling = self.source, self._activity, is_compiling()
        capture = self.source.capture

        def call(*args: Any, **kwargs: Any) -> Any:
            around = capture.native_waits
            return original(*args, **kwargs) if around is None else around(original, args, kwargs)

        @wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if compiling() or not source.on:
                return original(*args, **kwargs)
            activity.backward_begins()
            if activity.place is not None:
                return call(*args, **kwargs)
            if activity.observer is not None:
                _observe_backward(activity, source, args, kwargs)
            place = Place(SpanKind.BACKWARD, microbatch=activity.microbatch)
            try:
                return compute_span(source, place, call, args, kwargs)
            finally:
                activity.microbatch += 1

        return backward

    def _wrap_clipping(self, original: Any) -> Any:
        source, activity, compiling = self.source, self._activity, is_compiling()

        @wraps(original)
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            if compiling() or activity.place is not None or not source.on:
                return original(*args, **kwargs)
            return compute_span(source, Place(SpanKind.GRAD_CLIP), original, args, kwargs)

        return clip_grad_norm_


def _module_call(
    original: Any,
    source: Source,
    activity: Activity,
    calls: ModuleCalls,
    watches: Any = None,
) -> Any:
    """Return what is called in place of ``Module.__call__``."""
    compiling, in_autograd = is_compiling(), is_in_autograd()

    def module_call(module: Any, /, *args: Any, **kwargs: Any) -> Any:
        # The tracer of torch.compile must see the original only.
        if not activity.listen or compiling() or not source.on:
            return original(module, *args, **kwargs)
        entered_ns = now_ns()
        around = activity.place
        is_pass = around is None and activity.trains_here()
        if is_pass and watches is not None:
            _count(activity, source, watches, module, args, kwargs)
        if activity.observer is not None:
            _observe(activity, source, module, args, kwargs)
        if is_pass:
            place = Place(_FORWARD, -1, -1, activity.microbatch)
        elif around is not None and around.kind in BACKWARD_KINDS and in_autograd():
            place = around._replace(kind=SpanKind.RECOMPUTE)
        else:
            return _inner(activity, original, module)(module, *args, **kwargs)
        calls.note(module)
        if (observer := activity.observer) is None:
            return compute_span(source, place, original, (module, *args), kwargs, entered_ns)
        call = observer.watched(module, original, again=around is not None)
        result = compute_span(source, place, call, (module, *args), kwargs, entered_ns)
        if around is None:
            _observe_result(activity, source, result)
        return result

    return wraps(original)(module_call)


def _inner(activity: Activity, original: Any, module: Any) -> Any:
    """Return how to make a call below others: in an observed step some need care."""
    if (observer := activity.observer) is None:
        return original
    is_again = activity.place is not None and activity.place.kind is not _FORWARD
    return observer.inner(module, original, again=is_again) or original


def _count(
    activity: Activity,
    source: Source,
    watches: tuple[ModelWatch, RunWork, WorkObserver],
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Count an outermost call of training, and its tokens; have one of a new kind observed."""
    model, run, work = watches
    try:
        grads = sys.modules["torch"].is_grad_enabled()
        if run.count_pass(module, args, kwargs, grads=grads) and activity.observer is None:
            _observe_late(activity, run, work)
        if grads:
            tokens = model.tokens(module, args, kwargs)
            activity.tokens += tokens
            run.count_tokens(tokens)
            if activity.observer is work:
                work.add_tokens(tokens, model.length)
            _record_lengths(activity, source.capture, model, tokens)
    except Exception as error:  # noqa: BLE001 - counted; training goes on
        source.failed(error)


def _observe_late(activity: Activity, run: RunWork, work: WorkObserver) -> None:
    """Observe the rest of a step, unless something is compiled."""
    if has_compiled() or activity.stages:
        run.is_blind = True
    else:
        work.begin_late()
        activity.observer = work


def _record_lengths(activity: Activity, capture: Capture, model: ModelWatch, tokens: int) -> None:
    """Record the work of a microbatch whose sequences are not as long as others; the training code knows it better."""
    if not tokens or capture.states_sequences or capture.level == NO_SPANS:
        return
    recorder, number = capture.recorder, activity.microbatch
    if (work := model.unlike_work(recorder.step, number, tokens)) is not None:
        recorder.record_microbatch(number, *work)


def _observe_result(activity: Activity, source: Source, result: Any) -> None:
    """Hand the result of an outermost call on to who observes the step."""
    try:
        if activity.observer is not None:
            activity.observer.note_result(result)
    except Exception as error:  # noqa: BLE001 - counted; training goes on
        source.failed(error)


def _observe_backward(activity: Activity, source: Source, args: Any, kwargs: Any) -> None:
    """Hand what a backward pass begins at on to who observes the step."""
    try:
        activity.observer.note_backward(args[0] if args else kwargs["tensors"])
    except Exception as error:  # noqa: BLE001 - counted; training goes on
        source.failed(error)


def _observe(
    activity: Activity, source: Source, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Hand a call of this thread's training on to who observes the step."""
    torch, around = sys.modules["torch"], activity.place
    is_again = around is not None and around.kind is not _FORWARD
    try:
        if is_again or activity.trains_here():
            grads = torch.is_grad_enabled()
            activity.observer.note(module, args, kwargs, around, grads=grads)
            if activity.observer.is_blind:
                activity.observer = None
    except Exception as error:  # noqa: BLE001 - counted; training goes on
        source.failed(error)


def _frame_ns(source: Source, calls: ModuleCalls) -> int:
    """Return what the wrapper takes where there is nothing to record."""
    inside = Activity()
    inside.listen = False
    return wrapper_frame_ns(lambda original: _module_call(original, source, inside, calls), None)
