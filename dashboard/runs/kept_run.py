"""A run with its analysis: the one on disk, else it is made, and kept there."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.rundir import is_run_directory

from ..timeline.paths import LastAccount
from .apart import LEAST_BYTES, analyse_apart, page_maker
from .kept_analysis import Kept, KeptAnalyses, may_keep
from .loaded_run import LoadedRun, Times, analysed_run, line_of
from .run_files import SourceState, source_state

_LOG = logging.getLogger(__name__)


def kept_run(  # noqa: PLR0913 - all that a server knows of a run
    path: Path,
    *,
    version: int,
    times: Times,
    accounts: LastAccount,
    analyses: KeptAnalyses | None,
    is_anew: bool = False,
    size: int = 0,
) -> LoadedRun:
    """Read a run with its analysis.

    Args:
        path: Its file or folder.
        version: Number of the state of its files.
        times: When it was read and written.
        accounts: Where the account for its critical paths is kept.
        analyses: Where analyses are kept on disk, None for nowhere.
        is_anew: Whether the one on disk is not to be used.
        size: Of its files, bytes.

    Raises:
        MeshscopeError: It cannot be read.
    """
    before = _state(path)
    read = partial(
        analysed_run, path, run_id=path.name, version=version, times=times, accounts=accounts
    )
    is_recent = times.as_of_ns is not None
    can_keep = analyses is not None and may_keep(path, is_recent=is_recent, is_gone=times.is_gone)
    kept = None if is_anew or analyses is None else analyses.read(path)
    is_large = size >= LEAST_BYTES and analyses is not None and is_run_directory(path)
    if is_large and analyses is not None and not is_anew:
        kept = _kept_apart(path, analyses, kept, can_keep=can_keep)
    if kept is not None:
        try:
            return read(kept=kept)
        except MeshscopeError:
            raise
        except Exception:  # noqa: BLE001 - whatever one from disk breaks, the run itself is there
            _LOG.exception("the kept analysis of %s cannot be used: it is made anew", path)
    run = read()
    if analyses is not None and before is not None and can_keep:
        kept = Kept(run.diagnosis, run.no_path_because)
        run = replace(run, pages=analyses.keep(path, kept, line_of(run), before))
    return run


def _kept_apart(
    path: Path, analyses: KeptAnalyses, kept: Kept | None, *, can_keep: bool
) -> Kept | None:
    """Return an analysis of which a process of its own makes the pages, and the analysis where none is kept.

    None where that fails.
    """
    process = None
    if kept is None and can_keep:
        process = analyse_apart(path, analyses.elsewhere)
        kept = None if process is None else analyses.read(path)
    if kept is None or kept.pages is None:
        return kept
    maker = page_maker(kept.pages.folder, path, analyses.elsewhere, process)
    return kept._replace(pages=replace(kept.pages, maker=maker))


def _state(path: Path) -> SourceState | None:
    try:
        return source_state(path)
    except OSError:
        return None
