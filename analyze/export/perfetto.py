"""The capture as a Chrome trace, which the Perfetto UI opens.

Format: "Trace Event Format" (Google, 2016): complete events ``X`` with times in
microseconds, metadata ``M``, flows ``s`` and ``f``. A rank is a process, named and
ordered by its place in the mesh (data, pipeline, tensor); its tracks are steps,
compute, host, communication by axis, and the streams of its device. Flows lead from
the member that came last to the others, and from a send to its receive.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import COMPUTE_KINDS, Axis

from ..communication import CommunicationEvents, communication_events
from ..steps import StepWindows, step_windows
from ..trace import Trace

_STEPS, _COMPUTE, _HOST, _AXES, _STREAMS = 1, 2, 3, 10, 100
"""Numbers of the tracks of a rank; axes and streams count on from theirs."""
_AXIS_NAMES = [axis.value for axis in Axis]
_NS_PER_US = 1000.0


def export_perfetto(trace: Trace, file: Path) -> int:
    """Write the analysed steps, gzip-ed if the name ends in ``.gz``; return the number of events.

    Events are made and written rank by rank. Times count from the first window.

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
        packed: Any = gzip.open(file, "wb", compresslevel=4)  # noqa: SIM115 - the caller closes it
        stream: IO[bytes] = packed
        return stream
    return file.open("wb")


def _write(stream: IO[bytes], parts: Iterator[list[dict[str, Any]]]) -> int:
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
) -> Iterator[list[dict[str, Any]]]:
    frame = events.frame
    for rank in windows.ranks.tolist():
        yield _names(trace, rank)
        yield _steps(windows, rank)
        yield _spans(trace, windows, rank)
        yield _communication(frame[frame["rank"] == rank])
        yield _kernels(trace, windows, rank)
    yield _flows(frame)


def _names(trace: Trace, rank: int) -> list[dict[str, Any]]:
    place, order = f"rank {rank}", rank
    if trace.layout is not None:
        at = trace.layout.coordinates(rank)
        place = f"dp{at['dp']} pp{at['pp']} tp{at['tp']} · rank {rank}"
        order = (at["dp"] * trace.layout.pp + at["pp"]) * trace.layout.tp + at["tp"]
    tracks = {_STEPS: "steps", _COMPUTE: "compute", _HOST: "host"}
    tracks |= {_AXES + at: f"{axis} communication" for at, axis in enumerate(_AXIS_NAMES)}
    names = [
        {"ph": "M", "pid": rank, "name": "process_name", "args": {"name": place}},
        {"ph": "M", "pid": rank, "name": "process_sort_index", "args": {"sort_index": order}},
    ]
    return names + [
        {"ph": "M", "pid": rank, "tid": track, "name": "thread_name", "args": {"name": name}}
        for track, name in tracks.items()
    ]


