"""What the node agent does once the job has ended: tables in few files, beside the records of each rank."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from meshscope.probe.clock import now_ns

from .output import say

_CLOSED_S = 60.0
"""Ranks of other nodes may end later than those of this one."""
_LOOK_S = 0.5


def keep_tables(run: Path) -> bool:
    """Have the tables of a run that has ended kept in few files, by another process of the lowest priority.

    Agents of all nodes come here: that of the node of rank 0 does it. Ranks that were killed never close their
    recording, and such a run stays as it is.

    Args:
        run: The run directory.

    Returns:
        Whether they are kept.
    """
    from meshscope.analyze.load.kept_tables import is_closed

    if not _has_first_rank(run):
        return False
    until_ns = now_ns() + round(_CLOSED_S * 1e9)
    while not is_closed(run):
        if now_ns() > until_ns:
            say(f"{run}: a rank has not closed its recording, so no tables are kept")
            return False
        time.sleep(_LOOK_S)
    command = [sys.executable, "-m", "meshscope", "ingest", str(run)]
    nice = ["nice", "-n", "19"] if os.name == "posix" else []
    done = subprocess.run(
        [*nice, *command], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        say(f"{run}: no tables are kept: {done.stderr.strip()[-500:]}")
    return not done.returncode


def _has_first_rank(run: Path) -> bool:
    """Return whether rank 0 recorded on this machine."""
    from meshscope.probe.schema.errors import RunDirectoryError
    from meshscope.probe.schema.manifest import MANIFEST_NAME, newest_part, read_json

    part = newest_part(run, 0)
    try:
        return (
            part is not None and read_json(part / MANIFEST_NAME).get("host") == os.uname().nodename
        )
    except (OSError, RunDirectoryError):
        return False
