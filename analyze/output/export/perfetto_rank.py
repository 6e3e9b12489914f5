"""The timeline of one rank as slices: steps, spans, communication, and what a profiler recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from meshscope.probe.schema.terms import COMPUTE_KINDS, Axis

from ...align.steps.windows import StepWindows
from ...tables.trace import Trace

Record = dict[str, Any]
"""One trace event."""
NS_PER_US = 1000.0
AXES = 10
"""Number of the first communication track; axes count on from it."""
AXIS_NAMES = [axis.value for axis in Axis]
_STEPS, _COMPUTE, _HOST = 1, 2, 3


def track_names(rank: int) -> list[Record]:
    """Return the titles of the tracks of this module."""
    tracks = {_STEPS: "steps", _COMPUTE: "compute", _HOST: "host"}
    tracks |= {AXES + at: f"{axis} communication" for at, axis in enumerate(AXIS_NAMES)}
    return [track_title(rank, track, name) for track, name in tracks.items()]


def track_title(rank: int, track: int, name: str) -> Record:
    """Return the metadata that names a track."""
    return {"ph": "M", "pid": rank, "tid": track, "name": "thread_name", "args": {"name": name}}


def rank_slices(trace: Trace, windows: StepWindows, rank: int) -> list[Record]:
    """Return the analysed steps and their spans."""
    return _steps(windows, rank) + _spans(trace, windows, rank)


def communication_slices(own: pd.DataFrame) -> list[Record]:
    """Return the communication of one rank; that of a host begins where the host waits."""
    begin_ns, end_ns = communication_times(own)
    own = own.astype(dict.fromkeys(("axis", "kind", "link", "group_id"), object))
    return slices(
        pd.DataFrame(
            {
                "pid": own["rank"],
                "tid": AXES + own["axis"].map(AXIS_NAMES.index),
                "name": own["kind"] + own["link"].where(own["link"] == "", " " + own["link"]),
                "start_ns": begin_ns,
                "dur_ns": end_ns - begin_ns,
                "group": own["group_id"],
                "size_bytes": own["size_bytes"],
                "wire_us": own["wire_ns"] / NS_PER_US,
            }
        )
    )


def communication_times(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return begin and end of each slice, ns; an end that nobody saw is the begin."""
    begin_ns = frame["start_ns"].where(~frame["host"], frame["wait_start_ns"])
    begin_ns = begin_ns.fillna(frame["start_ns"])
    return begin_ns, frame["end_ns"].fillna(begin_ns).clip(lower=begin_ns)


def slices(frame: pd.DataFrame) -> list[Record]:
    """Return events ``X`` from columns pid, tid, name, start_ns, dur_ns and arguments.

    An argument that is not known is left out.
    """
    table = frame[["pid", "tid", "name"]].assign(
        ph="X", ts=frame["start_ns"] / NS_PER_US, dur=frame["dur_ns"] / NS_PER_US
    )
    arguments = frame.drop(columns=["pid", "tid", "name", "start_ns", "dur_ns"])
    known = arguments.notna().to_numpy()
    rows = records(table)
    # The format has an object for every event, so here there is no way around a loop.
    for row, given, is_known in zip(rows, records(arguments), known, strict=False):
        row["args"] = {key: given[key] for key, keep in zip(given, is_known, strict=True) if keep}
    return rows


def records(frame: pd.DataFrame) -> list[Record]:
    """Return the rows as dicts."""
    rows: Any = frame.to_dict("records")
    found: list[Record] = rows
    return found


def _steps(windows: StepWindows, rank: int) -> list[Record]:
    own = windows.frame[windows.frame["rank"] == rank]
    return slices(
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


def _spans(trace: Trace, windows: StepWindows, rank: int) -> list[Record]:
    own = windows.select(trace.rank_frame("span", rank))
    kind = own["kind"].astype(str)
    compute = kind.isin([one.value for one in COMPUTE_KINDS])
    number = own["microbatch"].astype(str).where(own["microbatch"] >= 0, "")
    return slices(
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


_STREAMS, _STREAM_NOTES, _THREADS = 10_000, 20_000, 30_000
"""Numbers of the first track of each kind: ids of threads are too large, or negative."""
_BATCH = 20_000
"""Events that are made at once."""


def profiled_events(trace: Trace, windows: StepWindows, rank: int) -> Iterator[list[Record]]:
    """Yield all device activities, operators, calls and annotations of a rank in batches."""
    names = trace.rank_frame("name", rank).set_index("name_id")["name"]
    note = trace.rank_frame("annotation", rank)
    on_device = (note["device"] >= 0).to_numpy(bool)
    of_streams = (
        (_STREAMS, trace.rank_frame("kernel", rank), "stream", ""),
        (_STREAM_NOTES, note[on_device], "thread", " annotations"),
    )
    for first, frame, key, suffix in of_streams:
        titles, track = _stream_titles(frame, key, suffix)
        yield [track_title(rank, first + at, title) for at, title in enumerate(titles)]
        yield from _batches(frame, first + track, names, windows)
    host = [note[~on_device], trace.rank_frame("op", rank), trace.rank_frame("runtime_call", rank)]
    threads = sorted({int(thread) for frame in host for thread in frame["thread"].unique()})
    yield [track_title(rank, _THREADS + at, f"thread {id_}") for at, id_ in enumerate(threads)]
    for frame in host:
        track = np.searchsorted(np.array(threads, np.int64), frame["thread"].to_numpy(np.int64))
        yield from _batches(frame, _THREADS + track, names, windows)


def _stream_titles(
    frame: pd.DataFrame, key: str, suffix: str
) -> tuple[list[str], npt.NDArray[np.intp]]:
    """Return titles of tracks and the place of each row among them; several devices are named."""
    title = "stream " + frame[key].astype(str) + suffix
    if frame["device"].nunique() > 1:
        title = "device " + frame["device"].astype(str) + " " + title
    track, titles = pd.factorize(title, sort=True)
    return list(map(str, titles)), track


def _batches(
    frame: pd.DataFrame,
    track: npt.NDArray[np.int64],
    names: pd.Series[str],
    windows: StepWindows,
) -> Iterator[list[Record]]:
    for begin in range(0, len(frame), _BATCH):
        piece = slice(begin, begin + _BATCH)
        yield _events(frame.iloc[piece], track[piece], names, windows)


def _events(
    frame: pd.DataFrame, track: npt.NDArray[np.int64], names: pd.Series[str], windows: StepWindows
) -> list[Record]:
    table = pd.DataFrame(
        {
            "pid": frame["rank"],
            "tid": track,
            "name": frame["name_id"].map(names).fillna("unknown"),
            "start_ns": windows.shifted(frame["step"], frame["start_ns"]),
            "dur_ns": frame["dur_ns"],
            "step": frame["step"],
        }
    )
    for column in ("category", "correlation", "size_bytes", "rate_bytes_per_s", "flops", "shapes"):
        if column in frame:
            kept = frame[column].astype(object)
            table[column] = kept.where(kept != -1, None)
    return slices(table)
