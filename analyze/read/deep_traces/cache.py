"""What was read of deep traces, kept in the run while it is still being recorded.

A closed run keeps all its tables, which are keyed by everything in it. Of a live one that
key changes at every look, but a sealed trace does not. So what was read of it is kept on
its own in ``tables/deep/``, by the hash of the trace, and holds as long as the steps that
its events lie in are the same. The tables of the closed run take the place of all that.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.manifest import DIRECTORY_MODE, read_json, write_json
from meshscope.probe.schema.tables import NAME, TABLES

from ...tables.parquet_file import to_read, to_write
from ...tables.stored_tables import STORED
from ...tables.table_folder import FOLDER, close_to_others, drafted
from ..kineto.columns import StepWindows
from ..kineto.rank import Place
from ..source_files import tables_version
from .files import DeepFile

_DEEP = "deep"
_FACTS = "trace.json"
_STEM = "trace"


class ReadTrace(msgspec.Struct, frozen=True):
    """What is needed of a trace that was read."""

    device_events: int
    names: pa.Table
    stored: Mapping[str, Path]
    """Files of its large tables."""


Reader = Callable[[], ReadTrace | None]


class DeepCache(msgspec.Struct, frozen=True):
    """The kept traces of one run.

    Attributes:
        run_path: The run directory.
    """

    run_path: Path

    def read(self, file: DeepFile, windows: StepWindows, reader: Reader) -> ReadTrace | None:
        """Return a trace from what was kept of it, else read it and keep that.

        Args:
            file: Which one.
            windows: The steps that its events go to.
            reader: Reads it; what is of no use is not kept.
        """
        folder = self.run_path / FOLDER / _DEEP
        # What is read of equal files of two ranks is not equal: it names the rank.
        entry = folder / f"{tables_version()}-rank{file.rank:05d}-{file.sha256}"
        if (kept := _kept(entry, windows)) is not None:
            return kept
        found = reader()
        if found is not None:
            # Where nobody can write, the next look reads it again.
            with suppress(OSError):
                _keep(found, folder, entry, windows)
        return found


def _kept(entry: Path, windows: StepWindows) -> ReadTrace | None:
    try:
        facts = read_json(entry / _FACTS)
        if facts["steps"] != _steps_between(windows, facts["first_ns"], facts["last_ns"]):
            return None
        names = NAME.conform(pq.read_table(to_read(entry / f"{NAME.name}.parquet")))
        stored = Place(entry, _STEM).files()
        for name, file in stored.items():
            if pq.read_schema(to_read(file)).names != TABLES[name].arrow_schema().names:
                return None
        return ReadTrace(int(facts["device_events"]), names, stored)
    except (OSError, RunDirectoryError, pa.ArrowException, KeyError, TypeError, ValueError):
        return None  # Not there, damaged, or being removed.


def _steps_between(windows: StepWindows, first_ns: int, last_ns: int) -> str:
    """Return the hash of the steps that times from the first to the last can lie in."""
    near = (windows.start <= last_ns) & (windows.end > first_ns)
    whole = hashlib.sha256()
    for column in (windows.number, windows.start, windows.end):
        whole.update(column[near].tobytes())
    return whole.hexdigest()


def _range_ns(stored: Mapping[str, Path]) -> tuple[int, int]:
    """Return the first and the last of the times by which events get their steps."""
    ends = [
        pc.min_max(table[name]).as_py()
        for file in stored.values()
        for table in [pq.read_table(to_read(file), columns=_times(file))]
        for name in table.column_names
    ]
    known = [end for pair in ends for end in pair.values() if end is not None]
    return min(known, default=0), max(known, default=0)


def _times(file: Path) -> list[str]:
    return [
        name for name in pq.read_schema(to_read(file)).names if name in ("start_ns", "launch_ns")
    ]


def _keep(found: ReadTrace, folder: Path, entry: Path, windows: StepWindows) -> None:
    first_ns, last_ns = _range_ns(found.stored)
    facts = {
        "device_events": found.device_events,
        "first_ns": first_ns,
        "last_ns": last_ns,
        "steps": _steps_between(windows, first_ns, last_ns),
    }
    for place in (folder.parent, folder):
        place.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
    with drafted(folder) as draft:
        files = Place(draft, _STEM).files()
        for name in STORED:
            shutil.copyfile(found.stored[name], files[name])
        with to_write(draft / f"{NAME.name}.parquet") as sink:
            pq.write_table(found.names, sink)
        write_json(draft / _FACTS, facts)
        close_to_others(draft)
        shutil.rmtree(entry, ignore_errors=True)
        draft.rename(entry)
