"""The account of memory by phase."""

from __future__ import annotations

import json

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from meshscope.reference_trainer.model.activation_memory import ActivationStore
from meshscope.reference_trainer.replica.memory_account import (
    HeldBytes,
    LiveStorage,
    MemoryAccount,
    NoAccount,
    Origin,
    account_path,
    optimizer_state,
    tensor_bytes,
)


def test_each_phase_has_its_own_peak(tmp_path):
    """Fails if a phase is charged with what an earlier one needed, or lines are lost."""
    store = ActivationStore(offload=False)
    held = HeldBytes(weights_bytes=1, masters_bytes=2, gradients_bytes=3, optimizer_bytes=4)
    path = account_path(tmp_path / "new", 3)
    account = MemoryAccount(path, torch.device("cpu"), store, lambda: held)
    for _ in range(2):
        with account.phase("pipeline"):
            with store.keeping(nn.Identity()):
                output = torch.ones(100, requires_grad=True).exp()
            output.sum().backward()
            del output
        with account.phase("update"):
            pass
        account.end_step()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.name == "memory.rank00003.jsonl"
    assert [(r["step"], r["phase"]) for r in records] == [
        (0, "pipeline"),
        (0, "update"),
        (1, "pipeline"),
        (1, "update"),
    ]
    assert [r["activations_peak_bytes"] for r in records] == [400, 0, 400, 0]
    assert {r["activations_bytes"] for r in records} == {0}
    assert {r["allocated_peak_bytes"] for r in records} == {None}
    assert {key: records[0][key] for key in held._asdict()} == held._asdict()


def test_a_resumed_run_counts_on(tmp_path):
    """Fails if the account of a run that goes on calls its steps by other numbers."""
    path, store = account_path(tmp_path, 0), ActivationStore(offload=False)
    held = HeldBytes(weights_bytes=1, masters_bytes=2, gradients_bytes=3, optimizer_bytes=4)
    account = MemoryAccount(path, torch.device("cpu"), store, lambda: held, first_step=7)
    with account.phase("update"):
        pass
    account.end_step()
    assert json.loads(path.read_text())["step"] == 7


def test_an_older_account_is_replaced(tmp_path):
    """Fails if two runs into one folder are mixed."""
    path = account_path(tmp_path, 0)
    path.write_text("old\n")
    held = HeldBytes(0, 0, 0, 0)
    MemoryAccount(path, torch.device("cpu"), ActivationStore(offload=False), lambda: held)
    assert path.read_text() == ""


def test_the_state_of_the_optimizer_is_two_moments():
    """Fails if the state of AdamW is not counted, or its step counters are."""
    weight = nn.Parameter(torch.ones(10))
    optimizer = torch.optim.AdamW([weight])
    assert tensor_bytes(optimizer_state(optimizer)) == 0
    weight.grad = torch.ones(10)
    optimizer.step()
    assert tensor_bytes(optimizer_state(optimizer)) == 2 * 40


def test_no_account_writes_nothing(tmp_path):
    """Fails if a run without an account pays for one."""
    account = NoAccount()
    with account.phase("update"):
        pass
    account.end_step()
    assert not list(tmp_path.iterdir())


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
