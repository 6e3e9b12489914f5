"""Where the agent of a node writes: ``host-<name>/`` in the run, for one agent at a time.

The lock file decides who samples: of several agents of one run on one node the first.
An agent that comes after one that was killed goes on in the same directory; the manifest
keeps who was there before.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..clock import clock_pair, now_ns, unix_ns
from ..recording.rank_manifest import boot_id
from ..recording.segment_series import SegmentSeries, SeriesBounds
from ..schema.errors import ConfigError, MeshscopeError, RunDirectoryError, SchemaError
from ..schema.host_records import Row, encode_rows
from ..schema.manifest import (
    DIRECTORY_MODE,
    FILE_MODE,
    MANIFEST_NAME,
    create_directory,
    host_directory,
    read_json,
    write_json,
)
from ..schema.message import message
from ..schema.tables import FORMAT_VERSION

LOCK_NAME = "agent.lock"
_CLOCK_PAIRS_KEPT = 1024
_MANIFEST_NS = 10_000_000_000
_KEPT_AGENTS = 64
_MOST_ROWS = 65_536
"""Rows that wait in memory while the disk takes none; then the oldest are dropped."""


class AgentRunningError(ConfigError):
    """Another agent samples this node for the run already."""


class HostDirectory:
    """The manifest and segments of a node in one run.

    Attributes:
        path: The directory.
        host: Name of the machine.
    """

    def __init__(self, run_path: Path, bounds: SeriesBounds) -> None:
        """Take the directory.

        Raises:
            AgentRunningError: Another agent holds it.
            ConfigError: It is not ours, or others may write to it.
            MeshscopeError: What is there was written by another format version.
            OSError: It cannot be made or written.
        """
        self.host = os.uname().nodename
        self._boot_id = boot_id()
        self.path, self._lock = _taken(run_path, self.host, self._boot_id)
        self._counters: Counter[str] = Counter()
        self._missing: dict[str, dict[str, int]] = {}
        self._facts: dict[str, Any] = {}
        self._clock_pairs: list[list[int]] = []
        self._rows: dict[str, list[Row]] = {}
        self._manifest_ns = now_ns()
        try:
            self._before = _agents_before(self.path)
            self._series = SegmentSeries(self.path, None, bounds, self.count)
            self._own: dict[str, Any] = {"pid": os.getpid(), "started_unix_ns": unix_ns()}
            self._clock_pairs.append(list(clock_pair()))
            self._write_manifest()
        except BaseException:
            os.close(self._lock)
            raise

    def count(self, name: str, amount: int) -> None:
        """Add to a counter of the manifest."""
        self._counters[name] += amount

    def note_missing(self, source: str, missing: Mapping[str, int]) -> None:
        """Add up what a reader could not read: source -> ``field: reason`` -> rows."""
        known = self._missing.setdefault(source, {})
        for key, rows in missing.items():
            known[key] = known.get(key, 0) + rows

    def state(self, facts: Mapping[str, Any]) -> None:
        """Set lasting facts; those of the same name are replaced."""
        self._facts |= facts
        self._manifest_ns = 0

    def add(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Keep rows until the next ``flush``."""
        for table, new in rows.items():
            waiting = self._rows.setdefault(table, [])
            waiting.extend(new)
            if (excess := len(waiting) - _MOST_ROWS) > 0:
                del waiting[:excess]
                self.count("rows_dropped", excess)

    def flush(self, *, final: bool = False) -> None:
        """Write the rows that wait, and the manifest if it is due. Failures are counted."""
        self._write_rows()
        if final:
            self._series.close()
            self._own["closed_unix_ns"] = unix_ns()
        if final or now_ns() - self._manifest_ns >= _MANIFEST_NS:
            if len(self._clock_pairs) >= _CLOCK_PAIRS_KEPT:
                del self._clock_pairs[_CLOCK_PAIRS_KEPT // 2]
            self._clock_pairs.append(list(clock_pair()))
            try:
                self._write_manifest()
            except OSError:
                self.count("manifest_write_errors", 1)
            self._manifest_ns = now_ns()

    def close(self) -> None:
        """Write what is left and give the directory up."""
        self.flush(final=True)
        os.close(self._lock)

    def _write_rows(self) -> None:
        rows, self._rows = {name: own for name, own in self._rows.items() if own}, {}
        if not rows:
            return
        try:
            payload = encode_rows(rows)
        except SchemaError:
            self.count("row_errors", sum(map(len, rows.values())))
            return
        self._series.append(payload, sum(map(len, rows.values())))

    def _write_manifest(self) -> None:
        content = {
            **self._facts,
            "format_version": FORMAT_VERSION,
            "host": self.host,
            "boot_id": self._boot_id,
            **self._own,
            "closed_unix_ns": self._own.get("closed_unix_ns"),
            "agents_before": self._before,
            "clock_pairs": self._clock_pairs,
            "counters": dict(self._counters),
            "missing": self._missing,
        }
        write_json(self.path / MANIFEST_NAME, content)


def _taken(run_path: Path, host: str, boot: str | None) -> tuple[Path, int]:
    """Return the directory of this node and its lock, held.

    Two machines of one name get two directories: the second has the boot in its name.
    """
    plain = host_directory(run_path, host)
    named = host_directory(run_path, f"{host}-{(boot or 'boot')[:8]}")
    for path in (plain, named):
        create_directory(path)
        _check_private(path)
        lock = os.open(
            path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(lock, 256, 0).decode(errors="replace").split()
            os.close(lock)
            if path == plain and len(holder) == 2 and holder[1] != (boot or "boot"):
                continue
            raise AgentRunningError(
                message("refused.agent_runs_already", pid=holder[0] if holder else "unknown"),
                where=str(path),
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()} {boot or 'boot'}".encode(), 0)
        return path, lock
    raise AssertionError("the second directory is refused or returned")


def _check_private(path: Path) -> None:
    """Refuse a directory that is a link, of somebody else, or open to others.

    Raises:
        ConfigError: It is.
    """
    found = path.lstat()
    problem = None
    if not stat.S_ISDIR(found.st_mode):
        problem = message("refused.no_directory")
    elif found.st_uid != os.geteuid():
        problem = message("refused.other_user")
    elif stat.S_IMODE(found.st_mode) & ~DIRECTORY_MODE:
        problem = message("refused.open_to_others")
    if problem is not None:
        raise ConfigError(problem, where=str(path), remedy=message("advice.make_private"))


def _agents_before(path: Path) -> list[dict[str, Any]]:
    """Return who wrote here before, from the manifest that is there; the oldest first.

    Raises:
        MeshscopeError: It is of another format version.
    """
    try:
        old = read_json(path / MANIFEST_NAME)
    except RunDirectoryError:
        return []
    if old.get("format_version") != FORMAT_VERSION:
        raise MeshscopeError(message("refused.other_version"), where=str(path / MANIFEST_NAME))
    before = old.get("agents_before")
    kept = (
        [entry for entry in before if isinstance(entry, dict)] if isinstance(before, list) else []
    )
    names = ("pid", "boot_id", "started_unix_ns", "closed_unix_ns", "counters", "missing")
    with suppress(KeyError):
        kept.append({name: old[name] for name in names})
    return kept[-_KEPT_AGENTS:]
