"""Another tool's traces as a run directory of ours: columnar tables, keyed by content.

The tables are in ``<runs>/<name>-<key>/tables`` (``capture.table_folder``). The manifest says
where they came from, what was missing, and the key: the hash of the names and contents
of the source files. Opening such a run reads columns, and parses nothing.
"""

from __future__ import annotations

import errno
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from meshscope.probe.reader.wanted import COUNTED
from meshscope.probe.schema.errors import RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import (
    MANIFEST_NAME,
    check_format_version,
    read_json,
)
from meshscope.probe.schema.rundir import list_runs, write_run_manifest

from ..align.topology.kept import with_kept_topology
from ..tables.segment_files import read_list
from ..tables.stored_tables import Tables, rows_of_ranks
from ..tables.table_folder import (
    FOLDER,
    close_to_others,
    damaged_ranks,
    read_folder,
    write_folder,
)
from ..tables.trace import Trace
from ..wording.limits import Limit, keep_limits, kept_limits
from ..wording.message import message

_SECTION = "ingested"
_ENDINGS = re.compile(r"(?:\.(?:pt|trace|json|gz|tar|tgz|parquet|pkl|pickle|jsonl|sqlite))+$")


class Ingested(msgspec.Struct, frozen=True, kw_only=True):
    """A run directory made from other traces."""

    path: Path
    trace: Trace
    source_bytes: int
    reused: bool
    """True where the same content was ingested before."""


def find_ingested(runs_dir: Path, key: str) -> Path | None:
    """Return the run that holds this content, None if there is none."""
    return next((run for run, one in ingested_runs(runs_dir) if one["content_key"] == key), None)


