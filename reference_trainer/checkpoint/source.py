"""Which checkpoint a run goes on from, and whether it can.

Any layout, ZeRO stage, precision and schedule may follow any other: only the model and
what the optimizer keeps must be the same. What else differs from the run that saved, and
changes what is learnt, is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from meshscope.probe.schema.errors import ConfigError, MeshscopeError
from meshscope.probe.schema.message import message

from ..config.config import TrainerConfig
from ..config.sections import AFRESH, LATEST
from ..parallel.comm import Communicator
from ..parallel.mesh import Mesh
from .folder import (
    MANIFEST,
    CheckpointError,
    Manifest,
    find_given,
    find_latest,
    make_ready,
    read_manifest,
    step_path,
)

Emit = Callable[[str], None]
"""Takes one line for the user."""

Settings = dict[str, dict[str, Any]]
"""Values by section and name."""

_NONE = -1
_SECTIONS = ("layout", "model", "moe", "train", "data", "data_parallel", "memory")
_WITHOUT_EFFECT = frozenset(
    {
        "train.steps",
        "train.bucket_bytes",
        "train.replica_batch",
        "train.averages",
        "data.num_workers",
        "data.prefetch_factor",
        "memory.recompute",
        "memory.offload",
        "memory.account",
        "data_parallel.zero",
        "data_parallel.shard_ranks",
    }
)
"""Settings under which the same model is learnt from the same data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The checkpoint that a run goes on from."""

    path: Path | None = None
    """Its folder; None starts at step 0."""
    manifest: Manifest | None = None
    """What it says of itself."""

    @property
    def step(self) -> int:
        """Return the first step to do."""
        return 0 if self.manifest is None else self.manifest.step


def agree_on_source(
    config: TrainerConfig, mesh: Mesh, comm: Communicator, emit: Emit | None = None
) -> Source:
    """Return what to go on from; every rank must call this, before anything is built.

    Rank 0 looks for it, and removes what earlier runs did not finish to write. The others
    read what it found.

    Args:
        config: The run.
        mesh: This rank's groups.
        comm: Issues the exchanges.
        emit: Takes lines about what is resumed, on rank 0.

    Raises:
        CheckpointError: It is not there, is damaged, or another rank cannot read it.
        ConfigError: It is of another model.
    """
    source, error = Source(), None
    if not config.checkpoint.in_use:
        return source
    try:
        source = _look(config) if mesh.rank == 0 else source
    except MeshscopeError as refused:
        error = refused
    step = comm.share_from_rank_zero(source.step if source.path else _NONE, mesh.device)
    try:
        source = _follow(config, step) if mesh.rank else source
    except MeshscopeError as refused:
        error = refused
    failed = comm.sum_of_all(torch.tensor(float(error is not None), device=mesh.device)).item()
    if error is not None:
        raise error
    if failed:
        raise CheckpointError(
            message("refused.another_rank_failed"),
            where=config.checkpoint.dir or config.checkpoint.resume,
            remedy=message("advice.shared_file_system"),
        )
    if emit is not None and mesh.rank == 0 and source.manifest is not None:
        emit(f"resumed from {source.path} at step {source.step}")
        for line in changed_settings(source.manifest, config):
            emit(line)
    return source


def saved_settings(config: TrainerConfig) -> Settings:
    """Return what a checkpoint remembers of the configuration, in JSON's types."""
    settings: Settings = msgspec.to_builtins({s: getattr(config, s) for s in _SECTIONS})
    settings["train"]["averages"] = list(config.train.averages)
    return settings


def check_fit(manifest: Manifest, config: TrainerConfig) -> None:
    """Refuse a checkpoint whose tensors are not those of the run.

    Raises:
        ConfigError: The model differs, or the optimizer needs what was not saved.
    """
    here = saved_settings(config)
    fields = [f"model.{name}" for name in here["model"]] + ["moe.experts"]
    for where in fields:
        saved, now = _value(manifest.config, where), _value(here, where)
        if saved != now:
            raise ConfigError(
                message(
                    "refused.differs_from_checkpoint", now=now, saved=saved, step=manifest.step
                ),
                where=where,
                remedy=message("advice.as_in_checkpoint", saved=saved),
            )
    missing = set(here["train"]["averages"]) - set(_value(manifest.config, "train.averages") or ())
    if missing:
        saved = _value(manifest.config, "train.optimizer")
        raise ConfigError(
            message("refused.checkpoint_lacks", names=sorted(missing), saved=saved),
            where="train.momentum" if config.train.optimizer == "sgd" else "train.optimizer",
            remedy=message("advice.as_in_saved_run"),
        )


def changed_settings(manifest: Manifest, config: TrainerConfig) -> Iterator[str]:
    """Yield a line about each setting that was another one when the checkpoint was saved."""
    here = saved_settings(config)
    for section in _SECTIONS:
        for name, now in here[section].items():
            where = f"{section}.{name}"
            saved = _value(manifest.config, where)
            if saved != now and where not in _WITHOUT_EFFECT:
                yield f"  {where} is {now}, and was {saved}"


def _look(config: TrainerConfig) -> Source:
    """Find the checkpoint that the configuration asks for, and check it."""
    settings = config.checkpoint
    if settings.dir:
        make_ready(Path(settings.dir))
    if settings.resume == AFRESH or (settings.resume == LATEST and not settings.dir):
        return Source()
    if settings.resume == LATEST:
        path = find_latest(Path(settings.dir))
    else:
        path = find_given(Path(settings.resume))
    return Source() if path is None else _open(config, path)


def _follow(config: TrainerConfig, step: int) -> Source:
    """Open what rank 0 found."""
    settings = config.checkpoint
    if step == _NONE:
        return Source()
    given = Path(settings.dir if settings.resume == LATEST else settings.resume)
    return _open(config, given if (given / MANIFEST).exists() else step_path(given, step))


def _open(config: TrainerConfig, path: Path) -> Source:
    manifest = read_manifest(path)
    check_fit(manifest, config)
    return Source(path=path, manifest=manifest)


def _value(settings: Settings, where: str) -> Any:
    """Return one setting; None where the checkpoint does not know it."""
    section, _, name = where.partition(".")
    return settings.get(section, {}).get(name)
