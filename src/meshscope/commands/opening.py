"""Opening what the user names, with what the user states about it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from meshscope.probe.schema.printable import printable

from .options import DEFAULT_RUNS
from .output import say
from .progress import reading_progress

if TYPE_CHECKING:
    from meshscope.analyze.stated_topology import StatedTopology
    from meshscope.analyze.trace import Trace

_MOST_WORKERS = 16
"""Each process of the reading pool takes about 170 MB."""


def open_trace(
    path: Path, topology_file: Path | None = None, runs: Path = DEFAULT_RUNS
) -> tuple[Trace, StatedTopology | None]:
    """Return the capture with the stated topology applied, and what is stated.

    Traces of other tools are ingested into the folder of runs, and read from there the
    next time. The topology file is read first: a slip in it shows before a long read.

    Raises:
        MeshscopeError: One of the two cannot be read, or they exclude each other.
        OSError: A file cannot be read.
    """
    from meshscope.analyze.ingest import Keeping, open_run
    from meshscope.analyze.source_files import size_of
    from meshscope.analyze.stated_topology import apply_topology
    from meshscope.analyze.topology_file import load_topology

    stated = None if topology_file is None else load_topology(topology_file)
    with reading_progress(size_of(path)) as on_bytes:
        keeping = Keeping(runs_dir=runs, workers=workers(), on_bytes=on_bytes)
        trace = open_run(path, keeping, say)
    return (trace if stated is None else apply_topology(trace, stated)), stated


def workers() -> int:
    """Return how many processes read traces at the same time."""
    from meshscope.analyze.processes import usable_cpus

    return min(usable_cpus(), _MOST_WORKERS)


def next_command(verb: str, path: Path, options: str = "") -> str:
    """Return the line that names the next command to run."""
    return f"\nNext: meshscope {verb} {printable(shlex.quote(str(path)))}{options}"
