"""The capture as a Chrome trace, which the Perfetto UI opens.

Format: "Trace Event Format" (Google, 2016): complete events ``X`` with times in
microseconds, metadata ``M``, flows ``s`` and ``f``. A rank is a process, named and
ordered by its place in the mesh (data, pipeline, tensor); its tracks are steps,
compute, host, communication by axis, and, where a profiler ran, the streams of its
devices and the threads of its host. Flows lead from the member that came last to the
others, and from a send to its receive.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pandas as pd

from ...align.communication.events import CommunicationEvents, communication_events
from ...align.steps.windows import StepWindows, step_windows
from ...tables.trace import Trace
from .perfetto_rank import (
    AXES,
    AXIS_NAMES,
    NS_PER_US,
    Record,
    communication_slices,
    communication_times,
    profiled_events,
    rank_slices,
    records,
    track_names,
)

_MESH = ("dp", "pp", "tp", "cp", "ep")
"""Axes of the mesh, those that group first in front."""
_COMPRESSION = 4
"""A faster level than the default, for a somewhat larger file."""


def export_perfetto(trace: Trace, file: Path) -> int:
    """Write a capture, gzip-ed if the name ends in ``.gz``; return the number of events.

    Spans and communication are those of the analysed steps; of what a profiler recorded
    everything is written, in steps or not. Events are made and written rank by
    rank. Times count from the first window.

    Raises:
        OSError: The file cannot be written.
    """
    windows = step_windows(trace)
    events = communication_events(trace, windows)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.part")
    try:
        with _open(draft, compress=file.suffix == ".gz") as stream:
            count = _write(stream, _parts(trace, windows, events))
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    return count


def _open(file: Path, *, compress: bool) -> IO[bytes]:
    if compress:
        packed: Any = gzip.open(file, "wb", compresslevel=_COMPRESSION)  # noqa: SIM115 - the caller closes it
        stream: IO[bytes] = packed
        return stream
    return file.open("wb")


def _write(stream: IO[bytes], parts: Iterator[list[Record]]) -> int:
    count = 0
    stream.write(b'{"displayTimeUnit":"ns","traceEvents":[')
    for part in parts:
        if part:
            stream.write(b"," if count else b"")
            stream.write(msgspec.json.encode(part, enc_hook=lambda scalar: scalar.item())[1:-1])
            count += len(part)
    stream.write(b"]}")
    return count


def _parts(
    trace: Trace, windows: StepWindows, events: CommunicationEvents
) -> Iterator[list[Record]]:
    of_rank = dict(iter(events.frame.groupby("rank")))
    place = _places(trace)
    for rank in trace.ranks:
        yield _titles(trace, rank, place[rank])
        yield rank_slices(trace, windows, rank)
        if rank in of_rank:
            yield communication_slices(of_rank[rank])
        yield from profiled_events(trace, windows, rank)
    yield _flows(events.frame)


def _places(trace: Trace) -> dict[int, int]:
    """Return where each rank stands in the order of data, pipeline and tensor coordinates."""
    return {rank: at for at, rank in enumerate(sorted(trace.ranks, key=lambda r: _place(trace, r)))}


def _place(trace: Trace, rank: int) -> tuple[int, ...]:
    coordinates = _coordinates(trace, rank)
    return (*(coordinates.get(axis, 0) for axis in _MESH), rank)


def _coordinates(trace: Trace, rank: int) -> Mapping[str, int]:
    if trace.layout is None or rank >= trace.layout.world_size:
        return {}
    return trace.layout.coordinates(rank)


def _titles(trace: Trace, rank: int, place: int) -> list[Record]:
    coordinates = _coordinates(trace, rank)
    shown = [
        f"{axis}{coordinates[axis]}"
        for axis in _MESH
        if axis in coordinates and (axis in _MESH[:3] or getattr(trace.layout, axis) > 1)
    ]
    name = f"{' '.join(shown)} · rank {rank}" if shown else f"rank {rank}"
    return [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": name}},
        {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": place}},
        *track_names(rank),
    ]


def _flows(frame: pd.DataFrame) -> list[Record]:
    """Return an arrow from the last to come, or the sender, to every other member."""
    if frame.empty:
        return []
    shared = frame.groupby("join")["rank"].transform("size") > 1
    begin_ns, end_ns = communication_times(frame)
    # A flow belongs to the slice around it, and one does not reach its own end.
    inside_ns = np.maximum(end_ns - 1, begin_ns)
    rows = frame.assign(begin_ns=begin_ns, inside_ns=inside_ns)[shared]
    rows = rows.sort_values(["join", "is_send", "start_ns"])
    is_source = ~rows.duplicated("join", keep="last")
    source, target = rows[is_source].set_index("join"), rows[~is_source]
    begin = source.loc[target["join"]]
    identity = np.arange(len(target))
    return _arrows("s", begin, begin["begin_ns"], identity) + _arrows(
        "f", target, target["inside_ns"], identity
    )


def _arrows(
    phase: str, rows: pd.DataFrame, time_ns: pd.Series, identity: np.ndarray
) -> list[Record]:
    table = pd.DataFrame(
        {
            "ph": phase,
            "id": identity,
            "pid": rows["rank"].to_numpy(),
            "tid": AXES + rows["axis"].astype(object).map(AXIS_NAMES.index).to_numpy(),
            "ts": time_ns.to_numpy() / NS_PER_US,
            "name": rows["kind"].to_numpy(),
            "cat": "communication",
        }
    )
    if phase == "f":
        table["bp"] = "e"
    return records(table)
