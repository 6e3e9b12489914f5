"""The account of memory by phase."""

from __future__ import annotations

import json

import torch
from torch import nn

from meshscope.reference_trainer.model.activation_memory import ActivationStore
from meshscope.reference_trainer.replica.memory_account import (
    HeldBytes,
    MemoryAccount,
    NoAccount,
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
