"""Synthetic batches are a function of seed, step and replica."""

from __future__ import annotations

import torch

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config import TrainerConfig
from meshscope.reference_trainer.data import batches, global_batch

CONFIG = TrainerConfig(layout=ParallelLayout(dp=2))


def test_the_replicas_share_the_global_batch_without_overlap():
    """Fails if replicas train on the same or on missing sequences."""
    shares = zip(batches(CONFIG, 0), batches(CONFIG, 1), strict=True)
    for step, parts in enumerate(shares):
        ids, labels = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
        expected_ids, expected_labels = global_batch(CONFIG, step)
        assert torch.equal(ids, expected_ids)
        assert torch.equal(labels, expected_labels)


def test_steps_differ_and_labels_are_the_next_tokens():
    """Fails if every step repeats the same batch, or the task is shifted."""
    ids, labels = global_batch(CONFIG, 0)
    assert torch.equal(ids[:, 1:], labels[:, :-1])
    assert not torch.equal(ids, global_batch(CONFIG, 1)[0])
