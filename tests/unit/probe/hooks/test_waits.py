"""Handles are held in bounded number and bytes, and are let go of."""

import weakref

import pytest
import torch

from meshscope.probe.compat.torch_names import dispatcher
from meshscope.probe.hooks.base import Capture
from meshscope.probe.hooks.waits import PendingWorks, WaitHook
from meshscope.probe.reader.run import read_run
from meshscope.probe.settings.config import ProbeConfig


class Handle:
    """Something with an identity that can be referred to weakly."""


@pytest.fixture
def pending(make_recorder):
    """Return a function that makes a table of pending works with given bounds."""

    def make(**bounds):
        recorder = make_recorder()
        recorder.step = 0
        return PendingWorks(Capture(recorder, ProbeConfig(**bounds), lambda: None))

    return make


def test_a_handle_gives_its_event_once(pending):
    """Fails when a wait is credited to another operation, or twice."""
    works, (first, second) = pending(), (Handle(), Handle())
    works.add(first, 7, 100, ())
    works.add(second, 8, 100, ())
    assert works.take(id(second))[1] == 8
    assert works.take(id(second)) is None
    assert works.take(id(first))[1] == 7
    assert works.take(id(Handle())) is None


def test_an_output_gives_its_event(pending):
    """Fails when the wait of a functional collective is not matched."""
    works, tensor = pending(), torch.ones(3)
    works.add(Handle(), 5, 12, [tensor])
    assert works.take_output(torch.ones(3)) is None
    assert works.take_output(tensor.view(3, 1))[1] == 5
    assert len(works) == 0
    assert works.take_output(tensor) is None
    later = Handle()
    works.add(later, 6, 12, tensor)
    assert works.take_output(tensor)[1] == 6
    works.add(later, 7, 12, [tensor])
    assert works.take(id(later))[1] == 7
    assert works.take_output(tensor) is None


def test_a_reused_buffer_belongs_to_its_last_operation(pending):
    """Fails when the end of an operation is credited to an earlier one on the same memory."""
    works, tensor, first = pending(), torch.ones(3), Handle()
    works.add(first, 1, 12, [tensor])
    works.add(Handle(), 2, 12, [tensor])
    assert works.take(id(first))[1] == 1
    assert works.take_output(tensor)[1] == 2


def test_the_number_is_bounded(pending):
    """Fails when the probe keeps tensors of the training code alive without bound."""
    works = pending(max_pending_works=3)
    handles = [Handle() for _ in range(5)]
    for event_id, handle in enumerate(handles):
        works.add(handle, event_id, 1, ())
    assert [works.take(id(handle)) is not None for handle in handles] == [
        False,
        False,
        True,
        True,
        True,
    ]


def test_bytes_are_bounded(pending):
    """Fails when a few large tensors are kept alive instead of many small ones."""
    works = pending(max_pending_bytes=250)
    kept = [Handle() for _ in range(3)]
    for event_id, handle in enumerate(kept):
        works.add(handle, event_id, 100, ())
    assert len(works) == 2


def test_old_handles_are_let_go_of(pending, run_path):
    """Fails when the handle of an operation that nobody waits for outlives the next step."""
    works = pending()
    recorder = works._capture.recorder
    handle = Handle()
    gone = weakref.ref(handle)
    works.add(handle, 1, 1, ())
    del handle
    recorder.step = 1
    works.step_ended()
    assert gone() is not None
    recorder.step = 2
    works.step_ended()
    assert gone() is None
    recorder.close()
    counters = read_run(run_path).rank_manifests[0]["counters"]
    assert counters == {"communication_end_unseen": 1}


def test_a_tensor_of_the_compiler_is_no_output(pending):
    """Fails if tracing a wait counts as an error of the probe, ten of which turn waits off."""
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    works, tensor = pending(), torch.ones(2)
    works.add(Handle(), 1, 8, [tensor])
    with FunctionalTensorMode():
        traced = FunctionalTensor.to_functional(torch.ones(2))
        assert works.take_output(traced) is None
    assert works.take_output(tensor)[1] == 1


class ChangingStep(int):
    """A step whose comparison lets another thread come in between."""

    def __lt__(self, other):
        """Have that thread issue an operation."""
        self.issue()
        return int(self) < other


def test_operations_of_another_thread_at_a_step_border(pending):
    """Fails when an operation that is issued during the border raises, or the old ones stay."""
    works, kept = pending(), [Handle(), Handle()]
    step = works._capture.recorder.step = ChangingStep(0)
    step.issue = lambda: works.add(kept.append(Handle()) or kept[-1], 9, 1, ())
    works.add(kept[0], 1, 1, ())
    works.add(kept[1], 2, 1, ())
    works._capture.recorder.step = 2
    works.step_ended()
    assert works.take(id(kept[0])) is None
    assert works.take(id(kept[1])) is None
    assert len(works) == 2


def test_a_class_of_handles_that_is_made_later_is_timed(pending):
    """Fails when the end of an operation is never seen whose handle a trainer's own class is."""
    works = pending()
    hook = WaitHook(works._capture, works, dispatcher())
    hook.install()

    class Late(torch.distributed.Work):
        def wait(self, _timeout=None):
            return True

    original, late = Late.wait, Late()
    try:
        works.add(late, 1, 8, ())
        assert Late.wait is not original
        assert late.wait()
        assert len(works) == 0
    finally:
        hook.remove()
    assert Late.wait is original


def test_a_wait_that_ends_in_an_error_is_counted_and_raised(pending, run_path):
    """Fails when the probe swallows the error of a collective, or nobody hears that its data never arrived."""
    works = pending()
    hook = WaitHook(works._capture, works, dispatcher())

    class Broken(torch.distributed.Work):
        def wait(self, _timeout=None):
            raise RuntimeError("timed out")

    hook.install()
    try:
        broken = Broken()
        works.add(broken, 1, 8, ())
        with pytest.raises(RuntimeError, match="timed out"):
            broken.wait()
        assert len(works) == 0
    finally:
        hook.remove()
    works._capture.recorder.close()
    counters = read_run(run_path).rank_manifests[0]["counters"]
    assert counters == {"communication_failed": 1}


@pytest.fixture
def wait_for_several():
    """Return torch's wait for several outputs, which is made here where this torch has none."""
    if hasattr(torch.ops._c10d_functional, "wait_tensors"):
        yield torch.ops._c10d_functional.wait_tensors
        return
    library = torch.library.Library("_c10d_functional", "FRAGMENT")
    library.define("wait_tensors(Tensor[] tensors) -> Tensor[]")
    library.impl("wait_tensors", lambda tensors: [own.clone() for own in tensors], "CPU")
    yield torch.ops._c10d_functional.wait_tensors
    library._destroy()


def test_a_wait_for_several_outputs_ends_each_of_their_operations_once(pending, wait_for_several):
    """Fails when the ends of coalesced collectives are never seen under torch 2.15."""
    works, (first, second, other) = pending(), torch.ones(3, 2)
    hook, ended = WaitHook(works._capture, works, dispatcher()), []
    works.add(Handle(), 1, 16, [first, second], ended.append)
    works.add(Handle(), 2, 8, [other], ended.append)
    hook.install()
    try:
        assert len(wait_for_several([first, second])) == 2
        assert (len(works), len(ended)) == (1, 1)
        wait_for_several([other, first])
        assert (len(works), len(ended)) == (0, 2)
        hook.source.on = False
        works.add(Handle(), 3, 8, [other], ended.append)
        wait_for_several([other])
        assert (len(works), len(ended)) == (1, 2)
    finally:
        hook.remove()
