"""What the ranks of the tests of schedules do."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from meshscope import probe
from meshscope.reference_trainer.config.config import TrainerConfig
from meshscope.reference_trainer.faults.faults import FaultInjector
from meshscope.reference_trainer.faults.ground_truth import GroundTruth
from meshscope.reference_trainer.model.model import Stage
from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import Place, open_mesh
from meshscope.reference_trainer.replica.assembly import build_parts
from meshscope.reference_trainer.replica.pipeline_parallel import own_stages, stage_part
from meshscope.reference_trainer.run.data import global_batch
from meshscope.reference_trainer.run.train import train


def first_gradients(config: TrainerConfig, place: Place, out: Path) -> None:
    """Write the gradients of the first step by parameter name in the whole model."""
    with open_mesh(config.layout, config.device, place) as mesh:
        comm = Communicator(PerfectLinks())
        injector = FaultInjector((), mesh.layout, mesh.rank, GroundTruth(None, mesh.rank, ()))
        parts = build_parts(config, mesh, comm, injector)
        parts.replica.start_step()
        parts.pipeline.step(*global_batch(config, 0))
        parts.replica.finish()
        found = {}
        for index, stage in zip(own_stages(config, mesh.pp.position), parts.stages, strict=True):
            first_layer = stage_part(config, index).layers.start
            found |= gradients_by_name(stage, first_layer)
        torch.save(found, out / f"gradients{mesh.rank}.pt")


def train_and_keep_gradients(config: TrainerConfig, rank: int, out: Path) -> None:
    """Run one rank: the training, then the first step once more for its gradients."""
    for name, work in (("train", train), ("gradients", first_gradients)):
        place = Place(
            rank=rank, world_size=config.layout.world_size, rendezvous=f"file://{out}/{name}"
        )
        work(config, place, out=out)


def gradients_by_name(stage: Stage, first_layer: int) -> dict[str, torch.Tensor]:
    """Return the gradients of a stage, with blocks counted in the whole model."""
    found = {}
    for name, parameter in stage.named_parameters():
        part, _, rest = name.partition(".")
        if part == "blocks":
            position, _, rest = rest.partition(".")
            rest = f"{int(position) + first_layer}.{rest}"
        assert parameter.grad is not None, name
        found[f"{part}.{rest}"] = parameter.grad.clone()
    return found


def train_only(config: TrainerConfig, rank: int, out: Path) -> None:
    """Run one rank of the training."""
    world_size = config.layout.world_size
    train(config, Place(rank=rank, world_size=world_size, rendezvous=f"file://{out}/meet"), out=out)


def train_under_the_probe(config: TrainerConfig, rank: int, out: Path) -> None:
    """Run one rank of the training and record it."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(config.layout.world_size)}
    probe.attach(out / "run")
    train_only(config, rank, out)
    probe.detach()
