"""A capture whose clock was wrong: the same run as a host with a bad clock would have recorded it.

No clock is touched while the run lasts. When a rank has closed its capture, all
times in it are rewritten as by a clock that is ahead by an
offset and gains by a drift since a given time. The rank also gets a host
identity of its own, since ranks of one boot share one clock. Its clock pairs
move along: the wall clock of that host is as wrong, so an analysis has to find
the error from what the ranks did together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meshscope import probe
from meshscope.probe.api import attached
from meshscope.probe.clock import now_ns
from meshscope.probe.reader.rank_records import read_rank
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.manifest import MANIFEST_NAME, read_json, write_json
from meshscope.probe.schema.message import message
from meshscope.probe.schema.record_payloads import encode_records
from meshscope.probe.schema.records import RECORD_TYPES
from meshscope.probe.schema.ring import HEADER_BYTES, RING_NAME
from meshscope.probe.schema.segment import SegmentFile, segment_paths

from ..config.fault_plan import ResolvedFault
from ..parallel.comm import Communicator
from ..parallel.mesh import Mesh
from .ground_truth import GroundTruth

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

_DURATIONS = frozenset(
    {"dur_ns", "cpu_ns", "wait_ns"}
    | {f"{end}_{what}_ns" for end in ("min", "max") for what in ("dur", "wait")}
)
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongClock:
    """How a clock differs from the real one."""

    offset_ns: int
    """How far it is ahead at ``origin_ns``."""
    drift_ppm: float
    """How much too fast it runs, in parts per million."""
    origin_ns: int
    """Real time from which the drift counts."""

    def tells(self, time_ns: Any) -> Any:
        """Return what it tells at a real time; takes a number or an array of them."""
        return time_ns + self.offset_ns + self.gained(time_ns - self.origin_ns)

    def gained(self, dur_ns: Any) -> Any:
        """Return how much more than a real duration passes on it."""
        # Whole nanoseconds: as a float, a time since 1970 would lose the last hundreds of them.
        return np.floor(np.asarray(dur_ns) * self.drift_ppm / _MILLION).astype(np.int64)


def falsify_capture(directory: Path, rank: int, clock: WrongClock) -> None:
    """Rewrite the closed capture of a rank in the times of a wrong clock.

    Args:
        directory: The rank's directory in a run directory.
        rank: The rank.
        clock: The wrong clock.

    Raises:
        RunDirectoryError: The capture cannot be read.
        OSError: The capture cannot be written; what was recorded is still there.
    """
    manifest = read_json(directory / MANIFEST_NAME)
    tables = read_rank(directory, rank).tables
    recorded = segment_paths(directory)
    _write_segment(
        directory,
        rank,
        encode_records({name: _wrong(name, t, clock) for name, t in tables.items()}),
        number=max(recorded, default=0) + 1,
    )
    for path in recorded.values():
        path.unlink()
    _empty_ring(directory / RING_NAME)
    write_json(directory / MANIFEST_NAME, manifest | _wrong_host(manifest, rank, clock))


def own_capture(faults: Sequence[ResolvedFault], mesh: Mesh, comm: Communicator) -> Path | None:
    """Return where this rank records, if its clock is to have been wrong.

    Raises:
        ConfigError: A rank whose clock is to be wrong is not recorded; said on every rank.
    """
    session = attached()
    directory = None if session is None else session.directory
    own = None
    for fault in faults:
        if fault.spec.kind != "clock_skew" or fault.rank is None:
            continue
        recorded, _ = comm.share_own(fault.rank, (int(directory is not None), 0), mesh.device)
        if not recorded:
            raise ConfigError(
                message("refused.no_capture_of_clock", rank=fault.rank),
                where="fault clock_skew",
                remedy=message("advice.meshscope_run"),
            )
        if fault.rank == mesh.rank:
            own = directory
    return own


def falsify_own_clock(
    faults: Sequence[ResolvedFault], rank: int, directory: Path | None, truth: GroundTruth
) -> None:
    """Close this rank's capture and rewrite it, if its clock is to have been wrong.

    Args:
        faults: All faults of the job.
        rank: This rank.
        directory: Where it has recorded, from ``own_capture``.
        truth: Where the fault is noted.

    Raises:
        RunDirectoryError: The capture cannot be read.
        OSError: The capture cannot be written.
    """
    for fault in faults:
        if fault.spec.kind != "clock_skew" or fault.rank != rank or directory is None:
            continue
        probe.detach()
        origin_ns = now_ns()
        clock = WrongClock(
            offset_ns=round(fault.spec.offset_ms * 1e6),
            drift_ppm=fault.spec.drift_ppm,
            origin_ns=origin_ns,
        )
        falsify_capture(directory, rank, clock)
        truth.fault(
            "clock_skew",
            fault.spec.start,
            (origin_ns, now_ns()),
            offset_ns=clock.offset_ns,
            drift_ppm=clock.drift_ppm,
        )
        truth.flush()


def _write_segment(directory: Path, rank: int, payload: bytes, *, number: int) -> None:
    """Write a segment of one block, or leave no trace of it."""
    segment = SegmentFile(directory, rank=rank, number=number)
    try:
        segment.append(payload)
        segment.close()
    except OSError:
        segment.path.unlink()
        raise


def _wrong(name: str, table: pa.Table, clock: WrongClock) -> NDArray[np.void]:
    """Return records with the times of the wrong clock; unknown times stay unknown."""
    record = next(record for record in RECORD_TYPES.values() if record.name == name)
    rows = np.zeros(table.num_rows, dtype=record.numpy_dtype())
    rows["code"] = record.code
    for column, _ in record.fields:
        values = table.column(column).to_numpy()
        known = values >= 0
        if column in _DURATIONS:
            values = np.where(known, values + clock.gained(values), values)
        elif column.endswith("_ns"):
            values = np.where(known, clock.tells(values), values)
        rows[column] = values
    return rows


def _wrong_host(manifest: dict[str, Any], rank: int, clock: WrongClock) -> dict[str, Any]:
    """Return the facts of a manifest that differ on a host with the wrong clock."""
    return {
        "host": f"{manifest['host']}-clock{rank}",
        "boot_id": f"{manifest['boot_id']}-clock{rank}",
        "clock_pairs": [
            [int(clock.tells(mono)), unix + int(clock.tells(mono)) - mono, error]
            for mono, unix, error in manifest["clock_pairs"]
        ],
    }


def _empty_ring(path: Path) -> None:
    """Leave the header of a ring and no record: all of them are in the segment."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(HEADER_BYTES)
        file.truncate(size)
