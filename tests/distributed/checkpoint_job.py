"""What the tests of checkpoints run on the ranks of a small job."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from tests.distributed.trainer_job import run_ranks
from torch import Tensor

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.reference_trainer.checkpoint.checkpoint import Checkpoints
from meshscope.reference_trainer.checkpoint.folder import CheckpointError
from meshscope.reference_trainer.checkpoint.source import agree_on_source
from meshscope.reference_trainer.checkpoint.state import PartLoadPlanner, TensorPart
from meshscope.reference_trainer.config.config import ModelConfig, TrainConfig, TrainerConfig
from meshscope.reference_trainer.config.sections import CheckpointConfig
from meshscope.reference_trainer.faults.faults import FaultInjector
from meshscope.reference_trainer.faults.ground_truth import GroundTruth
from meshscope.reference_trainer.parallel.comm import Communicator, PerfectLinks
from meshscope.reference_trainer.parallel.mesh import Place, open_mesh
from meshscope.reference_trainer.parallel.weight_places import Box
from meshscope.reference_trainer.replica.assembly import build_parts
from meshscope.reference_trainer.run.train import train

MODEL = ModelConfig(layers=4, hidden=32, ffn=64, heads=4, vocab=64, seq_len=16)
STEPS = 4
SAVED = 2
"""Steps after which there is a checkpoint in the middle of a run."""
TRAIN = TrainConfig(
    steps=STEPS,
    global_batch=8,
    optimizer="adamw",
    learning_rate=0.01,
    bucket_bytes=4096,
    max_grad_norm=1.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of the things that the ranks do, one after the other."""

    name: str
    """Of its folder of results, and of its checkpoints."""
    config: TrainerConfig
    """The run."""
    after: str = ""
    """The job whose checkpoint it goes on from; empty: it starts afresh."""
    trains: bool = True
    """Whether it trains; otherwise it only loads, and saves at once what it has loaded."""


def run(sizes: dict[str, int], **sections: object) -> TrainerConfig:
    """Return a run of the small model over a mesh."""
    settings = {"model": MODEL, "train": TRAIN, **sections}
    return TrainerConfig(layout=ParallelLayout(**sizes), **settings)  # type: ignore[arg-type]


def run_jobs(jobs: Sequence[Job], out: Path) -> None:
    """Do some jobs, which need as many ranks each, in the same processes."""
    run_ranks(partial(_run_jobs, jobs=jobs), jobs[0].config, out)


def losses(out: Path, name: str) -> list[float]:
    """Return the losses of a job."""
    written = json.loads((out / name / "losses.json").read_text())
    found: list[float] = written["loss"]
    assert len(found) == STEPS - written["first_step"]
    return found


def saved(out: Path, name: str, step: int = SAVED) -> Path:
    """Return a checkpoint of a job."""
    return out / name / "saved" / f"step-{step:08d}"


@cache
def whole_tensors(path: Path) -> dict[str, Tensor]:
    """Return every tensor of a checkpoint, which is read once."""
    reader = dcp.FileSystemReader(path)
    parts = {}
    for name, saved_tensor in reader.read_metadata().state_dict_metadata.items():
        shape = tuple(saved_tensor.size)
        box = Box(shape, (0,) * len(shape), shape)
        parts[name] = TensorPart(box, 0, torch.full((saved_tensor.size.numel(),), torch.nan))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.load(dict(parts), storage_reader=reader, planner=PartLoadPlanner(), no_dist=True)
    return {name: part.view((0,) * len(part.shape)) for name, part in parts.items()}


def assert_same_tensors(one: Path, other: Path) -> None:
    """Compare two checkpoints bit for bit."""
    first, second = whole_tensors(one), whole_tensors(other)
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert not tensor.isnan().any(), name
        assert torch.equal(tensor, second[name]), name


def _run_jobs(config: TrainerConfig, place: Place, *, out: Path, jobs: Sequence[Job]) -> None:
    del config
    for number, job in enumerate(jobs):
        folder = out / job.name
        folder.mkdir(exist_ok=True)
        checkpoint = CheckpointConfig(
            dir=str(folder / "saved"),
            every=SAVED,
            mode=job.config.checkpoint.mode,
            resume=str(saved(out, job.after)) if job.after else "none",
        )
        own = replace(place, rendezvous=f"file://{folder}/meet{number}")
        one = replace(job.config, checkpoint=checkpoint)
        if job.trains:
            train(one, own, out=folder)
        else:
            _load_and_save(one, own)


def _load_and_save(config: TrainerConfig, place: Place) -> None:
    """Save what was loaded, on one rank."""
    with open_mesh(config.layout, config.device, place) as mesh:
        comm = Communicator(PerfectLinks())
        source = agree_on_source(config, mesh, comm)
        silent = FaultInjector((), mesh.layout, mesh.rank, GroundTruth(None, mesh.rank, ()))
        checkpoints = Checkpoints(config, mesh, build_parts(config, mesh, comm, silent))
        checkpoints.after_step(checkpoints.load(source))
        checkpoints.finish()


def fail_to_resume(config: TrainerConfig, place: Place, *, out: Path) -> None:
    """Try to train from a checkpoint that only rank 0 has, and note what each rank says."""
    folder = out / f"disk{place.rank}"
    own = replace(config, checkpoint=CheckpointConfig(dir=str(folder)))
    if place.rank == 0:
        shutil.copytree(out / "a" / "saved", folder)
    try:
        train(own, replace(place, rendezvous=f"file://{out}/resume"))
    except CheckpointError as error:
        (out / f"said{place.rank}").write_text(str(error))
