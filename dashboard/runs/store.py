"""The runs of one folder, loaded and analysed on demand.

A run is analysed once for each state of its files. What was analysed is kept up to a byte budget, the least
recently used goes first; the few numbers that the run list needs are kept for every run.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeVar

from meshscope.analyze.tables.unused_memory import release_unused
from meshscope.probe.schema.errors import ConfigError, MeshscopeError, RunDirectoryError
from meshscope.probe.schema.message import message

from ..plain.shown_errors import shown_from
from ..timeline.paths import LastAccount
from ..view.state import RUN_ID
from .background import Background
from .clock import monotonic_s, unix_ns
from .kept_analysis import KeptAnalyses
from .kept_run import kept_run
from .loaded_run import RECENT_NS, LoadedRun, Times, is_running, line_of
from .object_memory import held_bytes, held_each
from .run_entry import RunEntry, unreadable_entry
from .run_files import ContentKey, content_key, refuse_links_outside
from .summarised_run import SummarisedRun
from .summarised_runs import SummarisedRuns

DEFAULT_BUDGET_BYTES = 640 << 20
"""The program itself, and what one more analysis takes for a while, come on top."""
DEFAULT_PATIENCE = 10.0
"""For how many times as long as it took a look at the files of a run, or its analysis, stands."""
_NO_RUN_ID = (
    "has a name that cannot be used in an address. Rename it: up to 128 letters, digits, dots, dashes "
    "and underscores, beginning with a letter or digit"
)
_FIRST_S = 1.0
"""For so long the page that asked for an analysis goes first."""
_PART_OF_SUMMARIES = 4
"""One in so many bytes of the budget may hold what summaries say; it is read again in 30 ms."""
_LOG = logging.getLogger(__name__)

Drawn = TypeVar("Drawn")


class News(Enum):
    """What a view of a run would show now that one before did not."""

    NONE = 0
    MORE = 1
    """More was recorded."""
    OVER = 2
    """Nothing more was recorded, but the processes of all ranks have gone away."""
    SILENT = 3
    """Nothing was recorded for so long that a view calls the job running no more."""


class _Known(NamedTuple):
    """What the list says about a run, and for which files."""

    key: ContentKey
    entry: RunEntry
    until_s: float = 0.0
    """Until then it also stands for what was written since, on the monotonic clock."""
    failure: RunDirectoryError | None = None
    """Why it cannot be read."""

    def refusal(self) -> RunDirectoryError:
        """Return a new error of the same words: one that was raised before holds its callers."""
        if self.failure is None:
            return RunDirectoryError(self.entry.error)
        return RunDirectoryError(**self.failure.said, where=self.failure.where)

    def stands_for(self, key: ContentKey) -> bool:
        """Return whether a run in this state is not to be analysed now."""
        return self.key == key or monotonic_s() < self.until_s


class RunStore:
    """Reads the runs below one folder, and nothing outside it."""

    def __init__(
        self,
        runs_dir: Path,
        *,
        budget_bytes: int = DEFAULT_BUDGET_BYTES,
        patience: float = DEFAULT_PATIENCE,
        are_gone: Callable[[Path], bool] | None = None,
        analyses: KeptAnalyses | None = None,
        background: Background | None = None,
    ) -> None:
        """Open the folder.

        Args:
            runs_dir: Its path.
            budget_bytes: How much memory analysed runs may hold.
            patience: With 0 each view of a job that is being recorded analyses all of it again.
            are_gone: Tells of a run whether the processes of all its ranks are known to be gone.
            analyses: Where analyses are kept on disk; by default none is.
            background: Where what pages will ask for next is made; by default it waits for them.

        Raises:
            ConfigError: The path is no folder.
        """
        if not runs_dir.is_dir():
            raise ConfigError(
                message("refused.no_folder_of_runs"),
                where=str(runs_dir),
                remedy=message("advice.folder_of_runs"),
            )
        self.root = runs_dir.resolve()
        self._budget_bytes = budget_bytes
        self._patience = patience
        self._are_gone = are_gone or _nobody_knows
        self._analyses = analyses
        self.background = background
        self.arm: Callable[[Path], str] | None = None
        self._lock = threading.Lock()
        self._listing = threading.Lock()
        self._loading: dict[str, threading.Lock] = {}
        self._loaded: OrderedDict[str, LoadedRun] = OrderedDict()
        self._entries: dict[str, _Known] = {}
        self._not_kept: dict[str, ContentKey] = {}
        self._summaries = SummarisedRuns(budget_bytes // _PART_OF_SUMMARIES)
        self._looks: dict[str, tuple[ContentKey, float]] = {}
        self._accounts = LastAccount()

    def path_of(self, run_id: str) -> Path | None:
        """Return the path of a run, or None where the id is not one of this folder."""
        if not RUN_ID.fullmatch(run_id):
            return None
        path = self.root / run_id
        inside = path.exists() and path.resolve().parent == self.root
        return path if inside else None

    def get(self, run_id: str) -> LoadedRun:
        """Return a run with its analysis.

        Raises:
            MeshscopeError: There is no such run, or it cannot be read.
        """
        path = self.path_of(run_id)
        if path is None:
            raise RunDirectoryError(message("refused.no_such_run"), where=run_id[:128])
        with self._lock:
            loading = self._loading.setdefault(run_id, threading.Lock())
        with loading:
            key = self._look(path)
            found = None if self._has_just_ended(run_id, path) else self._recall(run_id, key)
            if found is None:
                found = self._analyse(run_id, path, key)
        return found

    def _has_just_ended(self, run_id: str, path: Path) -> bool:
        """Return whether the processes of a run went away since: what they wrote last is read at once."""
        with self._lock:
            kept = self._loaded.get(run_id)
        return kept is not None and is_running(kept) and self._are_gone(path)

    def drawn(self, run_id: str, draw: Callable[[LoadedRun], Drawn]) -> Drawn:
        """Return what is drawn of a run; where its kept analysis cannot be drawn, of a new one.

        Raises:
            MeshscopeError: There is no such run, or it cannot be read or drawn.
        """
        run = self.get(run_id)
        try:
            return draw(run)
        except MeshscopeError:
            raise
        except Exception:
            if not run.is_kept:
                raise
            _LOG.exception("the kept analysis of %s cannot be shown: it is made anew", run_id)
        return draw(self._made_anew(run))

    def _made_anew(self, run: LoadedRun) -> LoadedRun:
        """Return a run with an analysis of now, in place of the one on disk."""
        path = self.root / run.run_id
        with self._loading[run.run_id]:
            with self._lock:
                now = self._loaded.get(run.run_id)
            if now is not None and not now.is_kept:
                return now
            return self._analyse(run.run_id, path, self._look(path), is_anew=True)

    def news(self, run_id: str, written_ns: int) -> News:
        """Return what a view of a run would show now that one before did not; nothing is analysed.

        Args:
            run_id: Which run.
            written_ns: The newest modification of what was recorded when it was shown, ns since the epoch.
        """
        path = self.path_of(run_id)
        if path is None:
            return News.NONE
        key = self._look(path)
        is_over = self._has_just_ended(run_id, path)
        with self._lock:
            known, kept = self._entries.get(run_id), self._loaded.get(run_id)
        is_kept = not is_over and known is not None and known.stands_for(key)
        # While an analysis stands for what was written since, a view shows no more than that.
        shown_ns = kept.times.written_ns if is_kept and kept is not None else key[-1]
        if shown_ns != written_ns:
            return News.MORE
        if is_over:
            return News.OVER
        return News.SILENT if unix_ns() - written_ns >= RECENT_NS else News.NONE

    def latest(self, run_id: str) -> LoadedRun:
        """Return a run as ``get`` does; while another call analyses it anew, as it was before.

        Raises:
            MeshscopeError: There is no such run, or it cannot be read.
        """
        with self._lock:
            loading, kept = self._loading.get(run_id), self._loaded.get(run_id)
        is_busy = loading is not None and loading.locked()
        return kept if is_busy and kept is not None else self.get(run_id)

    def entries(self, max_new: int) -> list[RunEntry]:
        """Return one line for everything in the folder, newest first.

        Args:
            max_new: How many runs may be analysed in this call; others are ``pending``, so that a folder
                of many runs opens at once. None while another call analyses: nobody waits for it.
        """
        paths = [path for path in sorted(self.root.iterdir()) if not path.name.startswith(".")]
        entries = [self._known_entry(path) for path in paths]
        if max_new > 0 and self._listing.acquire(blocking=False):
            try:
                entries = self._with_new(entries, max_new)
            finally:
                self._listing.release()
        return sorted(entries, key=lambda entry: -entry.modified_ns)

    def _with_new(self, entries: list[RunEntry], max_new: int) -> list[RunEntry]:
        """Return the entries with the newest pending ones analysed."""
        pending = [entry for entry in entries if entry.state == "pending"]
        newest = sorted(pending, key=lambda entry: -entry.modified_ns)[:max_new]
        new = {entry.run_id: self._new_entry(entry.run_id, entry.modified_ns) for entry in newest}
        return [new.get(entry.run_id, entry) for entry in entries]

    def _known_entry(self, path: Path) -> RunEntry:
        if self.path_of(path.name) is None:
            modified_ns = path.lstat().st_mtime_ns
            reason = "is a link to outside the folder" if path.is_symlink() else _NO_RUN_ID
            return unreadable_entry(path.name, modified_ns, reason)
        key = self._look(path)
        with self._lock:
            known = self._entries.get(path.name)
        if known is None and (large := self._summaries.line(path, key)) is not None:
            return large
        if known is None:
            known = self._kept_entry(path, key)
        if known is None:
            return RunEntry(run_id=path.name, modified_ns=key[-1], state="pending")
        if known.stands_for(key):
            return known.entry
        return replace(known.entry, modified_ns=key[-1], state="pending", error="")

    def _kept_entry(self, path: Path, key: ContentKey) -> _Known | None:
        """Return the line of a run whose analysis is kept on disk; None of any other."""
        with self._lock:
            is_missed = self._not_kept.get(path.name) == key
        if is_missed or self._analyses is None:
            return None
        line = None
        with suppress(MeshscopeError):
            refuse_links_outside(path)
            line = self._analyses.line(path, key[-1])
        with self._lock:
            if line is None:
                self._not_kept[path.name] = key
                return None
            return self._entries.setdefault(path.name, _Known(key, line))

    def summarised(self, run_id: str) -> SummarisedRun | None:
        """Return what the summaries of a large run say; None of any other run."""
        path = self.path_of(run_id)
        return None if path is None else self._summaries.get(path, self._look(path))

    def is_ready(self, run_id: str) -> bool:
        """Return whether the analysis of a run is at hand or kept on disk: it is read in a moment."""
        path = self.path_of(run_id)
        return path is not None and self._known_entry(path).state == "ready"

    def is_analysed(self, run_id: str) -> bool:
        """Return whether the analysis of a run is at hand."""
        with self._lock:
            return run_id in self._loaded

    def _look(self, path: Path) -> ContentKey:
        """Return the state of the files of a run: the newest, or one that was found just now."""
        begun = monotonic_s()
        with self._lock:
            known, until = self._looks.get(path.name, (None, 0.0))
        if known is not None and begun < until:
            return known
        key = content_key(path)
        now = monotonic_s()
        with self._lock:
            self._looks[path.name] = key, now + self._patience * (now - begun)
        return key

    def _new_entry(self, run_id: str, modified_ns: int) -> RunEntry:
        try:
            self.get(run_id)
        except MeshscopeError as error:
            return unreadable_entry(run_id, modified_ns, str(error))
        with self._lock:
            return self._entries[run_id].entry

    def _recall(self, run_id: str, key: ContentKey) -> LoadedRun | None:
        """Return the kept analysis if it stands for these files; raise the kept error."""
        with self._lock:
            known, kept = self._entries.get(run_id), self._loaded.get(run_id)
            if known is None or not known.stands_for(key):
                return None
            if kept is not None:
                self._loaded.move_to_end(run_id)
                return kept
        if known.entry.state == "unreadable":
            raise known.refusal()
        return None

    def _analyse(
        self, run_id: str, path: Path, key: ContentKey, *, is_anew: bool = False
    ) -> LoadedRun:
        begun, now_ns = monotonic_s(), unix_ns()
        # Before the reading: what a process wrote before it ended is in it.
        is_gone = self._are_gone(path)
        as_of_ns = now_ns if now_ns - key[-1] < RECENT_NS else None
        try:
            refuse_links_outside(path)
            run = kept_run(
                path,
                version=key[0],
                times=Times(as_of_ns, key[-1], is_gone),
                accounts=self._accounts,
                analyses=self._analyses,
                is_anew=is_anew,
                size=key[1],
            )
        except MeshscopeError as error:
            failure = shown_from(error, self.root)
        except Exception as error:  # noqa: BLE001 - the log has it, the reader a sentence
            # One run must not take the list of all the others down.
            _LOG.exception("the analysis of %s failed", path)
            failure = RunDirectoryError(
                message("refused.analysis_failed", kind=type(error).__name__),
                where=run_id,
                remedy=message("advice.defect_of_ours"),
            )
        else:
            self._keep(run, key, monotonic_s() - begun)
            # While its account is at hand.
            if self.background is not None and run.pages is not None and not run.is_kept:
                self.background.later((run_id, "communication"), run.communication, _FIRST_S)
            return run
        with self._lock:
            self._entries[run_id] = _Known(
                key, unreadable_entry(run_id, key[-1], str(failure)), failure=failure
            )
            self._loaded.pop(run_id, None)
        raise failure

    def _keep(self, run: LoadedRun, key: ContentKey, took_s: float) -> None:
        # Nobody writes on and on in a run whose processes are gone.
        until_s = monotonic_s() + (0.0 if run.times.is_gone else self._patience * took_s)
        entry = line_of(run)
        with self._lock:
            self._entries[run.run_id] = _Known(key, entry, until_s)
            self._loaded[run.run_id] = run
            self._loaded.move_to_end(run.run_id)
            loaded = list(reversed(self._loaded.items()))
        sizes = held_each(kept for _, kept in loaded)
        with self._lock:
            for (run_id, kept), total in list(zip(loaded, accumulate(sizes), strict=True))[1:]:
                if total > self._budget_bytes and self._loaded.get(run_id) is kept:
                    del self._loaded[run_id]
        release_unused()

    def held_bytes(self) -> int:
        """Return about how much memory the analysed runs take, with all that was drawn of them."""
        with self._lock:
            return held_bytes(list(self._loaded.values()))


def _nobody_knows(_run: Path) -> bool:
    return False
