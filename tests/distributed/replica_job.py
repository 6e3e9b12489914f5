"""What the ranks of the tests of data parallelism do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from tests.distributed.trainer_job import plain_model, run_ranks
from torch import Tensor

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.config.config import TrainerConfig
from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import Mesh, Place, open_mesh
from meshscope.reference_trainer.replica.gradient_wire import (
    INT8_BLOCK,
    Bf16Wire,
    ExactWire,
    Int8Wire,
)
from meshscope.reference_trainer.run.data import global_batch
from meshscope.reference_trainer.run.train import train

_BF16_ROUNDOFF = 2.0**-8


class Run(NamedTuple):
    """Losses and gradient norms of every step."""

    losses: list[float]
    norms: list[float]


def mesh_run(config: TrainerConfig, out: Path) -> Run:
    """Train over the mesh."""
    run_ranks(train, config, out)
    written = json.loads((out / "losses.json").read_text())
    return Run(written["loss"], written["grad_norm"])


def plain_run(config: TrainerConfig) -> Run:
    """Train with nothing but autograd, torch's clipping and SGD, on whole batches."""
    model = plain_model(config)
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
            arrivals = [wire.all_reduce(whole), wire.reduce_scatter(both[mesh.rank], part.add_)]
            for arrival in arrivals:
                arrival.wait()
            assert ((whole - total).abs() <= bound).all()
            assert ((part - total[own]).abs() <= bound[own]).all()
            assert not torch.equal(whole, total.float()), "nothing was compressed"
        _check_bf16_buffers(mesh, comm, both, own)


def _check_bf16_buffers(mesh: Mesh, comm: Communicator, both: Tensor, own: slice) -> None:
    """Sum buffers that are bf16 themselves: they travel as they are, and one sum is rounded."""
    half = both.bfloat16()
    total, bound = half.double().sum(dim=0), _BF16_ROUNDOFF * half.double().abs().sum(dim=0)
    whole, part = half[mesh.rank].clone(), torch.zeros(len(total) // 2, dtype=torch.bfloat16)
    wire = ExactWire(mesh.dp, comm)
    for arrival in (wire.all_reduce(whole), wire.reduce_scatter(half[mesh.rank], part.copy_)):
        arrival.wait()
    assert ((whole - total).abs() <= bound).all()
    assert ((part - total[own]).abs() <= bound[own]).all()
    assert whole.dtype == part.dtype == torch.bfloat16
