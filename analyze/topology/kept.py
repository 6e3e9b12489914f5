"""What the user stated about an ingested run, kept in its directory.

The tables hold what the source says; the statement is applied whenever the run is
opened, so it can be replaced, or removed by deleting the file.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..capture.trace import Trace
from .file import load_topology
from .stated import StatedTopology, apply_topology

FILE_NAME = "topology.toml"


def keep_topology(trace: Trace, file: Path) -> Trace:
    """Copy a topology file into the run of a trace; return the trace with what it states.

    Raises:
        ConfigError: The file cannot be read, a field is wrong, or it does not fit the run;
            nothing is kept.
        OSError: The run cannot be written.
    """
    found = apply_topology(trace, load_topology(file))
    run_path = trace.path
    draft = run_path / f".{FILE_NAME}"
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as stream:
        stream.write(file.read_bytes())
    draft.replace(run_path / FILE_NAME)
    return found


def with_kept_topology(trace: Trace) -> Trace:
    """Return a run with what was kept for it, as it is where nothing was.

    Raises:
        ConfigError: The kept file is damaged, or does not fit the run.
    """
    stated = kept_topology(trace)
    return trace if stated is None else apply_topology(trace, stated)


def kept_topology(trace: Trace) -> StatedTopology | None:
    """Return what was kept for a run, None where nothing was.

    Raises:
        ConfigError: The kept file is damaged.
    """
    file = trace.path / FILE_NAME
    return load_topology(file) if file.is_file() else None
