"""What the ranks of the tests of data parallelism do."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis
from meshscope.reference_trainer.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.config import TrainerConfig
from meshscope.reference_trainer.data import global_batch
from meshscope.reference_trainer.gradient_wire import INT8_BLOCK, Bf16Wire, Int8Wire
from meshscope.reference_trainer.mesh import MeshGroup, Place, open_mesh
from meshscope.reference_trainer.model import Stage, StagePart
from meshscope.reference_trainer.pace import NoPace
from meshscope.reference_trainer.train import train

HERE = "tests.distributed.replica_job"
_BF16_ROUNDOFF = 2.0**-8


class Run(NamedTuple):
    """Losses and gradient norms of every step."""

    losses: list[float]
    norms: list[float]


def run_ranks(target: Callable[..., Any], config: TrainerConfig, out: Path) -> None:
    """Run ``target(config, place, out=out)`` as every rank of the mesh; all must succeed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["meshscope.reference_trainer.train", HERE])
    world_size = config.layout.world_size
    ranks = [
        context.Process(
            target=target,
            args=(config, Place(rank=rank, world_size=world_size, rendezvous=f"file://{out}/meet")),
            kwargs={"out": out},
        )
        for rank in range(world_size)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(timeout=60)
    codes = [process.exitcode for process in ranks]
    for process in ranks:
        process.kill()
    assert codes == [0] * world_size


def mesh_run(config: TrainerConfig, out: Path) -> Run:
    """Train over the mesh."""
    run_ranks(train, config, out)
    written = json.loads((out / "losses.json").read_text())
    return Run(written["loss"], written["grad_norm"])


def plain_run(config: TrainerConfig) -> Run:
    """Train with nothing but autograd, torch's clipping and SGD, on whole batches."""
    torch.set_num_threads(1)
    alone = MeshGroup(axis=Axis.TP, ranks=(0,), position=0, handle=cast("Any", None))
    model = Stage(
        config.model,
        StagePart(layers=range(config.model.layers), first=True, last=True),
        seed=config.train.seed,
        tp=alone,
        comm=Communicator(PerfectLinks()),
        runner=NoPace(),
    )
    if config.model.tied:
        model.head.output = model.embedding.tokens
    optimizer = torch.optim.SGD(model.parameters(), lr=config.train.learning_rate)
    run = Run([], [])
    for step in range(config.train.steps):
        ids, labels = global_batch(config, step)
        loss = torch.nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.max_grad_norm)
        optimizer.step()
        run.losses.append(loss.item())
        run.norms.append(norm.item())
    return run


def check_wires(config: TrainerConfig, place: Place, *, out: Path) -> None:
    """Sum random gradients in every compressed form, and hold the errors to the stated bounds."""
    del out
    with open_mesh(ParallelLayout(dp=2), config.device, place) as mesh:
        comm = Communicator(PerfectLinks())
        size = 4 * INT8_BLOCK
        both = torch.randn(2, size, generator=torch.Generator().manual_seed(1)).pow(5)
        total, magnitude = both.double().sum(dim=0), both.abs().sum(dim=0)
        largest = both.view(2, -1, INT8_BLOCK).abs().amax(dim=2).sum(dim=0)
        bounds = {
            Bf16Wire: ((1 + _BF16_ROUNDOFF) ** 2 - 1) * magnitude,
            Int8Wire: (largest / 254).repeat_interleave(INT8_BLOCK) + 2.0**-22 * magnitude,
        }
        own = slice(mesh.rank * size // 2, (mesh.rank + 1) * size // 2)
        for make, bound in bounds.items():
            wire = make(mesh.dp, comm)
            whole, part = both[mesh.rank].clone(), torch.zeros(size // 2)
            arrivals = [wire.all_reduce(whole), wire.reduce_scatter(both[mesh.rank], part)]
            for arrival in arrivals:
                arrival.wait()
            assert ((whole - total).abs() <= bound).all()
            assert ((part - total[own]).abs() <= bound[own]).all()
            assert not torch.equal(whole, total.float()), "nothing was compressed"
