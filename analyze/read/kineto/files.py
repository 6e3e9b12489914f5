"""The large tables of one rank, written a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...tables.stored_tables import write_table
from .columns import DeviceLinks, StepWindows
from .event_columns import IntArray, RoledEvents
from .input_shapes import ShapeColumns
from .rows import (
    annotation_table,
    kernel_table,
    op_table,
    python_call_table,
    runtime_call_table,
)

_ROWS = 1 << 16
"""Device activities that become rows at once."""


class NameIds:
    """Ids of the names that tables use, in the order in which they are first used.

    Args:
        names: All names of the file, at the positions that are their codes.
    """

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._id = np.full(len(names), -1, dtype=np.int64)
        self._used: list[int] = []

    def of(self, codes: IntArray) -> npt.NDArray[np.intp]:
        """Return the id of each name by its code."""
        new = pa.array(codes[self._id[codes] < 0]).unique().to_numpy()
        self._id[new] = np.arange(len(self._used), len(self._used) + len(new))
        self._used += new.tolist()
        return self._id[codes].astype(np.intp)

    def used(self) -> pa.Array:
        """Return the names in the order of their ids."""
        return pa.array([self._names[code] for code in self._used], pa.string())


def write_rank_tables(
    rank: int,
    roles: RoledEvents,
    links: DeviceLinks,
    steps: StepWindows,
    file_of: dict[str, Path],
) -> pa.Array:
    """Write the tables that have a row for every event.

    Args:
        rank: Whose they are.
        roles: The events.
        links: What the device activities are linked to.
        steps: The steps of the rank.
        file_of: Where each table goes, by its name.

    Returns:
        The names that the tables refer to, at the positions that are their ids.

    Raises:
        OSError: A file cannot be written.
    """
    names = NameIds(roles.names)
    parts = {
        "kernel": _kernels(rank, roles, links, steps, names),
        "op": _operators(rank, roles, steps, names),
        "runtime_call": (
            runtime_call_table(rank, part, steps, names.of(part.name))
            for part in roles.launch.parts()
        ),
        "annotation": _annotations(rank, roles, steps, names),
        "python_call": iter(
            [python_call_table(rank, roles.python, steps, names.of(roles.python.name))]
            if len(roles.python)
            else []
        ),
    }
    # In this order, because it is the order of the ids.
    for table, rows in parts.items():
        write_table(file_of[table], table, rows)
    return names.used()


def _kernels(
    rank: int, roles: RoledEvents, links: DeviceLinks, steps: StepWindows, names: NameIds
) -> Iterator[pa.Table]:
    for first in range(0, len(roles.device), _ROWS):
        places = np.arange(first, min(first + _ROWS, len(roles.device)))
        device, own = roles.device.at(places), links.at(places)
        yield kernel_table(rank, device, own, steps.step_of(own.launch), names.of(device.name))


def _operators(
    rank: int, roles: RoledEvents, steps: StepWindows, names: NameIds
) -> Iterator[pa.Table]:
    first, shapes = 0, ShapeColumns(roles)
    for part in roles.operator.parts():
        arithmetic = shapes.of(part)
        yield op_table(rank, part, steps, names.of(part.name), arithmetic, first=first)
        first += len(part)


def _annotations(
    rank: int, roles: RoledEvents, steps: StepWindows, names: NameIds
) -> Iterator[pa.Table]:
    codes = np.concatenate([roles.host_note.name, roles.device_note.name])
    if len(codes):
        yield annotation_table(rank, roles, steps, names.of(codes))
