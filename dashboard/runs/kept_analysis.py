"""The analysis of a run, kept on disk so that a server that starts again need not repeat it.

It lies in the run, or in the user's folder of caches where the run is a file, belongs to another tool or to
another user, or can be written by others. It counts only for the same files under the same name, read by the
same version: their sizes and times say so, or else the hash of their contents. Nothing is kept of a run that
may still be written.

``analysis.json`` says what it is of, and holds the line of the run list; it names the content of
``diagnosis.json``, which names that of each table. So several servers may write and read at once.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from meshscope.analyze import Diagnosis
from meshscope.analyze.load.ingested import is_ingested
from meshscope.analyze.load.kept_tables import is_closed
from meshscope.analyze.load.load import most_rows
from meshscope.analyze.load.stores import cache_folder
from meshscope.analyze.output.kept_diagnosis import NotKeptError, read_diagnosis, write_diagnosis
from meshscope.analyze.tables.source_code import code_version
from meshscope.analyze.tables.table_folder import DRAFT, close_to_others, drafted
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.manifest import create_directory, create_file, read_json, write_json
from meshscope.probe.schema.reading import open_file
from meshscope.probe.schema.rundir import is_run_directory

from .kept_pages import KeptPages
from .run_entry import RunEntry
from .run_files import ANALYSIS, SourceState, source_hash, source_state

_FACTS, _DIAGNOSIS = "analysis.json", "diagnosis.json"
_MOST_BYTES = 1 << 28
_MOST_ELSEWHERE = 200
"""Analyses in the user's folder of caches; the oldest go first."""
_SOURCES = ("analyze", "probe", "dashboard")
_UNUSABLE = (
    NotKeptError,
    MeshscopeError,
    OSError,
    RuntimeError,
    LookupError,
    TypeError,
    ValueError,
)
"""What is raised where nothing is kept, something else lies there, or it is damaged."""
_LOG = logging.getLogger(__name__)


class Kept(NamedTuple):
    """What is kept of a run."""

    diagnosis: Diagnosis
    no_path_because: str
    """Why no step has a critical path; empty if the analysed ones have one."""
    pages: KeptPages | None = None
    """What its pages say beside it; None of an analysis that is not kept."""


class KeptAnalyses:
    """Where analyses are kept, and which of them count."""

    def __init__(self, elsewhere: Path | None = None) -> None:
        """Keep what cannot lie in its run in a folder, by default one of the user's caches."""
        self.elsewhere = elsewhere or cache_folder().with_name("analyses")

    def line(self, path: Path, modified_ns: int) -> RunEntry | None:
        """Return what the run list says of a run, None if nothing is kept; only names, sizes and times are read.

        Args:
            path: The run.
            modified_ns: Newest modification of what was recorded, ns since the epoch.
        """
        with suppress(*_UNUSABLE):
            for folder in self._places(path):
                with suppress(*_UNUSABLE):
                    facts = _facts(folder, path)
                    if _is_stamped(facts, source_state(path)):
                        line = msgspec.convert(facts["line"], RunEntry)
                        return replace(
                            line,
                            run_id=path.name,
                            modified_ns=modified_ns,
                            state="ready",
                            error="",
                            is_summary=False,
                        )
        return None

    def read(self, path: Path) -> Kept | None:
        """Return what is kept of a run; None if nothing is, or it does not count or is damaged."""
        with suppress(*_UNUSABLE):
            for folder in self._places(path):
                with suppress(*_UNUSABLE):
                    return _read(folder, path)
        return None

    def keep(self, path: Path, kept: Kept, line: RunEntry, before: SourceState) -> KeptPages | None:
        """Keep the analysis of a run that nobody writes; return where its pages are, None if it is not kept.

        Args:
            path: The run.
            kept: What is kept of it.
            line: What the run list says of it.
            before: The state of its files before they were read.
        """
        try:
            if source_state(path).stamp != before.stamp:
                return None
            content = source_hash(path)
            # The hash is of what was analysed only if nothing changed until now.
            if source_state(path).stamp != before.stamp:
                return None
            places = self._places(path)
        except (OSError, RuntimeError) as error:
            _LOG.warning("the analysis of %s is not kept: %s", path, error)
            return None
        facts = {
            "code": _version(),
            "name": path.name,
            "stamp": before.stamp if before.is_settled else None,
            "content": content,
            "no_path_because": kept.no_path_because,
            "line": asdict(line),
        }
        private = [one for one in places if one.parent == self.elsewhere or _is_private(path)]
        written = (self._kept_in(folder, kept.diagnosis, facts) for folder in private)
        return next(filter(None, written), None)

    def _places(self, path: Path) -> list[Path]:
        name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        in_run = [path / ANALYSIS] if is_run_directory(path) else []
        return [*in_run, self.elsewhere / name]

    def _kept_in(
        self, folder: Path, diagnosis: Diagnosis, facts: dict[str, Any]
    ) -> KeptPages | None:
        try:
            if folder.parent == self.elsewhere:
                create_directory(self.elsewhere)
            with drafted(folder.parent, f"{ANALYSIS}.") as draft:
                text = json.dumps(write_diagnosis(diagnosis, draft)).encode()
                with open(create_file(draft / _DIAGNOSIS), "wb") as file:
                    file.write(text)
                facts = {**facts, "diagnosis": hashlib.sha256(text).hexdigest()}
                write_json(draft / _FACTS, facts)
                close_to_others(draft)
                _put(draft, folder)
        except (NotKeptError, OSError, ValueError) as error:
            _LOG.warning("the analysis of %s is not kept in %s: %s", facts["name"], folder, error)
            return None
        if folder.parent == self.elsewhere:
            self._drop_oldest()
        return _pages(folder, facts)

    def _drop_oldest(self) -> None:
        """Drop the oldest analyses beyond the most; another server may drop them meanwhile."""
        written_ns = {}
        with suppress(OSError):
            for place in self.elsewhere.iterdir():
                if not place.name.startswith(DRAFT):
                    with suppress(OSError):
                        written_ns[place] = place.lstat().st_mtime_ns
        for old in sorted(written_ns, key=written_ns.__getitem__)[:-_MOST_ELSEWHERE]:
            shutil.rmtree(old, ignore_errors=True)


