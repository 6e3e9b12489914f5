"""The tables of a capture of ours, kept beside it once it is closed.

Putting a run together from the segments of its ranks takes time that grows with the
run. ``tables/`` in its directory keeps the result, keyed by the content of every
manifest, segment, ring and deep trace: if one differs, the tables are made anew. Nothing is kept
of a run that may still be recording.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from meshscope.probe.reader.wanted import COUNTED, WANTED, Wanted
from meshscope.probe.schema.errors import ConfigError, RunDirectoryError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import (
    MANIFEST_NAME,
    host_directories,
    part_directories,
    rank_directories,
    read_json,
    write_json,
)
from meshscope.probe.schema.reading import file_hash

from ..read.deep_traces.files import trace_files
from ..read.source_files import tables_version
from ..tables.table_folder import FOLDER, close_to_others, drafted, read_folder, write_folder
from ..tables.trace import Trace
from ..wording.limits import keep_limits, kept_limits

_FACTS = "capture.json"
"""What the tables alone do not say, and the key."""


def read_kept(path: Path, wanted: Wanted = WANTED) -> Trace | None:
    """Return the capture from its kept tables, None where there are none or they are stale.

    Of a large run they hold what there was room for; they are none of what else is wanted.
    """
    folder = path / FOLDER
    if wanted.ranks is not None or not (folder / _FACTS).is_file():
        return None
    try:
        facts = read_json(folder / _FACTS)
        room = facts["most_rows"]
        if room is None:
            has_wanted = facts["rows"] <= wanted.most_rows
        else:
            has_wanted = wanted.steps is None and wanted.most_rows == room
        if not has_wanted or facts["key"] != capture_key(path):
            return None
        layout = facts["layout"]
        return Trace(
            path=path,
            run=facts["run"],
            layout=ParallelLayout.from_json(layout) if layout else None,
            ranks=tuple(facts["ranks"]),
            tables=read_folder(folder),
            limits=kept_limits(facts),
            clocks={int(rank): clock for rank, clock in facts["clocks"].items()},
            local_ranks={int(rank): place for rank, place in facts["local_ranks"].items()},
            kernel_steps=_kernel_steps(facts["kernel_steps"]),
            is_whole=room is None,
        )
    except (OSError, RunDirectoryError, ConfigError, KeyError, TypeError, ValueError):
        # A damaged cache is no loss: the capture itself is there.
        return None


def keep(trace: Trace, wanted: Wanted = WANTED) -> bool:
    """Keep the tables of a capture of ours; return whether they are kept.

    They are not where the run may still be recording, was changed meanwhile, or cannot be
    written, nor where a part of it was read because some steps or ranks were asked for.
    """
    path = trace.path
    is_part = wanted.ranks is not None or not (trace.is_whole or wanted.steps is None)
    if not is_closed(path) or is_part:
        return False
    try:
        key = capture_key(path)
        with drafted(path) as draft:
            write_folder(trace, draft)
            room = None if trace.is_whole else wanted.most_rows
            write_json(draft / _FACTS, {**_facts(trace, key), "most_rows": room})
            close_to_others(draft)
            if key != capture_key(path):
                return False
            # Between these two a reader finds nothing kept, and reads the capture itself.
            shutil.rmtree(path / FOLDER, ignore_errors=True)
            draft.rename(path / FOLDER)
    except OSError:
        return False
    return True


def is_closed(path: Path) -> bool:
    """Return whether every rank that is in a run has finished its newest recording."""
    try:
        ranks = rank_directories(path).values()
        marks = [read_json(rank / MANIFEST_NAME).get("closed_unix_ns") for rank in ranks]
    except (OSError, RunDirectoryError):
        return False
    return bool(marks) and None not in marks


def capture_key(path: Path) -> str:
    """Return the hash of everything that the probe has written into a run.

    Raises:
        OSError: A file cannot be read.
    """
    whole = hashlib.sha256(f"tables {tables_version()}\0".encode())
    files = [path / MANIFEST_NAME]
    parts = [part for found in part_directories(path).values() for part in found.values()]
    for directory in (*parts, *host_directories(path).values()):
        files += sorted(file for file in directory.iterdir() if file.is_file())
        files += trace_files(directory)
    for file in files:
        whole.update(f"{file.relative_to(path)}\0".encode("utf-8", "surrogateescape"))
        with suppress(FileNotFoundError):
            whole.update(bytes.fromhex(file_hash(file)))
    return whole.hexdigest()


def _facts(trace: Trace, key: str) -> dict[str, object]:
    return {
        "key": key,
        "run": dict(trace.run),
        "layout": trace.layout.to_json() if trace.layout is not None else None,
        "ranks": list(trace.ranks),
        **keep_limits(trace.limits),
        "clocks": {str(rank): clock for rank, clock in trace.clocks.items()},
        "local_ranks": {str(rank): place for rank, place in trace.local_ranks.items()},
        "rows": sum(map(trace.row_count, COUNTED)),
        "kernel_steps": trace.kernel_steps
        and {str(rank): list(steps) for rank, steps in trace.kernel_steps.items()},
    }


def _kernel_steps(value: Mapping[str, list[int]] | None) -> dict[int, tuple[int, ...]] | None:
    if value is None:
        return None
    return {int(rank): tuple(steps) for rank, steps in value.items()}
