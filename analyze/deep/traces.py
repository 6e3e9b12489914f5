"""Deep traces of a run: which steps each holds, judged by the steps that the probe recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.rank_parts import Wanted
from meshscope.probe.schema.rundir import RunCapture, read_run

from ..importers.detect import InputFile
from ..importers.kineto.columns import StepWindows
from ..importers.kineto.rank import Place, read_rank_file
from ..importers.reading import TemporaryFolder
from ..parquet_file import to_read
from .steps import own_steps, steps_held, unix_offsets_ns


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """What one trace holds."""

    rank: int
    steps: tuple[int, ...]
    """Steps that it holds; empty where that is not known."""
    operators: int
    device_events: int
    problem: str
    """Why it cannot be judged; empty if it can."""


def check_traces(run_path: Path, traces: Mapping[int, Path]) -> dict[int, TraceCheck]:
    """Return for the trace of each rank which steps it holds.

    Args:
        run_path: The run directory.
        traces: Kineto trace of each rank.

    Raises:
        MeshscopeError: The run cannot be read.
    """
    # The ends of steps are enough.
    capture = read_run(run_path, Wanted(most_rows=1))
    return {rank: _check(capture, rank, path) for rank, path in traces.items()}


def _check(capture: RunCapture, rank: int, path: Path) -> TraceCheck:
    temporary = TemporaryFolder()
    place = Place(temporary.path, "trace")
    try:
        found = read_rank_file(InputFile(path.name, path), place, default_rank=rank)
        starts = pq.read_table(to_read(place.files()["op"]), columns=["start_ns"])[
            "start_ns"
        ].to_numpy()
    except (MeshscopeError, OSError) as error:
        return TraceCheck(rank, (), 0, 0, str(error))
    known = (len(starts), found.device_events)
    own = own_steps(capture.tables["step"], rank)
    offsets_ns = unix_offsets_ns(capture.rank_manifests.get(rank, {}), own.start_ns)
    if offsets_ns is None or not found.has_base_time:
        return TraceCheck(rank, (), *known, "the clocks of the rank and the trace do not compare")
    windows = StepWindows(
        own.number, own.start_ns + offsets_ns, own.end_ns + offsets_ns, is_whole_file=False
    )
    steps, counts = np.unique(windows.step_of(starts), return_counts=True)
    return TraceCheck(rank, tuple(steps_held(steps, counts)), *known, "")
