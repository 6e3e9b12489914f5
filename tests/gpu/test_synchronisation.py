"""The training loop leaves the device alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

TRAINING = """
import torch
from meshscope.reference_trainer.parallel.mesh import Place
from meshscope.reference_trainer.config.presets import load_config
from meshscope.reference_trainer.run.train import train

config = load_config('''
model = { layers = 2, hidden = 64, ffn = 256, heads = 4, vocab = 256, seq_len = 32 }
schedule = { microbatches = 2 }
train = { steps = 6, global_batch = 4, optimizer = "adamw", max_grad_norm = 1.0 }
device = { kind = "cuda" }
''', overrides=())
reported = []

def emit(line):
    # The first steps allocate and compile; what is reported is over.
    reported.append(line)
    torch.cuda.set_sync_debug_mode("error")

losses = train(config, Place(), emit=emit)
torch.cuda.set_sync_debug_mode("default")
assert len(losses) == len(reported) == 6, reported
"""


def test_no_step_waits_for_the_device() -> None:
    """Fails when the loop copies from pageable memory, or reads a number of the device."""
    command = [sys.executable, "-W", "ignore", "-c", TRAINING]
    result = subprocess.run(command, timeout=300, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]


def test_batches_wait_in_pinned_memory() -> None:
    """Fails when a copy of a batch to the device would wait for all that is queued there."""
    import torch

    from meshscope.reference_trainer.config.presets import load_config
    from meshscope.reference_trainer.run.data import batches

    text = 'device = { kind = "cuda" }'
    for overrides in ((), ("data.num_workers=1",)):
        data = batches(load_config(text, overrides=overrides), 0)
        assert all(tensor.is_pinned() for tensor in next(data))
    torch.cuda.synchronize()