def may_keep(path: Path, *, is_recent: bool, is_gone: bool) -> bool:
    """Return whether nobody writes into a run any more.

    Args:
        path: The run.
        is_recent: Whether it was written to lately.
        is_gone: Whether the processes of all its ranks are known to be gone.
    """
    return not is_recent or is_gone or is_ingested(path) or is_closed(path)


def _is_private(path: Path) -> bool:
    """Return whether a folder is this user's, and nobody else may change what lies in it.

    Raises:
        OSError: It is gone.
    """
    found = path.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _put(draft: Path, folder: Path) -> None:
    """Put what was drafted in its place; what another server has put there meanwhile is as good.

    Raises:
        OSError: It cannot be put there.
    """
    # Between these two a reader finds nothing kept, and analyses the run itself.
    shutil.rmtree(folder, ignore_errors=True)
    try:
        draft.rename(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def _facts(folder: Path, path: Path) -> dict[str, Any]:
    """Return what a folder says that it keeps of a run.

    Raises:
        NotKeptError: It is of another run or version.
        MeshscopeError, LookupError: Nothing is kept, or it is damaged.
    """
    facts = read_json(folder / _FACTS)
    if (facts["code"], facts["name"]) != (_version(), path.name):
        raise NotKeptError("it is of another version or run")
    return facts


def _is_stamped(facts: dict[str, Any], state: SourceState) -> bool:
    return state.is_settled and facts["stamp"] == state.stamp


def _read(folder: Path, path: Path) -> Kept:
    """Return what a folder keeps of a run.

    Raises:
        NotKeptError: It is of other files, of another version, or damaged.
        MeshscopeError, OSError, LookupError, TypeError, ValueError: It is damaged.
    """
    facts, state = _facts(folder, path), source_state(path)
    is_same = _is_stamped(facts, state)
    if not is_same and facts["content"] != source_hash(path):
        raise NotKeptError("it is of other files")
    with open_file(folder / _DIAGNOSIS, most_bytes=_MOST_BYTES) as file:
        text = file.read()
    if hashlib.sha256(text).hexdigest() != facts["diagnosis"]:
        raise NotKeptError("it is of another writer, or damaged")
    diagnosis = read_diagnosis(json.loads(text), folder)
    kept = Kept(diagnosis, str(facts["no_path_because"]), _pages(folder, facts))
    if not is_same:
        _stamp(folder, path, facts, state)
    return kept


def _pages(folder: Path, facts: dict[str, Any]) -> KeptPages:
    return KeptPages(folder, f"{facts['content']} {facts['diagnosis']}")


def _stamp(folder: Path, path: Path, facts: dict[str, Any], before: SourceState) -> None:
    """Note the state of files that were found to hold the same, so that nobody need read them again."""
    with suppress(OSError):
        is_still = before.is_settled and source_state(path).stamp == before.stamp
        if is_still and _is_private(folder) and _is_private(folder.parent):
            write_json(folder / _FACTS, {**facts, "stamp": before.stamp})


def _version() -> str:
    """Return the program that analyses, and how much of a run it reads: each change of it counts."""
    return f"{code_version(_SOURCES)} {most_rows()}"
