"""Storages counted from birth to death."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from meshscope.reference_trainer.replica.live_storage import LiveStorage, Origin

KIB = 1024


def kib(count):
    """Return a new tensor of so many KiB."""
    return torch.zeros(count * KIB, dtype=torch.uint8)


def test_a_storage_counts_once_and_until_its_last_tensor_dies():
    """Fails if views count again, or memory that is freed goes on counting."""
    live = LiveStorage("x")
    with live.watching():
        whole = kib(4)
        view = whole[:KIB].view(2, -1)
        assert live.total_bytes == 4 * KIB
        del whole
        assert live.total_bytes == 4 * KIB
        del view
        assert live.total_bytes == 0
    assert live.peak_bytes == 4 * KIB


def test_memory_that_autograd_keeps_is_seen_until_the_backward():
    """Fails if what only the graph holds is taken for dead."""
    live = LiveStorage("x")
    with live.watching():
        weight = torch.zeros(KIB, requires_grad=True)
        loss = (weight.sin() * 2).exp().sum()
        # sin keeps the weight, exp its own result; the product of them is dead.
        assert live.total_bytes == 2 * 4 * KIB + 4
        loss.backward()
        del loss
        assert live.total_bytes == 2 * 4 * KIB


def test_a_peak_is_taken_apart_by_label():
    """Fails if the parts of a peak are those of another moment, or do not sum to it."""
    live = LiveStorage("early")
    with live.watching():
        kept = kib(1)
        live.label = "late"
        first = kib(2)
        del first
        second = kib(1)
        assert (live.peak_bytes, live.peak_by_label) == (3 * KIB, {"early": KIB, "late": 2 * KIB})
        live.relabel([kept], "other")
        live.start_phase()
        assert live.peak_bytes == 2 * KIB
        assert live.peak_by_label == {"early": 0, "late": KIB, "other": KIB}
        assert live.made_by("late") == {Origin("zeros", (KIB,)): (1, KIB)}
        del kept, second


def test_storages_that_are_resized_in_place_count_what_they_have():
    """Fails if weights that FSDP2 frees and brings back count wrong, or torch stays changed."""
    before = torch.UntypedStorage.resize_
    live = LiveStorage("x")
    with live.watching():
        tensor = kib(3)
        tensor.untyped_storage().resize_(0)
        assert live.total_bytes == 0
        tensor.untyped_storage().resize_(2 * KIB)
        assert live.total_bytes == 2 * KIB
    assert torch.UntypedStorage.resize_ is before


def test_tensors_without_memory_count_like_others():
    """Fails if a simulation counts something else than a run would."""
    live = LiveStorage("x")
    with FakeTensorMode(), live.watching():
        tensor = torch.zeros(1 << 40)
        assert live.total_bytes == 4 << 40
        del tensor
        assert live.total_bytes == 0
