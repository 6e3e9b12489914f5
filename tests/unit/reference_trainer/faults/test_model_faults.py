"""A router that prefers one expert."""

from __future__ import annotations

import pytest
import torch

from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import ModelConfig, MoeConfig, TrainerConfig
from meshscope.reference_trainer.config.fault_plan import parse_fault, resolve
from meshscope.reference_trainer.faults.faults import FaultInjector
from meshscope.reference_trainer.faults.ground_truth import GroundTruth
from meshscope.reference_trainer.model.model import Stage, StagePart
from meshscope.reference_trainer.model.moe import ExpertSplit
from meshscope.reference_trainer.model.pace import NoPace

HOT = "hot_expert:expert=2,bias=10,start=1,stop=2,seed=1"


def test_a_hot_expert_gets_every_token_while_the_fault_is_on(comm, alone):
    """Fails if the fault does not reach the routers, or outlives its steps."""
    config = ModelConfig(layers=2, hidden=8, ffn=8, heads=2, vocab=16, seq_len=8)
    moe = MoeConfig(experts=4, experts_per_token=1)
    experts = ExpertSplit(config=moe, group=alone, context=alone, loss_shares=1)
    part = StagePart(layers=range(2), first=True, last=True)
    stage = Stage(config, part, seed=1, tp=alone, comm=comm, runner=NoPace(), experts=experts)
    fault = resolve(parse_fault(HOT), ParallelLayout(), 1)
    injector = FaultInjector([fault], ParallelLayout(), 0, GroundTruth(None, 0, (fault,)))
    injector.attach(stage)
    tokens = torch.randn(2, 8, 8)
    shares = []
    for step in range(3):
        injector.begin_step(step)
        chosen = [block.mlp._route(tokens).argmax(dim=-1) for block in stage.blocks]
        shares.append(torch.stack(chosen).eq(2).float().mean().item())
    assert shares[1] == 1.0
    assert max(shares[0], shares[2]) < 0.8


def test_a_model_without_that_expert_refuses_the_fault():
    """Fails if a fault is promised that cannot happen."""
    with pytest.raises(ConfigError, match=r"^fault hot_expert: expert = 2 .*set moe\.experts"):
        TrainerConfig(faults=(parse_fault(HOT),), moe=MoeConfig(experts=2, experts_per_token=1))
