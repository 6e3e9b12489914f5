"""What a profiler recorded on one rank, as slices: streams of devices, threads of the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...align.steps.windows import StepWindows
from ...tables.trace import Trace
from .perfetto_rank import Record, slices, track_title

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
