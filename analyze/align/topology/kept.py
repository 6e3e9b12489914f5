"""What the user stated about an ingested run, kept in its directory.

The tables hold what the source says; the statement is applied whenever the run is
opened, so it can be replaced, or removed by deleting the file. Most runs have none: what reads
a statement is imported where there is one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...tables.trace import Trace

if TYPE_CHECKING:
    from .stated import StatedTopology

FILE_NAME = "topology.toml"


def keep_topology(trace: Trace, file: Path) -> Trace:
    """Copy a topology file into the run of a trace; return the trace with what it states.

    Raises:
        ConfigError: The file cannot be read, a field is wrong, or it does not fit the run;
            nothing is kept.
        OSError: The run cannot be written.
    """
    from .file import load_topology
    from .stated import apply_topology
    from .stated_job import kept_name

    stated = load_topology(file)
    found = apply_topology(trace, stated)
    for source, name in (
        (file, FILE_NAME),
        *((named, kept_name(named)) for named in stated.job.files),
    ):
        _copy(source, trace.path / name)
    return found


def _copy(source: Path, target: Path) -> None:
    content = source.read_bytes()
    draft = target.with_name(f".{target.name}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(content)
    draft.replace(target)


def with_kept_topology(trace: Trace) -> Trace:
    """Return a run with what was kept for it, as it is where nothing was.

    Raises:
        ConfigError: The kept file is damaged, or does not fit the run.
    """
    stated = kept_topology(trace)
    if stated is None:
        return trace
    from .stated import apply_topology

    return apply_topology(trace, stated)


def kept_topology(trace: Trace) -> StatedTopology | None:
    """Return what was kept for a run, None where nothing was.

    Raises:
        ConfigError: The kept file is damaged.
    """
    file = trace.path / FILE_NAME
    if not file.is_file():
        return None
    from .file import load_topology

    return load_topology(file)
