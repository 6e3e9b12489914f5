"""What is kept for the backward, and what that costs in memory and repeated work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from meshscope.reference_trainer.config.config import ModelConfig, TrainerConfig
from meshscope.reference_trainer.config.parallel_config import MemoryConfig
from meshscope.reference_trainer.model.activation_memory import (
    ActivationRunner,
    ActivationStore,
    recompute_frac,
    recomputed,
)
from meshscope.reference_trainer.model.model import Stage, StagePart
from meshscope.reference_trainer.model.pace import NoPace

CONFIG = ModelConfig(layers=2, hidden=32, ffn=128, heads=2, vocab=40, seq_len=16)
BATCH = 2
RESIDUAL_BYTES = BATCH * CONFIG.seq_len * CONFIG.hidden * 4
"""One residual stream (B, T, D) in fp32."""


def stage_of(recompute, store, comm, group):
    """Return the whole model with a way to keep activations."""
    runner = ActivationRunner(NoPace(), full=recompute == "full", store=store)
    part = StagePart(layers=range(CONFIG.layers), first=True, last=True)
    stage = Stage(CONFIG, part, seed=1, tp=group, comm=comm, runner=runner)
    if recompute == "selective":
        stage.recompute_halves(recomputed)
    return stage


def forward(stage):
    """Return the loss of one microbatch."""
    ids = torch.arange(BATCH * CONFIG.seq_len).view(BATCH, -1) % CONFIG.vocab
    return stage(ids).square().mean()


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("offload", [False, True])
def test_gradients_do_not_depend_on_what_is_kept(recompute, offload, comm, alone):
    """Fails if recomputation or offload changes what is trained."""
    plain = stage_of("none", None, comm, alone)
    stage = stage_of(recompute, ActivationStore(offload=offload), comm, alone)
    forward(plain).backward()
    forward(stage).backward()
    for expected, found in zip(plain.parameters(), stage.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad)


def block_bytes(recompute, comm, group):
    """Return what one block keeps for its backward."""
    store = ActivationStore(offload=False)
    runner = ActivationRunner(NoPace(), full=recompute == "full", store=store)
    stage = stage_of(recompute, None, comm, group)
    output = runner.layer(stage.blocks[0], torch.randn(BATCH, CONFIG.seq_len, CONFIG.hidden))
    assert output.requires_grad
    return store.device_bytes


def test_each_mode_keeps_what_it_states(comm, alone):
    """Fails if recomputation keeps more than the residual stream and the row inputs."""
    kept = {mode: block_bytes(mode, comm, alone) for mode in ("none", "selective", "full")}
    assert kept["full"] == RESIDUAL_BYTES
    row_inputs = RESIDUAL_BYTES + RESIDUAL_BYTES * CONFIG.ffn // CONFIG.hidden
    assert kept["selective"] == 2 * RESIDUAL_BYTES + row_inputs
    # Both norms' outputs, qkv, the attention's output and the input of the activation besides.
    assert kept["none"] > kept["selective"] + 9 * RESIDUAL_BYTES


def test_only_full_recomputation_repeats_collectives(comm, group_of_two):
    """Fails if selective recomputation communicates again, which it is chosen to avoid."""
    for mode, expected in (("none", 10), ("selective", 10), ("full", 12)):
        before = comm.issued
        forward(stage_of(mode, None, comm, group_of_two)).backward()
        assert comm.issued - before == expected, mode


def test_the_account_is_empty_after_the_backward(comm, alone):
    """Fails if the account counts memory that is free, or leaks what it holds."""
    store = ActivationStore(offload=False)
    stage = stage_of("none", store, comm, alone)
    first, second = forward(stage), forward(stage)
    both = store.device_bytes
    first.backward()
    assert 2 * store.device_bytes == both > 0
    second.backward()
    del first, second
    assert store.device_bytes == store.host_bytes == 0
    assert store.device_peak_bytes == both


def test_offload_leaves_only_small_tensors_on_the_device(comm, alone):
    """Fails if large activations stay, or weights are copied with them."""
    on_device, on_host = ActivationStore(offload=False), ActivationStore(offload=True)
    kept = forward(stage_of("full", on_device, comm, alone))
    moved = forward(stage_of("full", on_host, comm, alone))
    assert on_host.device_bytes < 0.1 * on_device.device_bytes
    assert on_host.host_bytes + on_host.device_bytes >= on_device.device_bytes
    weights = sum(p.nbytes for p in stage_of("full", None, comm, alone).parameters())
    assert on_host.host_bytes < weights
    moved.backward()
    assert on_host.host_bytes == 0
    assert on_host.host_peak_bytes > 0
    del kept


def test_memory_that_tensors_share_counts_once():
    """Fails if queries, keys and values of one projection are counted three times."""
    store = ActivationStore(offload=False)
    base = torch.randn(3, 100, requires_grad=True).exp()
    with store.keeping(nn.Identity()):
        first, second, third = base.unbind()
        product = (first * second * third).sum()
    # The three views, and first x second for the gradient of the third.
    assert store.device_bytes == base.nbytes + 100 * 4
    del product


def test_the_repeated_part_of_a_forward_follows_from_its_shapes():
    """Fails if the pace of a backward does not contain what it repeats."""

    def frac(mode):
        return recompute_frac(TrainerConfig(model=CONFIG, memory=MemoryConfig(recompute=mode)))

    assert (frac("none"), frac("full")) == (0.0, 1.0)
    assert frac("selective") == (3 * 32 + 128) / (4 * 32 + 2 * 128)
