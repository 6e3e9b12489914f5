"""Where in the program communication is issued, noted once for each kind, element type and size of a group.

Ranks that issue different things are found from what is recorded of every call. Where the program
issues it is looked up when such a call is seen for the first time, and never again.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from ..schema.manifest import CALL_PLACES_KEY, MESSAGE_PLACES_KEY
from .base import Capture

MOST_PLACES = 256
"""Noted on a rank, of collectives and of messages each; a program with more different calls has sizes that change all the time."""
MOST_SIZES = 4096
"""Of one kind on one group, or to one peer, that are remembered; then they are met anew, which notes nothing more."""
_MOST_FRAMES = 500
_BETWEEN = ("meshscope.probe.", "torch.")
"""Modules between a line of the program and the operator."""
_INSTALLED = ("/site-packages/", "/dist-packages/")
_NO_PROGRAM = ("<", f"{sysconfig.get_path('stdlib')}/")


class CallPlaces:
    """Notes where calls that were not seen before come from."""

    def __init__(self, capture: Capture) -> None:
        """Prepare.

        Args:
            capture: Whose manifest the notes go to.
        """
        self._capture = capture
        self._noted: dict[str, list[list[Any]]] = {CALL_PLACES_KEY: [], MESSAGE_PLACES_KEY: []}

    def meet(self, sizes: set[int], group: int, kind: int, dtype: str, size_bytes: int) -> None:
        """Note where a collective was issued, of a size or type that its group has not seen before.

        Args:
            sizes: Sizes of its kind that the group has seen, extended by this one.
            group: Index of the group.
            kind: Position in CollectiveKind.
            dtype: Element type, "" if none.
            size_bytes: Message size.
        """
        self._note(CALL_PLACES_KEY, sizes, [group, kind, dtype, size_bytes])

    def meet_message(
        self, sizes: set[int], group: int, direction: int, peer: int, dtype: str, size_bytes: int
    ) -> None:
        """Note where a message was issued, of a size or type that was not seen before between the two.

        Args:
            sizes: Sizes that were seen in its direction between the two, extended by this one.
            group: Index of the group.
            direction: Position in Direction.
            peer: Global rank of the other end, -1 if any.
            dtype: Element type, "" if none.
            size_bytes: Message size.
        """
        self._note(MESSAGE_PLACES_KEY, sizes, [group, direction, peer, dtype, size_bytes])

    def _note(self, key: str, sizes: set[int], call: list[Any]) -> None:
        """Note where a call came from; its last part is its size."""
        if len(sizes) >= MOST_SIZES:
            sizes.clear()
        sizes.add(call[-1])
        noted = self._noted[key]
        if len(noted) >= MOST_PLACES:
            return
        frame = frame_of_program(callers_of(sys._getframe(1)))
        if frame is None or any(one[: len(call)] == call for one in noted):
            return
        place = [frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno or 0]
        noted.append([*call, *place])
        if len(noted) == 1:
            # Noted once: what is appended later is in the manifest when that is written.
            self._capture.recorder.annotate(key, noted)
        # By the writer's thread, at once: what differs may abort the process.
        self._capture.recorder.publish(soon=True)
        self._capture.recorder.wake()


def callers_of(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, the innermost first."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def frame_of_program(frames: Iterable[FrameType]) -> FrameType | None:
    """Return the innermost frame in the program's own files; of others if there is none; None without any.

    Others are those of installed packages, whose wrappers around torch would give one line to all calls.

    Args:
        frames: The innermost first.
    """
    other = None
    for frame in frames:
        name = str(frame.f_globals.get("__name__", ""))
        if name != "torch" and not name.startswith(_BETWEEN):
            file = frame.f_code.co_filename
            if not file.startswith(_NO_PROGRAM) and not any(part in file for part in _INSTALLED):
                return frame
            other = other or frame
    return other
