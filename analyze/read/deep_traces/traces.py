"""Deep traces of a run: which steps each holds, judged by the steps that the probe recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from meshscope.probe.reader.rank_parts import Wanted
from meshscope.probe.reader.rank_records import read_rank
from meshscope.probe.reader.run import RunCapture, read_run
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.manifest import newest_part

from ...tables.parquet_file import to_read
from ..files import InputFile
from ..kineto.columns import StepWindows
from ..kineto.rank import Place, read_rank_file
from ..reading import TemporaryFolder
from .steps import OwnSteps, own_steps, steps_held, unix_offsets_ns


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """What one trace holds."""

    rank: int
    steps: tuple[int, ...]
    """Steps that it holds, as the run counts them; empty where that is not known."""
    own_steps: tuple[int, ...]
    """The same steps as the process of the rank counts them, which begins anew with each part."""
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
    return {rank: _check(run_path, capture, rank, path) for rank, path in traces.items()}


def _check(run_path: Path, capture: RunCapture, rank: int, path: Path) -> TraceCheck:
    temporary = TemporaryFolder()
    place = Place(temporary.path, "trace")
    try:
        found = read_rank_file(InputFile(path.name, path), place, default_rank=rank)
        starts = pq.read_table(to_read(place.files()["op"]), columns=["start_ns"])[
            "start_ns"
        ].to_numpy()
    except (MeshscopeError, OSError) as error:
        return TraceCheck(rank, (), (), 0, 0, str(error))
    known = (len(starts), found.device_events)
    own = own_steps(capture.tables["step"], rank)
    offsets_ns = unix_offsets_ns(capture.rank_manifests.get(rank, {}), own.start_ns)
    if offsets_ns is None or not found.has_base_time:
        return TraceCheck(
            rank, (), (), *known, "the clocks of the rank and the trace do not compare"
        )
    windows = StepWindows(
        own.number, own.start_ns + offsets_ns, own.end_ns + offsets_ns, is_whole_file=False
    )
    steps, counts = np.unique(windows.step_of(starts), return_counts=True)
    held = tuple(steps_held(steps, counts))
    return TraceCheck(rank, held, _counted_by_rank(run_path, rank, own, held), *known, "")


def _counted_by_rank(
    run_path: Path, rank: int, own: OwnSteps, held: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the numbers that the newest part of a rank gives to steps of the run.

    A step that is not of that part, or was written over, has none and is left out.
    """
    directory = newest_part(run_path, rank)
    table = None if directory is None else read_rank(directory, rank).tables.get("step")
    if table is None:
        return ()
    starts_ns = dict(zip(own.number.tolist(), own.start_ns.tolist(), strict=True))
    counted = dict(zip(table["start_ns"].to_pylist(), table["step"].to_pylist(), strict=True))
    found = (counted.get(starts_ns.get(step)) for step in held)
    return tuple(step for step in found if step is not None)
