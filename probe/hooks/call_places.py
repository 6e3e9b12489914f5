"""Where in the program collectives are issued, noted once for each kind, element type and size of a group.

Members of a group that issue different things are found from what is recorded of every call. Where the
program issues it is looked up when such a call is seen for the first time, and never again.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from ..schema.manifest import CALL_PLACES_KEY
from .base import Capture

MOST_PLACES = 256
"""Noted on a rank; a program with more different calls has sizes that change all the time."""
MOST_SIZES = 4096
"""Of one kind on one group that are remembered; then they are met anew, which notes nothing more."""
_MOST_FRAMES = 500
_BETWEEN = ("meshscope.probe.", "torch.")
"""Modules between a line of the program and the operator."""


class CallPlaces:
    """Notes where calls that were not seen before come from."""

    def __init__(self, capture: Capture) -> None:
        """Prepare.

        Args:
            capture: Whose manifest the notes go to.
        """
        self._capture = capture
        self._noted: list[list[Any]] = []

    def meet(self, sizes: set[int], group: int, kind: int, dtype: str, size_bytes: int) -> None:
        """Note where a call was issued, of a size or type that its group has not seen before.

        Args:
            sizes: Sizes of its kind that the group has seen, extended by this one.
            group: Index of the group.
            kind: Position in CollectiveKind.
            dtype: Element type, "" if none.
            size_bytes: Message size.
        """
        if len(sizes) >= MOST_SIZES:
            sizes.clear()
        sizes.add(size_bytes)
        if len(self._noted) >= MOST_PLACES:
            return
        call = [group, kind, dtype, size_bytes]
        frame = _of_program(sys._getframe(1))
        if frame is None or any(one[: len(call)] == call for one in self._noted):
            return
        place = [frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno or 0]
        self._noted.append([*call, *place])
        if len(self._noted) == 1:
            # Noted once: what is appended later is in the manifest when that is written.
            self._capture.recorder.annotate(CALL_PLACES_KEY, self._noted)


def _of_program(frame: FrameType | None) -> FrameType | None:
    """Return the innermost function that is neither ours nor torch's; None where the call came from elsewhere."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        name = str(frame.f_globals.get("__name__", ""))
        if name != "torch" and not name.startswith(_BETWEEN):
            return frame
        frame = frame.f_back
    return None
