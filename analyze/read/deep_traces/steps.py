"""Steps of a rank on the clock of its deep traces, and which of them a trace holds.

The probe reads the monotonic clock, Kineto the time of day. The manifest of the rank
has readings of both at the same moment, at the start, at the end and now and then
between; a time of day that was set in between shows as a jump.

Which steps a trace holds is judged by those that the probe recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshscope.probe.reader.rank_records import read_rank
from meshscope.probe.reader.run import RunCapture, read_run
from meshscope.probe.reader.wanted import Wanted
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.manifest import newest_part

from ...tables.parquet_file import to_read
from ..files import InputFile
from ..kineto.columns import StepWindows
from ..kineto.rank import Place, read_rank_file
from ..reading import TemporaryFolder

_IntArray = npt.NDArray[np.int64]
_MOST_DRIFT = 1e-3
"""Clocks that part faster than this between two readings were set, and did not drift."""
LEAST_SHARE = 0.1
"""A step counts as traced with this share of the operators of the fullest one: a trace
begins and ends within the hooks at a step border, a few operators off."""


class OwnSteps(NamedTuple):
    """The steps of a rank in time order; the windows of two do not overlap."""

    number: _IntArray
    start_ns: _IntArray
    """On the monotonic clock of the rank; so is the end."""
    end_ns: _IntArray


def own_steps(table: pa.Table, rank: int) -> OwnSteps:
    """Return the steps of a rank from the ``step`` table."""
    own = table.filter(pc.equal(table["rank"], rank)).sort_by("start_ns")
    start_ns = own["start_ns"].to_numpy()
    end_ns = start_ns + own["dur_ns"].to_numpy()
    # Where two steps overlap all the same, the later one begins its own window.
    end_ns = np.minimum(end_ns, np.append(start_ns[1:], np.iinfo(np.int64).max))
    return OwnSteps(own["step"].to_numpy(), start_ns, end_ns)


def unix_offsets_ns(manifest: Mapping[str, Any], monotonic_ns: _IntArray) -> _IntArray | None:
    """Return what to add to monotonic times of a rank to get the time of day.

    Between two readings the offset is interpolated; where the time of day was set
    between them, the nearer reading counts.

    Args:
        manifest: That of the rank.
        monotonic_ns: The times.

    Returns:
        One offset a time; None where the manifest has no reading.
    """
    pairs = _pairs(manifest.get("clock_pairs"))
    if not len(pairs):
        return None
    at_ns, offset_ns = pairs[:, 0], pairs[:, 1] - pairs[:, 0]
    after = np.clip(np.searchsorted(at_ns, monotonic_ns), 1, max(len(pairs) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(pairs) - 1)
    length_ns = np.maximum(at_ns[after] - at_ns[before], 1)
    place = np.clip((monotonic_ns - at_ns[before]) / length_ns, 0.0, 1.0)
    jump_ns = offset_ns[after] - offset_ns[before]
    was_set = np.abs(jump_ns) > _MOST_DRIFT * length_ns
    share = np.where(was_set, np.round(place), place)
    return np.asarray(offset_ns[before] + np.round(share * jump_ns), dtype=np.int64)


def _pairs(value: object) -> _IntArray:
    """Return the readings, monotonic and time of day, in order of the first; odd ones left out."""
    rows = [
        [int(pair[0]), int(pair[1])]
        for pair in (value if isinstance(value, list) else [])
        if isinstance(pair, list) and len(pair) > 1 and all(isinstance(x, int) for x in pair[:2])
        and all(abs(x) < 1 << 62 for x in pair[:2])
    ]  # fmt: skip
    found = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return found[np.argsort(found[:, 0], kind="stable")]


def steps_held(step: _IntArray, counts: _IntArray) -> list[int]:
    """Return the steps of which a trace has a fair share of the events.

    Args:
        step: Steps with events.
        counts: How many events each has.
    """
    inside = step >= 0
    step, counts = step[inside], counts[inside]
    if not len(step):
        return []
    held = counts >= max(1.0, LEAST_SHARE * counts.max())
    return sorted(step[held].tolist())


class TraceCheck(msgspec.Struct, frozen=True):
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
