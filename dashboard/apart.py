"""The analysis of a large run in a process of its own: its memory is given back, and pages are served meanwhile.

It keeps the analysis of the run beside it, or in the folder of those that cannot lie there, says so, and then keeps
what the slowest pages say.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from meshscope.probe.schema.errors import MeshscopeError

from .kept_analysis import Kept, KeptAnalyses
from .loaded_run import LoadedRun, analysed_run, line_of, placement
from .paths import LastAccount
from .run_files import source_state
from .typical import typical_step

LEAST_BYTES = 4 << 20
"""Of the files of a run: half a million records, whose analysis takes several seconds."""
_KEPT = "kept"
_PROGRAM = f"from {__name__} import run; run()"
_MOST_PATHS = 4
_LOG = logging.getLogger(__name__)


def analyse_apart(path: Path, elsewhere: Path) -> subprocess.Popen[str] | None:
    """Have a run analysed and its analysis kept; return the process, which goes on with pages. None if it failed.

    Args:
        path: The run.
        elsewhere: Folder of the analyses that cannot lie in their run.
    """
    command = [sys.executable, "-P", "-c", _PROGRAM, str(path), str(elsewhere)]
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
    except OSError as error:
        _LOG.warning("no process for the analysis of %s: %s", path, error)
        return None
    assert process.stdout is not None
    with process.stdout as told:
        is_kept = told.readline().strip() == _KEPT
    # Nobody else waits for it to end.
    threading.Thread(target=process.wait, daemon=True).start()
    return process if is_kept else None


def main(path: Path, elsewhere: Path) -> int:
    """Analyse a run, keep that, and then what its slowest pages say; return the exit code."""
    before = source_state(path)
    run = analysed_run(path, run_id=path.name, version=0, accounts=LastAccount())
    kept = Kept(run.diagnosis, run.no_path_because)
    pages = KeptAnalyses(elsewhere).keep(path, kept, line_of(run), before)
    if pages is None:
        return 1
    sys.stdout.write(f"{_KEPT}\n")
    sys.stdout.flush()
    _prepare(replace(run, pages=pages))
    return 0


def _prepare(run: LoadedRun) -> None:
    for step in _steps(run):
        with suppress(MeshscopeError):
            run.path(step)
    run.communication()
    placement(run)
    run.kernels()
    run.memory()


def _steps(run: LoadedRun) -> list[int]:
    """Return the steps whose critical paths are looked at first: those that findings lead to."""
    analysed = set(run.diagnosis.ledger["step"].tolist())
    drawn = [step for step in run.steps if step in analysed]
    if run.no_path_because or not drawn:
        return []
    named = [
        [step for step in one.steps or range(first, last + 1) if step in analysed]
        for one in run.diagnosis.findings
        for first, last in [one.where.get("steps") or (0, -1)]
    ]
    typical = [typical_step(run.diagnosis, steps) for steps in (drawn, *named) if steps]
    return list(dict.fromkeys(typical))[:_MOST_PATHS]


def run() -> None:
    """End as the analysis of the run on the command line ends."""
    sys.exit(main(*map(Path, sys.argv[1:3])))