def ingested_runs(runs_dir: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the runs that were made from other traces, with what their manifests say of that."""
    if runs_dir.is_dir():
        for run in list_runs(runs_dir):
            section = _section(run)
            if "content_key" in section:
                yield run, section


def write_ingested(trace: Trace, draft: Path, key: str, *, name: str, source_bytes: int) -> Path:
    """Complete a draft with the tables of a trace and make it a run; return its path.

    Large tables that are in files already are moved, unless something has changed them.

    Args:
        trace: What was read.
        draft: Folder from ``drafted``.
        key: Hash of the source.
        name: What people call the source.
        source_bytes: Its size.

    Raises:
        OSError: It cannot be written.
    """
    write_folder(trace, draft / FOLDER)
    final = draft.parent / f"{run_name(name)}-{key[:12]}"
    content = _manifest(trace, key, source_bytes)
    write_run_manifest(draft, {**content, "run_id": final.name})
    close_to_others(draft)
    try:
        draft.rename(final)
    except OSError as error:
        # Another process was faster with the same content.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    return final


def run_name(source: str) -> str:
    """Return the part of a run's name that people recognise: that of the source, made safe."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", _ENDINGS.sub("", source)).strip("-._")
    return plain[:80].strip("-._") or "trace"


def is_ingested(path: Path) -> bool:
    """Return whether a run directory was made from other traces."""
    return bool(_section(path))


def read_ingested(
    path: Path,
    *,
    only: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
) -> Trace:
    """Open a run that was made from other traces; large tables stay on disk.

    Args:
        path: Its directory.
        only: Ranks that are read; None for all.
        steps: First and last step of which passes and communication are read; None for all.

    Raises:
        RunDirectoryError: Its manifest or a table cannot be read.
        FormatVersionError: It was written by a format that we do not know.
        ConfigError: The topology that was stated for it does not fit.
    """
    manifest = read_json(path / MANIFEST_NAME)
    check_format_version(manifest.get("format_version"), str(path / MANIFEST_NAME))
    tables, damaged = _readable_tables(path / FOLDER, only, steps)
    if not tables["run"].num_rows:
        raise RunDirectoryError(
            message("refused.no_tables"),
            where=str(path / FOLDER),
            remedy=message("advice.ingest_again"),
        )
    try:
        section, layout = manifest[_SECTION], manifest.get("layout")
        if damaged.keys() >= set(section["ranks"]):
            raise _no_whole_rank(path, damaged)
        trace = Trace(
            path=path,
            run=tables["run"].to_pylist()[0],
            layout=ParallelLayout.from_json(layout) if layout else None,
            ranks=tuple(
                rank
                for rank in section["ranks"]
                if rank not in damaged and (only is None or rank in only)
            ),
            tables=tables,
            limits=(*_left_out(damaged), *kept_limits(section), *read_list(path / FOLDER).limits),
            origin=section["origin"],
            per_step_clock=section["per_step_clock"],
            clocks={int(rank): str(clock) for rank, clock in section["clocks"].items()},
            local_ranks={int(rank): int(n) for rank, n in section.get("local_ranks", {}).items()},
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise RunDirectoryError(
            message("refused.manifest", kind=type(error).__name__, error=str(error)),
            where=str(path),
            remedy=message("advice.ingest_again"),
        ) from error
    return with_kept_topology(trace)


def _readable_tables(
    folder: Path, only: Collection[int] | None, steps: tuple[int, int] | None
) -> tuple[Tables, dict[int, str]]:
    """Return the tables without the ranks of which a file is damaged, and what is wrong with those.

    Raises:
        RunDirectoryError: What is damaged is of all ranks.
    """
    try:
        return read_folder(folder, only=only, steps=steps), {}
    except RunDirectoryError:
        damaged = damaged_ranks(folder)
        if not damaged:
            raise
    return read_folder(folder, only=only, without=damaged, steps=steps), damaged


def rows_by_rank(path: Path) -> Counter[int]:
    """Return how many records of passes and communication ranks have in segments; nothing is read for it."""
    tables, found = read_list(path / FOLDER).tables, Counter[int]()
    for name in COUNTED:
        for file in tables.get(name, ()):
            found.update(file.rank_rows)
    return found


def steps_of_ranks(path: Path, ranks: Collection[int]) -> int:
    """Return how many steps some ranks have together, as their list of segments says; nothing is read for it."""
    files = read_list(path / FOLDER).tables.get("step", ())
    return sum(file.rank_rows.get(rank, 0) for file in files for rank in ranks)


def counted_rows(path: Path, ranks: Collection[int]) -> tuple[Counter[int], int]:
    """Return the records of each rank of a run that is not in segments, and the steps of some together.

    Raises:
        RunDirectoryError: A table cannot be read.
    """
    records, steps = Counter[int](), Counter[int]()
    for name in COUNTED:
        for file in (path / FOLDER / name).glob("*.parquet"):
            records.update(rows_of_ranks(file))
    for file in (path / FOLDER / "step").glob("*.parquet"):
        steps.update(rows_of_ranks(file))
    return records, sum(steps[rank] for rank in ranks)


def _no_whole_rank(path: Path, damaged: Mapping[int, str]) -> RunDirectoryError:
    return RunDirectoryError(
        message("refused.no_whole_rank", rank=min(damaged), damage=damaged[min(damaged)]),
        where=str(path),
        remedy=message("advice.ingest_again"),
    )


def _left_out(damaged: Mapping[int, str]) -> list[Limit]:
    return [
        message("missing.damaged_rank", rank=rank, what=what)
        for rank, what in sorted(damaged.items())
    ]


def _section(path: Path) -> Mapping[str, Any]:
    try:
        section = read_json(path / MANIFEST_NAME).get(_SECTION)
    except (OSError, RunDirectoryError):
        return {}
    return section if isinstance(section, dict) else {}


def _manifest(trace: Trace, key: str, source_bytes: int) -> dict[str, Any]:
    return {
        "world_size": trace.run.get("world_size"),
        "layout": trace.layout.to_json() if trace.layout is not None else None,
        _SECTION: {
            "content_key": key,
            "origin": trace.origin,
            "source": str(trace.path),
            "source_bytes": source_bytes,
            "per_step_clock": trace.per_step_clock,
            "clocks": {str(rank): clock for rank, clock in trace.clocks.items()},
            "local_ranks": {str(rank): place for rank, place in trace.local_ranks.items()},
            "ranks": list(trace.ranks),
            **keep_limits(trace.limits),
        },
    }
