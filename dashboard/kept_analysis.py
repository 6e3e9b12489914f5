"""The analysis of a run, kept on disk so that a server that starts again need not repeat it.

It lies in the run, or in the user's folder of caches where the run is a file, belongs to another tool or cannot
be written. It counts only for the same files under the same name, read by the same version: their sizes and
times say so, or else the hash of their contents. Nothing is kept of a run that may still be written.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import meshscope
from meshscope.analyze import Diagnosis
from meshscope.analyze.load.ingested import is_ingested
from meshscope.analyze.load.kept_tables import is_closed
from meshscope.analyze.load.load import most_rows
from meshscope.analyze.load.stores import cache_folder
from meshscope.analyze.output.kept_diagnosis import NotKeptError, read_diagnosis, write_diagnosis
from meshscope.analyze.tables.table_folder import DRAFT, FOLDER, close_to_others, drafted
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.manifest import read_json
from meshscope.probe.schema.reading import file_hash
from meshscope.probe.schema.rundir import is_run_directory

from .clock import unix_ns
from .run_files import ANALYSIS, DERIVED

_FACTS = "analysis.json"
_SETTLED_NS = 2 * 10**9
"""A file changed later than so long before it was looked at may change again without another time."""
_MOST_ELSEWHERE = 200
"""Analyses in the user's folder of caches; the oldest go first."""
_SOURCES = ("analyze", "probe", "dashboard")
_LOG = logging.getLogger(__name__)


class Kept(NamedTuple):
    """What is kept of a run."""

    diagnosis: Diagnosis
    layout: str
    """The mesh as people write it."""
    no_path_because: str
    """Why no step has a critical path; empty if the analysed ones have one."""


class SourceState(NamedTuple):
    """The state of the files of a run, as their sizes and times tell it."""

    stamp: str
    is_settled: bool
    """Whether none of them changed just now, so that an equal stamp means equal contents."""


class KeptAnalyses:
    """Where analyses are kept, and which of them count."""

    def __init__(self, elsewhere: Path | None = None) -> None:
        """Keep what cannot lie in its run in a folder, by default one of the user's caches."""
        self._elsewhere = elsewhere or cache_folder().with_name("analyses")

    def read(self, path: Path) -> Kept | None:
        """Return what is kept of a run; None if nothing is, or it does not count or is damaged."""
        for folder in self._places(path):
            if (folder / _FACTS).is_file():
                with suppress(NotKeptError, MeshscopeError, OSError, KeyError, TypeError):
                    return _read(folder, path)
        return None

    def keep(self, path: Path, kept: Kept, before: SourceState) -> bool:
        """Keep the analysis of a run that nobody writes; return whether it is kept.

        Args:
            path: The run.
            kept: What is kept of it.
            before: The state of its files before they were read.
        """
        try:
            if source_state(path).stamp != before.stamp:
                return False
            facts = {
                "code": code_version(),
                "name": path.name,
                "stamp": before.stamp if before.is_settled else None,
                "content": _content(path),
                "layout": kept.layout,
                "no_path_because": kept.no_path_because,
            }
        except OSError:
            return False
        return any(self._kept_in(folder, kept.diagnosis, facts) for folder in self._places(path))

    def _places(self, path: Path) -> Iterator[Path]:
        if is_run_directory(path):
            yield path / ANALYSIS
        yield self._elsewhere / hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]

    def _kept_in(self, folder: Path, diagnosis: Diagnosis, facts: dict[str, Any]) -> bool:
        try:
            with drafted(folder.parent, f"{ANALYSIS}.") as draft:
                value = write_diagnosis(diagnosis, draft)
                text = json.dumps({**facts, "diagnosis": value})
                (draft / _FACTS).write_text(text, encoding="utf-8")
                close_to_others(draft)
                # Between these two a reader finds nothing kept, and analyses the run itself.
                shutil.rmtree(folder, ignore_errors=True)
                draft.rename(folder)
            if folder.parent == self._elsewhere:
                self._drop_oldest()
        except NotKeptError as error:
            _LOG.warning("an analysis cannot be kept: %s", error)
            return False
        except OSError:
            return False
        return True

    def _drop_oldest(self) -> None:
        kept = [place for place in self._elsewhere.iterdir() if not place.name.startswith(DRAFT)]
        for old in sorted(kept, key=lambda place: place.lstat().st_mtime_ns)[:-_MOST_ELSEWHERE]:
            shutil.rmtree(old, ignore_errors=True)


