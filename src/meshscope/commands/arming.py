"""Arms a deep trace for somebody who does not wait for it: the dashboard."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

STEPS = 3
"""How many steps are recorded."""


def arm_aside(run: Path) -> str:
    """Have the ranks of a job record its next steps in depth; return what was agreed, or why nothing was.

    The process that collects the traces goes on by itself.

    Args:
        run: The run directory.
    """
    command = [sys.executable, "-P", "-m", "meshscope", "arm", "--run", str(run)]
    process = subprocess.Popen(
        [*command, "--steps", str(STEPS)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert process.stderr is not None
    first = process.stderr.readline().strip()
    # What it says later is read, so that it can end.
    threading.Thread(target=process.communicate, daemon=True).start()
    # A page names runs by what they are called in its folder.
    return first.removeprefix("meshscope: ").replace(str(run), run.name)
