"""Everything private that the probe leans on is there in this torch, or its absence is told."""

import pytest
import torch
import torch.distributed.pipelining

from meshscope.probe.compat import torch_names, works


@pytest.mark.parametrize(
    "lookup",
    [
        torch_names.dispatcher,
        works.work_class,
        works.functional_works,
        torch_names.process_group_class,
        torch_names.data_loader_iterator_class,
        torch_names.pipeline_stage_class,
        torch_names.pipeline_schedule_classes,
    ],
)
def test_this_torch_has_what_the_hooks_need(lookup):
    """Fails when a new torch has moved something, before a user finds out."""
    assert lookup() is not None


def test_a_missing_name_is_reported_by_name(monkeypatch):
    """Fails when a capture does not say why a hook is missing."""
    monkeypatch.delattr(torch._ops.OpOverload, "redispatch")
    with pytest.raises(torch_names.UnsupportedError, match=r"OpOverload\.redispatch is missing"):
        torch_names.dispatcher()


def test_no_device_is_read_before_the_training_code_uses_one():
    """Fails when the probe itself initialises CUDA, which breaks forking and costs memory."""
    if torch.cuda.is_initialized():
        pytest.skip("needs a process that has not used CUDA yet")
    assert torch_names.cuda_memory_reader() is None
    assert not torch.cuda.is_initialized()
