"""A training run as the tests need it: over a mesh of processes, and with plain autograd."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from tests.distributed.forked_ranks import join_ranks, start_ranks
from torch import Tensor

from meshscope.reference_trainer.config.config import TrainerConfig
from meshscope.reference_trainer.faults.faults import FaultInjector
from meshscope.reference_trainer.faults.ground_truth import GroundTruth
from meshscope.reference_trainer.model.model import Block, Stage, StagePart
from meshscope.reference_trainer.model.moe import ExpertSplit, MoeMlp
from meshscope.reference_trainer.model.pace import NoPace
from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import Place, group_of_one, open_mesh
from meshscope.reference_trainer.replica.assembly import build_parts, own_tokens
from meshscope.reference_trainer.run.data import batches, global_batch
from meshscope.reference_trainer.run.train import train


def run_ranks(target: Callable[..., Any], config: TrainerConfig, out: Path) -> None:
    """Run ``target(config, place, out=out)`` as every rank of the mesh; all must succeed."""
    world_size = config.layout.world_size
    places = [
        Place(rank=rank, world_size=world_size, rendezvous=f"file://{out}/meet")
        for rank in range(world_size)
    ]
    ranks = start_ranks(partial(target, out=out), [(config, place) for place in places])
    assert join_ranks(ranks) == [0] * world_size


def mesh_losses(config: TrainerConfig, out: Path) -> list[float]:
    """Return the loss of every step of a run over the mesh."""
    run_ranks(train, config, out)
    return cast("list[float]", json.loads((out / "losses.json").read_text())["loss"])


def mesh_grads(
    config: TrainerConfig, out: Path, change: Callable[[Stage], None] | None = None
) -> list[dict[str, Tensor]]:
    """Return the reduced gradients of the first step, of each rank, by parameter.

    Args:
        config: The run, with one stage per rank.
        out: An empty folder.
        change: What to do to every stage before it trains.
    """
    run_ranks(partial(save_grads, change=change), config, out)
    return [torch.load(out / f"{rank}.pt") for rank in range(config.layout.world_size)]


def save_grads(
    config: TrainerConfig, place: Place, *, out: Path, change: Callable[[Stage], None] | None = None
) -> None:
    """Run forward and backward of the first step on one rank, and save its gradients."""
    with open_mesh(config.layout, config.device, place) as mesh:
        comm = Communicator(PerfectLinks())
        silent = FaultInjector((), mesh.layout, mesh.rank, GroundTruth(None, mesh.rank, ()))
        parts = build_parts(config, mesh, comm, silent)
        (stage,) = parts.stages
        if change is not None:
            change(stage)
        own = own_tokens(config, mesh, comm)
        ids, labels = next(batches(config, mesh.dp.position))
        parts.replica.start_step()
        parts.pipeline.step(ids[:, own], labels[:, own])
        parts.replica.finish()
        grads = {name: p.grad.clone() for name, p in stage.named_parameters()}
        torch.save(grads, out / f"{mesh.rank}.pt")


def plain_model(config: TrainerConfig) -> Stage:
    """Return the whole model on one rank."""
    torch.set_num_threads(1)
    experts = ExpertSplit(
        config=config.moe, group=group_of_one(0), context=group_of_one(0), loss_shares=1
    )
    model = Stage(
        config.model,
        StagePart(layers=range(config.model.layers), first=True, last=True),
        seed=config.train.seed,
        tp=group_of_one(0),
        comm=Communicator(PerfectLinks()),
        runner=NoPace(),
        experts=experts if config.moe.experts else None,
    )
    if config.model.tied:
        assert model.embedding is not None
        assert model.head is not None
        model.head.output = model.embedding.tokens
    return model


def plain_losses(config: TrainerConfig) -> list[float]:
    """Train with nothing but autograd and SGD on whole batches."""
    model = plain_model(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.train.learning_rate)
    losses = []
    for step in range(config.train.steps):
        loss = plain_loss(config, model, step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def plain_grads(
    config: TrainerConfig, change: Callable[[Stage], None] | None = None
) -> dict[str, Tensor]:
    """Return the gradients of the first step by parameter."""
    model = plain_model(config)
    if change is not None:
        change(model)
    plain_loss(config, model, 0).backward()
    return {name: cast("Tensor", p.grad) for name, p in model.named_parameters()}


def use_two_experts(stage: Stage) -> None:
    """Send every token to the first two experts of each block."""
    for block in stage.blocks:
        assert isinstance(block, Block)
        assert isinstance(block.mlp, MoeMlp)
        block.mlp.routing_bias[:2] = 50.0


def plain_loss(config: TrainerConfig, model: Stage, step: int) -> Tensor:
    """Return the loss of a step's whole batch."""
    ids, labels = global_batch(config, step)
    return torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
