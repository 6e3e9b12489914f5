"""What a rank had issued last, as PyTorch's own recorder keeps it, noted where ours leaves communication out.

Over its budget the probe records communication in some windows of steps only, and a job may end in any
other. PyTorch keeps the newest operations on CPU tensors in memory by itself. They are looked at when a step
stands still, when an exception ends the program, and when another rank of the host dies, so a step that goes on
pays nothing for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from traceback import walk_tb
from types import TracebackType
from typing import Any

from ..clock import now_ns
from ..compat.works import recorded_operations
from ..hooks.base import Capture
from ..hooks.call_places import frame_of_program
from ..schema.manifest import LAST_OPERATIONS_KEY
from .standstill import WITH_COMMUNICATION

MOST_OF_GROUP = 32
"""Operations of a group that are noted: the job stands in one of its last."""
_MOST_TENSORS = 64
"""Of a coalesced call with more, the sizes would fill the manifest."""
_KEPT = (
    "record_id",
    "collective_seq_id",
    "profiling_name",
    "time_created_ns",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "output_dtypes",
    "state",
    "retired",
)


class LastOperations:
    """Notes the newest collectives of this rank while they are not recorded."""

    def __init__(
        self,
        capture: Capture,
        ids_of: Callable[[Iterable[str]], Mapping[str, str]],
        counts: Callable[[], Mapping[str, int]],
    ) -> None:
        """Prepare.

        Args:
            capture: Where notes go.
            ids_of: Returns the ids of process groups by the names that the backends give them.
            counts: Returns how many collectives each group has issued, by its id.
        """
        self._capture = capture
        self._source = capture.source("last_operations")
        self._ids_of = ids_of
        self._counts = counts
        self._is_final = False

    def note(self, error: BaseException | None = None) -> None:
        """Note them, unless communication is recorded now; any thread.

        Args:
            error: The exception that ends the program; None where its step only lasts.
        """
        capture = self._capture
        if capture.level >= WITH_COMMUNICATION or (self._is_final and error is None):
            return
        try:
            self._note(error)
        except Exception as failure:  # noqa: BLE001 - counted; the program goes on, or ends as it would
            self._source.failed(failure)

    def _note(self, error: BaseException | None) -> None:
        entries = newest_of_groups(recorded_operations(), self._ids_of)
        if not entries:
            return
        self._is_final = error is not None
        recorder = self._capture.recorder
        recorder.annotate(
            LAST_OPERATIONS_KEY,
            {
                "time_ns": now_ns(),
                "error": None if error is None else type(error).__name__,
                "place": None if error is None else _place(error.__traceback__),
                "collectives": dict(self._counts()),
                "entries": entries,
            },
        )
        recorder.publish()


def newest_of_groups(
    entries: Iterable[Mapping[str, Any]], ids_of: Callable[[Iterable[str]], Mapping[str, str]]
) -> list[dict[str, Any]]:
    """Return the newest collectives of each group, the oldest first, with the id of the group in place of its name.

    Args:
        entries: Those of the recorder, the newest last.
        ids_of: As in ``LastOperations``.
    """
    counts: Counter[str] = Counter()
    found: list[tuple[str, dict[str, Any]]] = []
    for entry in reversed(list(entries)):
        name = str(entry["process_group"][0])
        counts[name] += not entry["is_p2p"]
        if entry["is_p2p"] or counts[name] > MOST_OF_GROUP:
            continue
        kept = {key: entry.get(key) for key in _KEPT}
        if len(kept["input_sizes"] or ()) <= _MOST_TENSORS:
            found.append((name, kept))
    ids = ids_of(counts.keys())
    return [
        {**entry, "process_group": [ids[name], ""]} for name, entry in found[::-1] if name in ids
    ]


def _place(traceback: TracebackType | None) -> list[Any] | None:
    """Return function, file and line of the program where an exception came from; None if it knows none."""
    passed = [] if traceback is None else list(walk_tb(traceback))
    frame = frame_of_program(frame for frame, _ in reversed(passed))
    if frame is None:
        return None
    line = next(line for one, line in reversed(passed) if one is frame)
    return [frame.f_code.co_qualname, frame.f_code.co_filename, line]
