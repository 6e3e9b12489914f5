"""Files of several jobs in one place: separated, so that ranks of one are not read as another's.

Ranks of different jobs fit together without an error as long as their numbers differ,
and then every wait between them is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.printable import listed

from ...wording.limits import Limit
from ...wording.message import Message, message
from .communication import RankCommunication
from .events import DistributedInfo, to_int

_UNIX_NS = 1_000_000_000_000_000_000
"""Year 2001: stamps above it count from 1970, those below it from the start of a host."""
_LEAST_GAP_NS = 600_000_000_000
"""Ten minutes: clocks of hosts differ by less, and ranks of one window start closer."""
_LEAST_MOMENTS = 3
"""Collectives that must have ended together, on clocks that are apart."""
_LOOKED_AT = 64
"""Ranks of a part that another one is compared with: some share a group with it."""
_MOST_APART_NS = 50_000
"""How far apart members leave a collective: twice what was seen of devices. Runs differ by more."""
_MOST_DRIFT = 1e-4
"""How much faster one clock may be than the other."""
_GAP_WINDOWS = 10
"""Windows that must fit into a gap, so that long captures which overlap little stay together."""


class JobMark(NamedTuple):
    """What the header of a file says about its job."""

    world_size: int | None
    backend: str | None

    @classmethod
    def of(cls, info: DistributedInfo) -> JobMark:
        """Read the header; what it does not say is None."""
        size = to_int(info.world_size, 0, bits=32)
        return cls(size if size > 0 else None, str(info.backend) if info.backend else None)

    @property
    def message(self) -> Message:
        """Return what the header says."""
        if self.world_size is None:
            return message("job_mark.backend", backend=self.backend)
        if self.backend is None:
            return message("job_mark.size", size=self.world_size)
        return message("job_mark.size_over", size=self.world_size, backend=self.backend)


class JobFile(Protocol):
    """What is needed of one file."""

    @property
    def label(self) -> str:
        """Return the name of the file."""

    @property
    def rank(self) -> int:
        """Return its rank."""

    @property
    def job(self) -> JobMark:
        """Return what its header says about the job."""

    @property
    def tables(self) -> dict[str, pa.Table]:
        """Return its tables, ``step`` among them."""

    @property
    def communication(self) -> RankCommunication:
        """Return its collectives."""


_File = TypeVar("_File", bound=JobFile)


def one_job(files: Sequence[_File]) -> tuple[list[_File], list[Limit]]:
    """Return the files of the job that has most of them, and a sentence on those left out.

    Files belong to different jobs if their headers state different world sizes or
    backends, or if they begin at times that are further apart than ten minutes and than
    ten of their windows. A header that does not say belongs to any job. Where the collectives of
    two ranks ended together all the same, but for one offset, a clock is wrong and the job is one.

    Raises:
        TraceFormatError: Two jobs have equally many files.
    """
    kept, of_others = _most(list(files), _by_header(files))
    by_header: list[Limit] = [
        message("missing.other_job_by_header", files=_named(part), other=other, mark=mark)
        for mark, other, part in of_others
    ]
    kept, of_others = _most(kept, _by_time(kept))
    by_time: list[Limit] = [
        message("missing.other_job_by_time", files=_named(part), other=other, mark=mark)
        for mark, other, part in of_others
    ]
    return kept, [*by_header, *by_time]


def _most(
    files: list[_File], parts: list[tuple[Message, list[_File]]]
) -> tuple[list[_File], list[tuple[Message, Message, list[_File]]]]:
    """Keep the largest part and those in none; the others with both marks."""
    if len(parts) < 2:
        return files, []
    (mark, most), *others = sorted(parts, key=lambda part: -len(part[1]))
    if len(most) == len(others[0][1]):
        other, second = others[0]
        raise TraceFormatError(
            message(
                "refused.several_jobs",
                files=_named(most),
                mark=mark,
                others=_named(second),
                other=other,
            ),
            where=most[0].label,
            remedy=message("advice.one_job"),
        )
    left_out = {id(file) for _, part in others for file in part}
    kept = [file for file in files if id(file) not in left_out]
    return kept, [(mark, other, part) for other, part in others]


def _named(files: Sequence[JobFile]) -> str:
    return listed(f"{file.label} (rank {file.rank})" for file in files)


def _by_header(files: Sequence[_File]) -> list[tuple[Message, list[_File]]]:
    """Return the files by world size and backend, as far as both are needed to tell them apart."""
    sizes = Counter(file.job.world_size for file in files if file.job.world_size is not None)
    backends = Counter(file.job.backend for file in files if file.job.backend is not None)
    parts: dict[JobMark, list[_File]] = {}
    for file in files:
        size, backend = file.job
        if (len(sizes) > 1 and size is not None) or (len(backends) > 1 and backend is not None):
            parts.setdefault(file.job, []).append(file)
    return [(mark.message, part) for mark, part in parts.items()]


def _by_time(files: Sequence[_File]) -> list[tuple[Message, list[_File]]]:
    """Return the files by the time at which they begin, where gaps tell windows apart."""
    windows = []
    for file in files:
        step = file.tables["step"]
        if step.num_rows:
            begin = pc.min(step["start_ns"]).as_py()
            end = pc.max(pc.add(step["start_ns"], step["dur_ns"])).as_py()
            windows.append((begin, end, file))
    windows.sort(key=lambda window: (window[0], window[2].rank))
    if len(windows) < 2 or windows[0][0] < _UNIX_NS:
        return []
    longest = max(end - begin for begin, end, _ in windows)
    gap_ns = max(_LEAST_GAP_NS, _GAP_WINDOWS * longest)
    parts: list[list[tuple[int, _File]]] = []
    for begin, _, file in windows:
        if not parts or begin - parts[-1][-1][0] > gap_ns:
            parts.append([])
        parts[-1].append((begin, file))
    parts = _joined(parts)
    first = windows[0][0]
    return [
        (
            message("job_mark.minutes", minutes=round((part[0][0] - first) / 6e10)),
            [file for _, file in part],
        )
        for part in parts
    ]


def _joined(parts: list[list[tuple[int, _File]]]) -> list[list[tuple[int, _File]]]:
    """Return the parts, those as one whose collectives ended together but for a wrong clock."""
    found: list[list[tuple[int, _File]]] = []
    for part in parts:
        ends = _ends(part[0][1])
        homes = (
            one for one in found if any(_together(_ends(f), ends) for _, f in one[:_LOOKED_AT])
        )
        home = next(homes, None)
        if home is None:
            found.append(list(part))
        else:
            home += part
    return found


_Ends = dict[str, list[tuple[object, int]]]
"""What the collectives of each group are, in their order, and when each ended, ns."""


def _ends(file: JobFile) -> _Ends:
    found: _Ends = {}
    for row in file.communication.rows:
        if not row["direction"]:
            what = (row["kind"], row["size_bytes"], row["step"])
            found.setdefault(str(row["group_name"]), []).append((what, cast(int, row["end_ns"])))
    return found


def _together(one: _Ends, other: _Ends) -> bool:
    """Return whether collectives of two ranks ended at the same moments, but for offset and drift.

    Two runs of one program do the same, but never with the same pauses to within microseconds.
    """
    ours: list[int] = []
    theirs: list[int] = []
    for group in one.keys() & other.keys():
        if [what for what, _ in one[group]] == [what for what, _ in other[group]]:
            ours += [end for _, end in one[group]]
            theirs += [end for _, end in other[group]]
    if len(ours) < _LEAST_MOMENTS:
        return False
    ends = np.array(ours, dtype=np.int64)
    ahead = np.array(theirs, dtype=np.int64) - ends
    since, ahead = (ends - ends[0]).astype(np.float64), (ahead - ahead[0]).astype(np.float64)
    drift = float(np.clip(np.polyfit(since, ahead, 1)[0], -_MOST_DRIFT, _MOST_DRIFT))
    return bool(np.ptp(ahead - drift * since) <= _MOST_APART_NS)
