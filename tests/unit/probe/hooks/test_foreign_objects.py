"""Wrappers of frameworks whose objects are other than expected: the call goes on as if unwrapped."""

import pytest

from meshscope.probe.hooks.base import Capture
from meshscope.probe.hooks.deepspeed import DeepSpeedHook
from meshscope.probe.hooks.megatron import MegatronHook
from meshscope.probe.hooks.pipeline import PipelineHook
from meshscope.probe.job.run_facts import RunFacts
from meshscope.probe.recording.open_recorder import NullRecorder
from meshscope.probe.schema.terms import SpanKind
from meshscope.probe.settings.config import ProbeConfig


class Strange:
    """An object of another version: it lacks what the hooks read, and its length."""

    is_last = True

    def __bool__(self):
        """Be neither true nor false."""
        raise TypeError("no truth")


@pytest.fixture
def capture():
    """Return a capture that records nothing."""
    return Capture(NullRecorder(0), ProbeConfig(), lambda: None)


def errors(hook):
    """Return how many errors a hook has counted."""
    return hook.source._errors


def test_a_schedule_without_a_loss_function(capture):
    """Fails when a renamed private attribute of torch ends a training."""
    hook = PipelineHook(capture, None, None, RunFacts())
    loss = hook._wrap_loss(lambda *_: "loss")
    assert loss(Strange(), Strange(), 1, 2, 0) == "loss"
    assert errors(hook) == 1


def test_megatron_with_other_arguments(capture):
    """Fails when a runner or pass of another Megatron ends a training."""
    hook = MegatronHook(capture, None, None, None)

    def forward_backward_no_pipelining(**_):
        return "ran"

    run = hook._wrap_runner(forward_backward_no_pipelining)
    assert run(num_microbatches=[4, 4]) == "ran"
    assert run(num_microbatches=Strange()) == "ran"
    strange = [Strange()]
    assert hook._wrap_forward(lambda **_: ([], strange))() == ([], strange)
    hook._forwards = None
    assert hook._wrap_forward(lambda **_: "output")() == "output"
    assert hook._wrap_backward(lambda *_: "gradient")(None, strange) == "gradient"
    assert errors(hook) == 4


def test_deepspeed_without_a_stage(capture):
    """Fails when an engine of another DeepSpeed ends a training."""
    hook = DeepSpeedHook(capture, None, None, None)
    assert hook._wrap_pass(lambda _: "ran", SpanKind.FORWARD)(Strange()) == "ran"
    assert errors(hook) == 1
