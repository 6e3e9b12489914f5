"""Reads losses without stopping the device, prints them and keeps them.

A loss on a GPU is copied in the background and read once the copy has
arrived, one or two steps later; reading it at once would make the host wait
for the whole step and change what is measured.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..out_files import start_file, written


class _Entry(NamedTuple):
    """A loss on its way to the host."""

    step: int
    values: Tensor
    arrived: torch.cuda.Event | None
    dur_ns: int


class LossReport:
    """Losses of the run, in step order.

    Args:
        emit: Takes one line of text per step; None prints nothing.
        first_step: The step of the first loss.

    Attributes:
        losses: Losses that have been read so far.
        grad_norms: Norms of the gradients that have been read so far.
    """

    def __init__(self, emit: Callable[[str], None] | None, *, first_step: int = 0) -> None:
        self.losses: list[float] = []
        self.grad_norms: list[float] = []
        self._emit = emit
        self._first_step = first_step
        self._entries: deque[_Entry] = deque()

    def add(self, step: int, loss: Tensor, dur_ns: int, *, grad_norm: Tensor | None = None) -> None:
        """Take the loss of a step, a scalar, and its duration; report what has arrived."""
        arrived = None
        # One tensor, so that loss and norm arrive together.
        values = torch.stack([loss] if grad_norm is None else [loss, grad_norm])
        if values.is_cuda:
            values = values.to("cpu", non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        self._entries.append(_Entry(step, values, arrived, dur_ns))
        while self._entries and _is_there(self._entries[0]):
            self._read(self._entries.popleft())

    def finish(self) -> None:
        """Report the rest, waiting for it."""
        while self._entries:
            entry = self._entries.popleft()
            if entry.arrived is not None:
                entry.arrived.synchronize()
            self._read(entry)

    def begin(self, path: Path) -> None:
        """Make the file, without a loss: that it cannot be written shows before the training.

        Raises:
            ConfigError: It cannot be written.
        """
        start_file(path, self._text())

    def write(self, path: Path) -> None:
        """Write the losses as JSON.

        Raises:
            OutputError: They cannot be written.
        """
        with written(path):
            path.write_text(self._text(), encoding="utf-8")

    def _text(self) -> str:
        found: dict[str, object] = {"first_step": self._first_step, "loss": self.losses}
        if self.grad_norms:
            found["grad_norm"] = self.grad_norms
        return json.dumps(found) + "\n"

    def _read(self, entry: _Entry) -> None:
        loss, *norm = entry.values.tolist()
        self.losses.append(loss)
        self.grad_norms += norm
        if self._emit is not None:
            text = f"step {entry.step:4d}  loss {loss:.6f}  {entry.dur_ns / 1e6:8.1f} ms"
            self._emit(text + "".join(f"  grad norm {value:.4f}" for value in norm))


def _is_there(entry: _Entry) -> bool:
    return entry.arrived is None or bool(entry.arrived.query())  # type: ignore[no-untyped-call]
