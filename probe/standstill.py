"""How far each group came, noted when a rank stands still where communication is not recorded.

The ring tells the last collective of a rank that hangs, but not while a run over its budget leaves
communication out. Backends count collectives by themselves. That count is read when a step lasts for
long, by the thread that writes. Where it is the same at two looks it goes into the rank's manifest:
ranks that go on are read at different moments, and would look as if one was behind another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .clock import now_ns
from .hooks.base import Capture
from .schema.manifest import STANDSTILL_KEY
from .schema.records import LEVEL_CODES
from .schema.terms import CaptureLevel

LOOK_NS = 10_000_000_000
"""So long no step has ended before the first look, and so long there is until the next one."""
_WITH_COMMUNICATION = LEVEL_CODES[CaptureLevel.COLLECTIVES]


class StandstillWatch:
    """Looks at the counts of the backends now and then, and notes those that have not changed."""

    def __init__(self, capture: Capture, counts: Callable[[], Mapping[str, int]]) -> None:
        """Prepare.

        Args:
            capture: Where notes go.
            counts: Returns how many collectives each group has issued, by its id.
        """
        self._capture = capture
        self._source = capture.source("standstill")
        self._counts = counts
        self._step = -1
        self._due_ns = 0
        self._seen: Mapping[str, int] = {}
        self._noted: Mapping[str, int] = {}

    def look(self) -> None:
        """Look if it is time; called every now and then by a thread that may touch files."""
        capture, time_ns = self._capture, now_ns()
        if capture.recorder.step != self._step:
            self._step, self._due_ns, self._seen = capture.recorder.step, time_ns + LOOK_NS, {}
        if time_ns < self._due_ns or not self._source.on:
            return
        self._due_ns = time_ns + LOOK_NS
        if capture.level >= _WITH_COMMUNICATION:
            return
        try:
            before, self._seen = self._seen, self._counts()
            standing = self._seen if self._seen == before else {}
            if standing != self._noted:
                self._noted = standing
                note = {"time_ns": time_ns, "collectives": dict(standing)}
                capture.recorder.annotate(STANDSTILL_KEY, note)
                capture.recorder.publish()
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)
