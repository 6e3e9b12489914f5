"""What summaries say of the large runs of a folder: their lines for good, their tables as far as there is room."""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from meshscope.analyze.scale.store import FOLDER
from meshscope.probe.schema.errors import MeshscopeError

from .run_entry import RunEntry, summary_entry
from .run_files import ContentKey, refuse_links_outside
from .summarised_run import SummarisedRun, summarised


class _Line(NamedTuple):
    """The line of the run list, and for which files."""

    key: ContentKey
    entry: RunEntry | None
    """None of a run that is not shown from summaries."""


class SummarisedRuns:
    """Reads summaries. The list looks at each run again and again: it needs no table after the first time."""

    def __init__(self, most_bytes: int) -> None:
        """Hold nothing yet.

        Args:
            most_bytes: How much tables may take; that of the run looked at last stays in any case.
        """
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._tables: OrderedDict[str, tuple[ContentKey, SummarisedRun]] = OrderedDict()

    def line(self, path: Path, key: ContentKey) -> RunEntry | None:
        """Return the line of a large run; None of any other run."""
        with self._lock:
            known = self._lines.get(path.name)
        if known is None or known.key != key:
            known = self._looked_up(path, key)[0]
        return known.entry

    def get(self, path: Path, key: ContentKey) -> SummarisedRun | None:
        """Return what the summaries of a large run say; None of any other run."""
        with self._lock:
            known, table = self._lines.get(path.name), self._tables.get(path.name)
            if table is not None and table[0] == key:
                self._tables.move_to_end(path.name)
                return table[1]
        if known is not None and known == _Line(key, None):
            return None
        return self._looked_up(path, key)[1]

    def _looked_up(self, path: Path, key: ContentKey) -> tuple[_Line, SummarisedRun | None]:
        found = None
        if (path / FOLDER).is_dir():
            with suppress(MeshscopeError):
                refuse_links_outside(path)
                found = summarised(path, key[-1])
        line = _Line(key, None if found is None else summary_entry(found, key[-1]))
        with self._lock:
            self._lines[path.name] = line
            self._tables.pop(path.name, None)
            if found is not None:
                self._tables[path.name] = key, found
                self._drop_oldest()
        return line, found

    def _drop_oldest(self) -> None:
        """Drop the tables that were looked at longest ago, as long as all have no room and one is left."""
        sizes = {name: run.nbytes() for name, (_, run) in self._tables.items()}
        total = sum(sizes.values())
        for name, size in list(sizes.items())[:-1]:
            if total <= self._most_bytes:
                return
            del self._tables[name]
            total -= size
