"""Compute that a fault adds, and what is noted of it."""

from __future__ import annotations

import json

import pytest

from meshscope.reference_trainer.config.presets import load_config
from meshscope.reference_trainer.faults.extra_compute import HostCompute
from meshscope.reference_trainer.faults.ground_truth import truth_path
from meshscope.reference_trainer.parallel.mesh import Place
from meshscope.reference_trainer.run.data import MicrobatchWork
from meshscope.reference_trainer.run.train import train

RUN = """
model = { layers = 2, hidden = 16, ffn = 32, heads = 2, vocab = 32, seq_len = 64 }
schedule = { microbatches = 3 }
train = { steps = 2, global_batch = 3 }
data = { documents = "long_tail" }
"""


def applied(path):
    """Return the applied faults that a rank has noted."""
    lines = truth_path(path, 0).read_text(encoding="utf-8").splitlines()
    return [one for one in map(json.loads, lines) if one["record"] == "fault"]


def test_a_host_computes_for_as_long_as_wanted_and_tells_at_once():
    """Fails if the CPU is given back early, or the time is not noted."""
    spans = []
    compute = HostCompute()
    compute.spend(3_000_000, spans.append)
    compute.settle(wait=True)
    ((start_ns, end_ns),) = spans
    assert end_ns - start_ns >= 3_000_000


def test_blocks_take_longer_by_the_documents_of_their_microbatch(tmp_path):
    """Fails if a backward has the work of another microbatch, or work is not that of its lengths."""
    config = load_config(RUN, overrides=(), faults=["sequence_imbalance:delay_ms=2,start=1,seed=1"])
    train(config, Place(), out=tmp_path)
    work = MicrobatchWork(config, 0).of_step(1)
    assert max(work) > min(work)
    found = applied(tmp_path)
    assert {one["kind"] for one in found} == {"sequence_imbalance"}
    wanted_ns = [round(2e6 * times * work[m]) for m in range(3) for times in (1, 2) for _ in "ab"]
    assert sorted(one["requested_ns"] for one in found) == sorted(wanted_ns)
    for one in found:
        assert one["step"] == 1
        assert one["work"] == pytest.approx(work[one["microbatch"]])
        assert one["end_ns"] - one["start_ns"] >= one["requested_ns"]