def may_keep(path: Path, *, is_recent: bool, is_gone: bool) -> bool:
    """Return whether nobody writes into a run any more.

    Args:
        path: The run.
        is_recent: Whether it was written to lately.
        is_gone: Whether the processes of all its ranks are known to be gone.
    """
    return not is_recent or is_gone or is_ingested(path) or is_closed(path)


def _read(folder: Path, path: Path) -> Kept:
    """Return what a folder keeps of a run.

    Raises:
        NotKeptError: It is of other files, of another version, or damaged.
        MeshscopeError, OSError, KeyError, TypeError: It is damaged.
    """
    facts = read_json(folder / _FACTS)
    if (facts["code"], facts["name"]) != (code_version(), path.name):
        raise NotKeptError("it is of another version or run")
    state = source_state(path)
    is_same = state.is_settled and facts["stamp"] == state.stamp
    if not is_same and facts["content"] != _content(path):
        raise NotKeptError("it is of other files")
    layout, reason = facts["layout"], facts["no_path_because"]
    if not (isinstance(layout, str) and isinstance(reason, str)):
        raise NotKeptError("it is damaged")
    return Kept(read_diagnosis(facts["diagnosis"], folder), layout, reason)


def source_state(path: Path) -> SourceState:
    """Return the state of the files of a run, by their names, sizes and times.

    Raises:
        OSError: One is gone meanwhile.
    """
    whole, newest_ns = hashlib.sha256(), 0
    for name, place in _sources(path):
        found = place.lstat()
        whole.update(f"{name}\0{found.st_size}\0{found.st_mtime_ns}\0".encode(errors="replace"))
        newest_ns = max(newest_ns, found.st_mtime_ns)
    return SourceState(whole.hexdigest(), newest_ns + _SETTLED_NS < unix_ns())


def _content(path: Path) -> str:
    """Return the hash of what the files of a run hold.

    Raises:
        OSError: One cannot be read, or is no file.
    """
    whole = hashlib.sha256()
    for name, place in _sources(path):
        whole.update(f"{name}\0".encode(errors="replace"))
        whole.update(bytes.fromhex(file_hash(place)))
    return whole.hexdigest()


def _sources(path: Path) -> list[tuple[str, Path]]:
    """Return the files that an analysis follows from, by name; not what analyses have written."""
    if not path.is_dir():
        return [(path.name, path)]
    # The tables of other tools' traces are the run; those of a capture were made from it.
    derived = set(DERIVED) if is_run_directory(path) else set()
    derived -= {FOLDER} if is_ingested(path) else set()
    found = []
    for folder, folders, files in os.walk(path):
        if folder == str(path):
            folders[:] = [
                one for one in folders if one not in derived and not one.startswith(DRAFT)
            ]
        found += [Path(folder, name) for name in files]
    return sorted((str(place.relative_to(path)), place) for place in found)


@cache
def code_version() -> str:
    """Return the hash of the program that analyses, and of how much of a run it reads: each change of it counts."""
    whole = hashlib.sha256(f"{meshscope.__version__}\0{most_rows()}\0".encode())
    root = Path(meshscope.__file__).parent
    for part in _SOURCES:
        for place in sorted((root / part).rglob("*")):
            if place.suffix in (".py", ".toml"):
                whole.update(f"{place.relative_to(root)}\0".encode())
                whole.update(place.read_bytes())
    return whole.hexdigest()