def _complete(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return events ``X`` from columns pid, tid, name, start_ns, dur_ns and arguments."""
    table = frame[["pid", "tid", "name"]].assign(
        ph="X", ts=frame["start_ns"] / _NS_PER_US, dur=frame["dur_ns"] / _NS_PER_US
    )
    arguments = frame.drop(columns=["pid", "tid", "name", "start_ns", "dur_ns"])
    rows = _records(table)
    # The format has an object for every event, so here there is no way around a loop.
    for row, given in zip(rows, _records(arguments), strict=False):
        row["args"] = given
    return rows


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    rows: Any = frame.to_dict("records")
    found: list[dict[str, Any]] = rows
    return found


def _steps(windows: StepWindows, rank: int) -> list[dict[str, Any]]:
    own = windows.frame[windows.frame["rank"] == rank]
    return _complete(
        pd.DataFrame(
            {
                "pid": rank,
                "tid": _STEPS,
                "name": "step " + own["step"].astype(str),
                "start_ns": own["start_ns"],
                "dur_ns": own["end_ns"] - own["start_ns"],
            }
        )
    )


def _spans(trace: Trace, windows: StepWindows, rank: int) -> list[dict[str, Any]]:
    spans = trace.frame("span")
    own = windows.select(spans[spans["rank"] == rank])
    kind = own["kind"].astype(str)
    compute = kind.isin([one.value for one in COMPUTE_KINDS])
    number = own["microbatch"].astype(str).where(own["microbatch"] >= 0, "")
    return _complete(
        pd.DataFrame(
            {
                "pid": rank,
                "tid": np.where(compute, _COMPUTE, _HOST),
                "name": (kind + " " + number).str.strip(),
                "start_ns": windows.shifted(own["step"], own["start_ns"]),
                "dur_ns": own["dur_ns"],
                "stage": own["stage"],
                "chunk": own["chunk"],
            }
        )
    )


def _communication(own: pd.DataFrame) -> list[dict[str, Any]]:
    begin = own["start_ns"].where(~own["host"], own["wait_start_ns"].fillna(own["start_ns"]))
    end = own["end_ns"].fillna(own["start_ns"])
    return _complete(
        pd.DataFrame(
            {
                "pid": own["rank"],
                "tid": _AXES + own["axis"].map(_AXIS_NAMES.index),
                "name": own["kind"] + own["link"].where(own["link"] == "", " " + own["link"]),
                "start_ns": begin,
                "dur_ns": (end - begin).clip(lower=0),
                "group": own["group_id"],
                "size_bytes": own["size_bytes"],
                "wire_us": own["wire_ns"] / _NS_PER_US,
            }
        )
    )


def _kernels(trace: Trace, windows: StepWindows, rank: int) -> list[dict[str, Any]]:
    kernels = trace.frame("kernel")
    own = windows.select(kernels[kernels["rank"] == rank])
    if own.empty:
        return []
    names = trace.frame("name")
    known = names[names["rank"] == rank].set_index("name_id")["name"]
    streams, tracks = np.unique(own["stream"].to_numpy(), return_inverse=True)
    titles = [
        {
            "ph": "M",
            "pid": rank,
            "tid": _STREAMS + at,
            "name": "thread_name",
            "args": {"name": f"stream {stream}"},
        }
        for at, stream in enumerate(streams.tolist())
    ]
    return titles + _complete(
        pd.DataFrame(
            {
                "pid": rank,
                "tid": _STREAMS + tracks,
                "name": own["name_id"].map(known).fillna("unknown"),
                "start_ns": windows.shifted(own["step"], own["start_ns"]),
                "dur_ns": own["dur_ns"],
                "category": own["category"].astype(str),
            }
        )
    )


def _flows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return an arrow from the last to come, or the sender, to every other member."""
    if frame.empty:
        return []
    shared = frame.groupby("join")["rank"].transform("size") > 1
    rows = frame[shared].assign(end=frame["end_ns"].fillna(frame["start_ns"]))
    rows = rows.sort_values(["join", "is_send", "start_ns"])
    is_source = ~rows.duplicated("join", keep="last")
    source, target = rows[is_source].set_index("join"), rows[~is_source]
    begin = source.loc[target["join"]]
    identity = np.arange(len(target))
    return _arrows("s", begin, begin["start_ns"], identity) + _arrows(
        "f", target, target["end"], identity
    )


def _arrows(
    phase: str, rows: pd.DataFrame, time_ns: pd.Series, identity: np.ndarray
) -> list[dict[str, Any]]:
    table = pd.DataFrame(
        {
            "ph": phase,
            "id": identity,
            "pid": rows["rank"].to_numpy(),
            "tid": _AXES + rows["axis"].map(_AXIS_NAMES.index).to_numpy(),
            "ts": time_ns.to_numpy() / _NS_PER_US,
            "name": rows["kind"].to_numpy(),
            "cat": "communication",
        }
    )
    if phase == "f":
        table["bp"] = "e"
    return _records(table)
