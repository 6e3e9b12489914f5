"""The manifest of one rank: who it is, its names, counters and clock pairs."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..clock import clock_pair, unix_ns
from ..safety.bounded import within
from ..schema.clock_steps import clock_steps
from ..schema.manifest import MANIFEST_NAME, write_json
from ..schema.ring import RING_COPIED
from ..schema.tables import FORMAT_VERSION
from ..schema.terms import Axis
from ..settings.config import MOST_PUBLISH_S
from .unhandled import unhandled_exception

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CLOCK_PAIRS_KEPT = 1024
"""Of longer runs they are thinned out from the middle: offset and drift need both ends."""
_LOCK_TIMEOUT_S = 5.0
"""On a file system that hangs the caller goes on, and it is counted."""


class RankManifest:
    """Facts about a rank that do not fit fixed-size records.

    The names of groups and dtypes are on disk before a record that refers to
    them is, so that the ring of a killed process can be read. The lock is
    reentrant because a garbage collection callback may count something while
    its own thread is in here. It is never held while a file is written: who
    counts does not wait for a disk.

    Attributes:
        rank: Global rank.
    """

    def __init__(
        self,
        directory: Path,
        rank: int,
        device_uuid: str | None = None,
        *,
        slow_file_system: str | None = None,
        place: Mapping[str, int | None] | None = None,
    ) -> None:
        """Start the manifest and write it.

        Args:
            directory: Where the file goes.
            rank: Global rank.
            device_uuid: Its device, None if unknown.
            slow_file_system: Its type where it may make a writer wait. New names are then not
                written by whoever brings them, but when ``write_due`` is called; so they are
                anywhere once a disk has kept one of them waiting for too long.
            place: What else is known of where it is: ``world_size``, ``local_rank``.

        Raises:
            OSError: It cannot be written.
        """
        self.rank = rank
        self._path = directory / MANIFEST_NAME
        self._lock = threading.RLock()
        self._file_lock = threading.RLock()
        self._is_deferred = slow_file_system is not None
        self._is_due = False
        self._written = ""
        self._counters: Counter[str] = Counter()
        self._groups: dict[str, dict[str, Any]] = {}
        self._dtypes: dict[str, int] = {}
        self._clock_pairs: list[list[int]] = []
        self._latest_pair: list[int] = []
        self._annotations: dict[str, Any] = {}
        if slow_file_system is not None:
            self._annotations[RING_COPIED] = slow_file_system
        self._closed_unix_ns: int | None = None
        self._ended_by: str | None = None
        self._identity: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "rank": rank,
            "world_size": None,
            "local_rank": None,
            **(place or {}),
            "pid": os.getpid(),
            "host": os.uname().nodename,
            # Equal on all containers of a machine: they share the monotonic clock.
            "boot_id": boot_id(),
            "device_uuid": device_uuid,
            "started_unix_ns": unix_ns(),
        }
        self.sample_clocks()
        self._replace()

    def add_group(
        self, group_id: str, ranks: Sequence[int], description: str, axis: Axis | None
    ) -> int:
        """Return the index of a group, which is new or was added before."""
        with self._lock:
            is_new = group_id not in self._groups
            if is_new:
                self._groups[group_id] = {
                    "index": len(self._groups),
                    "ranks": [int(rank) for rank in ranks],
                    "description": description,
                    "axis": None if axis is None else Axis(axis).value,
                }
            index = int(self._groups[group_id]["index"])
        if is_new:
            self.publish()
        return index

    def add_dtype(self, name: str) -> int:
        """Return the index of an element type, which is new or was added before."""
        with self._lock:
            is_new = name not in self._dtypes
            index = self._dtypes.setdefault(name, len(self._dtypes))
        if is_new:
            self.publish()
        return index

    def count(self, name: str, amount: int) -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name] += amount

    def annotate(self, key: str, value: Any) -> None:
        """Set a fact; a value without JSON form is counted and left out."""
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            self.count("annotation_errors", 1)
            return
        with self._lock:
            self._annotations[key] = value

    def sample_clocks(self) -> None:
        """Add a clock pair; of very many the first half stays, the rest is the newest."""
        with self._lock:
            self._latest_pair = list(clock_pair())
            self._keep_pair(self._latest_pair)

    def watch_clocks(self) -> None:
        """Keep the readings before and after a moment at which the wall clock was put."""
        pair = list(clock_pair())
        with self._lock:
            before, self._latest_pair = self._latest_pair, pair
            if clock_steps([before, pair]):
                if before != self._clock_pairs[-1]:
                    self._keep_pair(before)
                self._keep_pair(pair)
                self._is_due = True

    def _keep_pair(self, pair: list[int]) -> None:
        if len(self._clock_pairs) >= _CLOCK_PAIRS_KEPT:
            del self._clock_pairs[_CLOCK_PAIRS_KEPT // 2]
        self._clock_pairs.append(pair)

    def publish(self, *, soon: bool = False) -> None:
        """Have on disk what is known now: at once, or, if asked or where the disk is slow, by the next ``write_due``."""
        if not self._is_deferred and not soon:
            try:
                within(MOST_PUBLISH_S, self.write)
                return
            except TimeoutError:
                self._is_deferred = True
                self.count("manifest_write_timeouts", 1)
        self._is_due = True

    def write_due(self) -> None:
        """Write what was to be published since the last time."""
        if self._is_due:
            self._is_due = False
            self.write()

    def write(self) -> None:
        """Replace the file if anything changed; a failure is counted, not raised."""
        try:
            self._replace()
        except (OSError, TypeError, ValueError):
            self.count("manifest_write_errors", 1)

    def write_closed(self) -> None:
        """Write the file a last time, with the mark of an orderly end."""
        self._closed_unix_ns = unix_ns()
        self._ended_by = unhandled_exception()
        self.sample_clocks()
        self.write()

    def _replace(self) -> None:
        # Bounded, as a signal handler may write in the middle of a change of this thread.
        if not self._file_lock.acquire(timeout=_LOCK_TIMEOUT_S):
            raise TimeoutError("another thread has been writing the manifest for long")
        try:
            with self._lock:
                content = self._content()
            text = repr(content)
            if text != self._written:
                write_json(self._path, content)
                self._written = text
        finally:
            self._file_lock.release()

    def _content(self) -> dict[str, Any]:
        """Return a copy that nobody changes any more."""
        return {
            **self._identity,
            "closed_unix_ns": self._closed_unix_ns,
            "ended_by": self._ended_by,
            "groups": [{"group_id": name, **self._groups[name]} for name in self._groups],
            "dtypes": list(self._dtypes),
            "clock_pairs": list(self._clock_pairs),
            "counters": dict(self._counters),
            "annotations": dict(self._annotations),
        }


def boot_id() -> str | None:
    """Return the id of this boot of the machine, None where there is none."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
