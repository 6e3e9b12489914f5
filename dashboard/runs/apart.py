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

from ..timeline.paths import LastAccount
from .kept_analysis import Kept, KeptAnalyses
from .loaded_run import LoadedRun, analysed_run, line_of, placement
from .page_maker import PageMaker, Process, making
from .run_files import source_state
from .typical import typical_step

LEAST_BYTES = 4 << 20
"""Of the files of a run: half a million records, whose analysis takes several seconds."""
_KEPT, _PAGES = "kept", "pages"
_PROGRAM = f"from {__name__} import run; run()"
_MOST_PATHS = 4
"""Steps that a first visit is likely to ask for."""
_LOG = logging.getLogger(__name__)


def analyse_apart(path: Path, elsewhere: Path) -> Process | None:
    """Have a run analysed and its analysis kept; return the process, which goes on with pages. None if it failed.

    Args:
        path: The run.
        elsewhere: Folder of the analyses that cannot lie in their run.
    """
    process = _started(path, elsewhere)
    if process is None or process.stdout is None:
        return None
    with process.stdout as output:
        is_kept = output.readline().strip() == _KEPT
    return process if is_kept else None


def page_maker(
    folder: Path, path: Path, elsewhere: Path, process: Process | None = None
) -> PageMaker:
    """Return who makes the pages of a run whose analysis is kept.

    Args:
        folder: Of the analysis.
        path: The run.
        elsewhere: Folder of the analyses that cannot lie in their run.
        process: The one that does so already, if there is one.
    """
    return PageMaker(folder, lambda: _started(path, elsewhere, _PAGES), process)


def _started(path: Path, elsewhere: Path, *words: str) -> Process | None:
    command = [sys.executable, "-P", "-c", _PROGRAM, str(path), str(elsewhere), *words]
    output = subprocess.DEVNULL if words else subprocess.PIPE
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, text=True)
    except OSError as error:
        _LOG.warning("no process for the analysis of %s: %s", path, error)
        return None
    # Nobody else waits for it to end.
    threading.Thread(target=process.wait, daemon=True).start()
    return process


def main(path: Path, elsewhere: Path) -> int:
    """Analyse a run, keep that, and then what its slowest pages say; return the exit code."""
    before = source_state(path)
    run = analysed_run(path, run_id=path.name, version=0, accounts=LastAccount())
    kept = Kept(run.diagnosis, run.no_path_because)
    pages = KeptAnalyses(elsewhere).keep(path, kept, line_of(run), before)
    if pages is None:
        return 1
    try:
        with making(pages.folder):
            _say_kept()
            _prepare(replace(run, pages=pages))
    except BlockingIOError:
        _say_kept()  # Another process makes the pages.
    return 0


def _say_kept() -> None:
    sys.stdout.write(f"{_KEPT}\n")
    sys.stdout.flush()


def make_pages(path: Path, elsewhere: Path) -> int:
    """Keep what the slowest pages say of a run whose analysis is kept; return the exit code."""
    kept = KeptAnalyses(elsewhere).read(path)
    if kept is None or kept.pages is None:
        return 1
    with suppress(BlockingIOError), making(kept.pages.folder):
        _prepare(analysed_run(path, run_id=path.name, version=0, accounts=LastAccount(), kept=kept))
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
    """End as what the command line names ends: an analysis, or the pages of one."""
    path, elsewhere, *words = sys.argv[1:]
    work = make_pages if words == [_PAGES] else main
    sys.exit(work(Path(path), Path(elsewhere)))
