"""The stages of the model together are the model."""

from __future__ import annotations

import torch

from meshscope.reference_trainer.config.config import ModelConfig
from meshscope.reference_trainer.config.parallel_config import MoeConfig
from meshscope.reference_trainer.model.model import Stage, StagePart
from meshscope.reference_trainer.model.moe import ExpertSplit
from meshscope.reference_trainer.model.pace import NoPace
from meshscope.reference_trainer.planning.parameter_counts import parameter_count

CONFIG = ModelConfig(layers=3, hidden=16, ffn=48, heads=2, vocab=40, seq_len=8)


def stage(layers, comm, group, *, first=False, last=False, seed=1):
    """Return one stage."""
    part = StagePart(layers=layers, first=first, last=last)
    return Stage(CONFIG, part, seed=seed, tp=group, comm=comm, runner=NoPace())


def test_stages_in_a_row_compute_what_one_stage_computes(comm, alone):
    """Fails if a layer's weights depend on the split, or a stage drops a part."""
    whole = stage(range(3), comm, alone, first=True, last=True)
    begin = stage(range(2), comm, alone, first=True)
    end = stage(range(2, 3), comm, alone, last=True)
    ids = torch.randint(CONFIG.vocab, (2, CONFIG.seq_len))
    assert torch.equal(end(begin(ids)), whole(ids))


def test_layers_and_seeds_have_weights_of_their_own(comm, alone):
    """Fails if all layers start equal, or the seed has no effect."""
    first, second = stage(range(2), comm, alone).blocks
    other = stage(range(1), comm, alone, seed=2).blocks[0]
    assert not torch.equal(first.qkv.weight, second.qkv.weight)
    assert not torch.equal(first.qkv.weight, other.qkv.weight)


def test_a_token_does_not_see_its_future(comm, alone):
    """Fails if attention is not causal."""
    whole = stage(range(3), comm, alone, first=True, last=True)
    ids = torch.randint(CONFIG.vocab, (1, CONFIG.seq_len))
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % CONFIG.vocab
    torch.testing.assert_close(whole(ids)[:, :-1], whole(changed)[:, :-1])


def test_the_parameter_count_is_that_of_the_model(comm, alone):
    """Fails if the count that FLOPs are computed from is wrong."""
    whole = stage(range(3), comm, alone, first=True, last=True)
    assert parameter_count(CONFIG) == sum(p.numel() for p in whole.parameters())


def test_the_parameter_count_knows_experts(comm, alone):
    """Fails if a model with experts is counted as a dense one."""
    moe = MoeConfig(experts=4)
    experts = ExpertSplit(config=moe, group=alone, context=alone, loss_shares=1)
    part = StagePart(layers=range(3), first=True, last=True)
    whole = Stage(CONFIG, part, seed=1, tp=alone, comm=comm, runner=NoPace(), experts=experts)
    assert parameter_count(CONFIG, moe) == sum(p.numel() for p in whole.parameters())
