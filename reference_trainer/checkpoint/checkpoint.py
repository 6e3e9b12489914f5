"""Saves the training, and goes on from what was saved, on the same mesh or another.

``torch.distributed.checkpoint`` writes what ``checkpoint_state.py`` describes: each rank
the boxes that only it holds, and its share of those that several hold. An asynchronous
save copies this rank's parts to host memory, which is what the training waits for, and
writes them behind the next steps, in a process group of its own::

    training   | step 40 | copy |  step 41  |  step 42  | ...
    writing                     | plan, write, rename |

The next save waits for the previous one. The waits, the copies and all of a synchronous
save are a ``checkpoint`` span of the probe.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from meshscope import probe
from meshscope.probe.schema.message import message

from ..config.config import TrainerConfig
from ..parallel.mesh import Mesh
from ..replica.assembly import Parts
from .folder import CheckpointError, partial_path, publish, step_path
from .source import Source, saved_settings
from .state import PartLoadPlanner, PartSavePlanner, State, prepare_to_load, training_state


class Checkpoints:
    """Saves and loads what this rank trains.

    Args:
        config: The run.
        mesh: This rank's groups; every rank must come here, as a group is made.
        parts: What this rank trains with.
    """

    def __init__(self, config: TrainerConfig, mesh: Mesh, parts: Parts) -> None:
        self._config = config
        self._mesh = mesh
        self._parts = parts
        self._root = Path(config.checkpoint.dir)
        self._copies = _HostCopies(mesh.device)
        self._pending: Future[None] | None = None
        self._group: dist.ProcessGroup | None = None
        if config.checkpoint.in_use:
            # What another thread exchanges must not meet the collectives of the training.
            self._group = dist.new_group(backend="gloo", group_desc="checkpoint")

    def load(self, source: Source) -> int:
        """Load what the run goes on from, and return the first step to do.

        Raises:
            CheckpointError: It cannot be read.
        """
        if source.path is None:
            return 0
        prepare_to_load(self._config, self._parts.replica, source.step)
        try:
            load(
                dict(self._state()),
                storage_reader=FileSystemReader(source.path),
                planner=PartLoadPlanner(),
                process_group=self._group,
            )
        except CheckpointException as error:
            raise CheckpointError(
                message("refused.checkpoint_not_loaded", reason=_first_reason(error)),
                where=str(source.path),
                remedy=message("advice.other_checkpoint"),
            ) from error
        self._parts.replica.publish()
        return source.step

    def after_step(self, steps_done: int) -> None:
        """Save if it is time to.

        Raises:
            CheckpointError: This or the previous save failed.
        """
        if self._config.checkpoint.is_due(steps_done, self._config.train.steps):
            with probe.span("checkpoint"):
                self.finish()
                self._save(steps_done)

    def finish(self) -> None:
        """Return when what was saved is on disk under its name.

        Raises:
            CheckpointError: It could not be written.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def _state(self) -> State:
        parts = self._parts
        return training_state(
            self._config, self._mesh.pp.position, list(parts.stages), parts.replica
        )

    def _save(self, step: int) -> None:
        """Write everything, or start to."""
        in_background = self._config.checkpoint.mode == "async"
        settings: dict[str, Any] = {
            # What is on the host already needs no copy ahead.
            "storage_writer": FileSystemWriter(
                partial_path(self._root, step),
                per_thread_copy_ahead=0 if in_background else 10_000_000,
            ),
            "planner": PartSavePlanner(),
            "process_group": self._group,
        }
        state = dict(self._state())
        if in_background:
            written = async_save(state, async_stager=self._copies, **settings)
            assert isinstance(written, Future)  # the copies are made before it returns
            self._pending = Future()
            written.add_done_callback(partial(self._written, step, self._pending))
            return
        try:
            save(state, **settings)
        except CheckpointException as error:
            raise self._failed(step, error) from error
        self._publish(step)

    def _written(self, step: int, published: Future[None], written: Future[Any]) -> None:
        """Publish what another thread has written, and pass on what went wrong."""
        error = written.exception()
        try:
            if error is not None:
                raise self._failed(step, error)
            self._publish(step)
        except CheckpointError as failed:
            published.set_exception(failed)
        else:
            published.set_result(None)

    def _publish(self, step: int) -> None:
        """Give what all ranks have written its name, on the one that is told of them."""
        if self._mesh.rank == 0:
            settings = saved_settings(self._config)
            publish(self._root, step, settings, keep=self._config.checkpoint.keep)

    def _failed(self, step: int, error: BaseException) -> CheckpointError:
        return CheckpointError(
            message("refused.not_written", reason=_first_reason(error)),
            where=str(step_path(self._root, step)),
            remedy=message("advice.room_for_checkpoint"),
        )


class _HostCopies(AsyncStager):
    """Copies a state to host memory, into the same buffers every time.

    On a GPU the copies are queued behind the step's work, and the thread that writes
    waits for them; the training's host thread does not.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._buffers: dict[str, Tensor] = {}

    @property
    def should_synchronize_after_execute(self) -> bool:
        """Return False: nothing is left to wait for."""
        return False

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return the same parts with their values on the host."""
        arrived = torch.cuda.Event() if self._on_gpu else None  # type: ignore[no-untyped-call]
        staged = {}
        for name, part in state_dict.items():
            if name not in self._buffers:
                self._buffers[name] = torch.empty(
                    part.values.shape, dtype=part.values.dtype, pin_memory=self._on_gpu
                )
            buffer = self._buffers[name].copy_(part.values, non_blocking=True)
            staged[name] = part.copied_to(buffer, arrived)
        if arrived is not None:
            arrived.record()
        return staged

    def synchronize_staging(self) -> None:
        """Return: nothing is left to wait for."""
        return

    def close(self) -> None:
        """Keep the buffers: they live as long as the run."""


def _first_reason(error: BaseException) -> str:
    """Return the first sentence of what the first rank that failed says."""
    if isinstance(error, CheckpointException):
        error = next((reason for reason, _ in error.failures.values()), error)
    text = f"{error}" or type(error).__name__
    return text.partition("\n")[0].partition(". ")[0]
