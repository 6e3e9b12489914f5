"""The linked events of one rank as rows of its tables, of which the large ones are written a part at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from meshscope.probe.schema.imported_tables import PYTHON_CALL
from meshscope.probe.schema.tables import (
    ANNOTATION,
    KERNEL,
    NAME,
    OP,
    RUNTIME_CALL,
    SPAN,
    STEP,
)

from ...tables.stored_tables import write_table
from .columns import DeviceLinks, StepWindows, first_match, take_or
from .event_columns import CATEGORIES, INTERFACES, Events, IntArray, RoledEvents
from .input_shapes import ShapeColumns
from .spans import recognised_spans

_NameIds = npt.NDArray[np.intp]
_HOST = -1


def kernel_table(
    rank: int, device: Events, links: DeviceLinks, step: IntArray, name_id: _NameIds
) -> pa.Table:
    """Return the device activities; those without a launch have a null there."""
    words = pa.array([category.value for category in CATEGORIES], pa.string())
    columns = {
        **_placed(rank, device, name_id),
        "step": step,
        "device": device.device,
        "stream": device.stream,
        "category": words.take(pa.array(device.category, pa.int32())),
        "correlation": device.correlation,
        "op_id": links.operator,
        "launch_ns": pa.array(links.launch, mask=~links.is_linked),
        "size_bytes": _known(device.size_bytes),
        "rate_bytes_per_s": pa.array(
            device.rate_bytes_per_s, mask=np.isnan(device.rate_bytes_per_s)
        ),
        "wait_stream": _known(device.wait_stream),
        "wait_correlation": _known(device.wait_correlation),
    }
    return KERNEL.conform(pa.table(columns))


def runtime_call_table(rank: int, calls: Events, steps: StepWindows, name_id: _NameIds) -> pa.Table:
    """Return the calls of the host into the runtime or driver of its device."""
    words = pa.array([interface.value for interface in INTERFACES], pa.string())
    columns = {
        **_placed(rank, calls, name_id),
        "step": steps.step_of(calls.start),
        "interface": pa.DictionaryArray.from_arrays(pa.array(calls.category, pa.int32()), words),
        "thread": calls.thread,
        "correlation": calls.correlation,
    }
    return RUNTIME_CALL.conform(pa.table(columns))


def op_table(
    rank: int,
    operator: Events,
    steps: StepWindows,
    name_id: _NameIds,
    arithmetic: Mapping[str, pa.Array] | None = None,
    *,
    first: int = 0,
) -> pa.Table:
    """Return CPU operators; the id of one is its place in the table, of which ``first`` come before."""
    columns = {
        **_placed(rank, operator, name_id),
        "step": steps.step_of(operator.start),
        "op_id": np.arange(first, first + len(operator)),
        "thread": operator.thread,
        **(arithmetic or {}),
    }
    return OP.conform(pa.table(columns))


def annotation_table(
    rank: int, roles: RoledEvents, steps: StepWindows, name_id: _NameIds
) -> pa.Table:
    """Return the annotations of the host, then those that the profiler carried to its devices."""
    host, device = roles.host_note, roles.device_note
    of_host, of_device = np.split(name_id, [len(host)])
    parts = [
        {
            **_placed(rank, host, of_host),
            "step": steps.step_of(host.start),
            "device": np.full(len(host), _HOST),
            "thread": host.thread,
        },
        {
            **_placed(rank, device, of_device),
            "step": steps.step_of(_issue(device, roles)),
            "device": device.device,
            "thread": device.thread,
        },
    ]
    tables = [ANNOTATION.conform(pa.table(part)) for part in parts]
    return pa.concat_tables(tables).combine_chunks()


def python_call_table(rank: int, python: Events, steps: StepWindows, name_id: _NameIds) -> pa.Table:
    """Return the Python functions that ran for long."""
    columns = {
        **_placed(rank, python, name_id),
        "step": steps.step_of(python.start),
        "thread": python.thread,
    }
    return PYTHON_CALL.conform(pa.table(columns))


def span_table(rank: int, roles: RoledEvents, steps: StepWindows) -> pa.Table:
    """Return the annotations that mean a kind of span."""
    parts = []
    for kind, events in recognised_spans(roles):
        columns = {
            "rank": np.full(len(events), rank),
            "step": steps.step_of(_issue(events, roles)),
            "kind": pa.array([kind.value] * len(events), pa.string()),
            **{name: np.full(len(events), -1) for name in ("stage", "chunk", "microbatch")},
            "start_ns": events.start,
            "dur_ns": events.dur,
        }
        parts.append(SPAN.conform(pa.table(columns)))
    return pa.concat_tables(parts).unify_dictionaries().combine_chunks()


def name_table(rank: int, names: pa.Array) -> pa.Table:
    """Return the texts of a rank; the id of one is its place."""
    columns = {"rank": np.full(len(names), rank), "name_id": np.arange(len(names)), "name": names}
    return NAME.conform(pa.table(columns))


def step_table(rank: int, steps: StepWindows) -> pa.Table:
    """Return the steps of a rank."""
    columns = {
        "rank": np.full(len(steps.number), rank),
        "step": steps.number,
        "start_ns": steps.start,
        "dur_ns": steps.end - steps.start,
    }
    return STEP.conform(pa.table(columns))


def _placed(rank: int, events: Events, name_id: _NameIds) -> dict[str, object]:
    """Return the columns that all events have."""
    return {
        "rank": np.full(len(events), rank, dtype=np.int32),
        "name_id": name_id.astype(np.int32),
        "start_ns": events.start,
        "dur_ns": events.dur,
        "position": events.position,
    }


def _issue(notes: Events, roles: RoledEvents) -> IntArray:
    """Return when the host began each annotation; one on a device has the time of its host twin."""
    host = roles.host_note
    return take_or(
        host.start, first_match(notes.external_id, host.external_id, host.start), notes.start
    )


def _known(values: IntArray) -> pa.Array:
    """Return values of which a negative one means that there is none."""
    return pa.array(values, mask=values < 0)


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
