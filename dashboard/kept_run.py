"""A run with its analysis: the one on disk, else it is made, and kept there."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

from meshscope.probe.schema.errors import MeshscopeError

from .kept_analysis import Kept, KeptAnalyses, may_keep
from .loaded_run import LoadedRun, Times, analysed_run, layout_words
from .paths import LastAccount
from .run_entry import RunEntry, ready_entry
from .run_files import SourceState, source_state

_LOG = logging.getLogger(__name__)


def kept_run(
    path: Path,
    *,
    version: int,
    times: Times,
    accounts: LastAccount,
    analyses: KeptAnalyses | None,
    is_anew: bool = False,
) -> LoadedRun:
    """Read a run with its analysis.

    Args:
        path: Its file or folder.
        version: Number of the state of its files.
        times: When it was read and written.
        accounts: Where the account for its critical paths is kept.
        analyses: Where analyses are kept on disk, None for nowhere.
        is_anew: Whether the one on disk is not to be used.

    Raises:
        MeshscopeError: It cannot be read.
    """
    before = _state(path)
    read = partial(
        analysed_run, path, run_id=path.name, version=version, times=times, accounts=accounts
    )
    kept = None if is_anew or analyses is None else analyses.read(path)
    if kept is not None:
        try:
            return read(kept=kept)
        except MeshscopeError:
            raise
        except Exception:  # noqa: BLE001 - whatever one from disk breaks, the run itself is there
            _LOG.exception("the kept analysis of %s cannot be used: it is made anew", path)
    run = read()
    is_recent = times.as_of_ns is not None
    if analyses is None or before is None:
        return run
    if may_keep(path, is_recent=is_recent, is_gone=times.is_gone):
        kept = Kept(run.diagnosis, run.no_path_because)
        run = replace(run, pages=analyses.keep(path, kept, line_of(run), before))
    return run


def line_of(run: LoadedRun) -> RunEntry:
    """Return the line of the run list of a run."""
    return ready_entry(run.run_id, run.diagnosis, layout_words(run.trace), run.times.written_ns)


def _state(path: Path) -> SourceState | None:
    try:
        return source_state(path)
    except OSError:
        return None
