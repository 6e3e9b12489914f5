"""When the device ran a stage: event pairs around its launch, never waited for.

A pair of events is recorded on the current stream around every compute span. Events
of one stream complete in order, so at each step border the training thread asks for
the oldest pairs until one is not complete yet; nothing is synchronised, and no other
thread takes part. Too many pairs in flight: the newest are dropped and counted.

**Host time.** The device's clock is its own. An event cannot happen before the host
recorded it, nor after the host saw it complete: each pair narrows the offset between
both clocks from below and above. A device that runs behind the host leaves a gap
between the two bounds; the lower one is used, and both are in the manifest. A new
anchor every minute keeps the device's times, which are floats, exact.

**What the host's lead hides.** Where the device began two spans in a row later than the host
launched them, and by more than the hooks took in between, it had work queued all the while:
that part of their time delays nothing (``cost``).

**When the events are read.** Reading one pair takes 40 us of a host whose caches are cold,
the fifth of it for each pair that follows at once. So after the first steps a few steps are
waited for, or many pairs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from ..clock import now_ns
from ..cost import COST_OVER_SEEN
from ..schema.manifest import DEVICE_CLOCK_KEY
from .base import Capture

ANCHOR_EVERY_NS = 60_000_000_000
DRIFT_ONE_IN = 10_000
"""The clocks of device and host drift apart by less than 100 ppm: crystals are made to 50 ppm."""
_ANNOTATION = DEVICE_CLOCK_KEY
_EACH_STEP_UNTIL = 16
"""Steps whose pairs are read at once: what the probe costs a job is judged by them."""
_READ_EVERY_STEPS = 8
_READ_AT_PAIRS = 64
_AHEAD_NS = 1_000_000
"""How much work the device must have queued at the least: ten times the error of its clock."""


class EventSource(Protocol):
    """What the device offers; ``cuda_events`` is the real one."""

    def stream(self) -> Any:
        """Return the current stream, which equals itself only."""

    def is_capturing(self) -> bool:
        """Tell whether the current stream is captured into a graph, where no event may go."""

    def record(self, stream: Any) -> Any:
        """Record an event on a stream and return it."""

    def is_complete(self, event: Any) -> bool:
        """Tell whether an event has happened; never waits."""

    def elapsed_ns(self, first: Any, second: Any) -> int:
        """Return the time between two complete events."""

    def give_back(self, event: Any) -> None:
        """Let an event be recorded again."""


class Mark(NamedTuple):
    """The begin of a span on the device."""

    stream: Any
    event: Any
    host_ns: int
    seen_ns: int
    """What was seen of the hooks' time until then."""


Taken = Callable[[int, int, int], None]
"""Takes when the device got to the issue of operations, to their begin and to their end, ns of the host."""


class _Pair(NamedTuple):
    begin: Mark
    end: Any
    event_id: int
    """Of the span; -1 where ``taken`` is to be reported."""
    taken: Taken | None
    issue: Mark | None
    """Of operations that were issued before this pair, which is a wait for them."""


class _Lead(NamedTuple):
    """How far the host was ahead at the begin of a span, and what the hooks had taken by then."""

    lead_ns: int
    seen_ns: int


class _Anchor:
    """An event that device times count from, and where it may lie on the host's clock."""

    def __init__(self, event: Any, recorded_ns: int) -> None:
        self.event = event
        self.recorded_ns = recorded_ns
        self.least_ns = recorded_ns
        self.most_ns: int | None = None

    def inherit(self, before: _Anchor, elapsed_ns: int) -> None:
        """Keep what the anchor before has shown, as far as clocks may have drifted since.

        Where the host never waits for its device, all that shows the offset may be long ago.
        """
        drift_ns = elapsed_ns // DRIFT_ONE_IN
        self.least_ns = max(self.least_ns, before.least_ns + elapsed_ns - drift_ns)
        if before.most_ns is not None:
            self.most_ns = before.most_ns + elapsed_ns + drift_ns

    def narrow(self, at_ns: int, recorded_ns: int, seen_ns: int) -> None:
        """Use an event ``at_ns`` after the anchor, its recording and when it was seen complete."""
        self.least_ns = max(self.least_ns, recorded_ns - at_ns)
        if self.most_ns is None or seen_ns - at_ns < self.most_ns:
            self.most_ns = seen_ns - at_ns


class DeviceTimes:
    """Times compute spans on the device, once there is one.

    Attributes:
        source: On or off, and its errors.
    """

    def __init__(self, capture: Capture, find: Callable[[], EventSource | None]) -> None:
        """Prepare.

        Args:
            capture: Where records go.
            find: Returns the events of the device, None as long as it is not in use.
        """
        self.source = capture.source("device_times")
        self._capture = capture
        self._find = find
        self._events: EventSource | None = None
        self._pending: dict[Any, deque[_Pair]] = {}
        self._count = 0
        self._leads: dict[Any, _Lead] = {}
        self._steps = 0
        self._stream: Any = None
        self._operations = 0
        self._anchor: _Anchor | None = None
        self._next_anchor: _Anchor | None = None

    def install(self) -> None:
        """Look for a device at the step borders from now on.

        Raises:
            NotApplicableError: This torch has none.
        """
        self._find()
        self._capture.device_times = self

    def remove(self) -> None:
        """Cease to record events, take those that are complete and give up the others."""
        self._take_all()
        self.source.on = False
        if self._capture.device_times is self:
            self._capture.device_times = None
        if self._count:
            self._capture.recorder.count("device_times_dropped", self._count)
        self._pending.clear()
        self._leads.clear()
        self._count = self._operations = 0

    def begin(self) -> Mark | None:
        """Record the begin of a span; None where that may not or cannot be done."""
        mark = self.mark()
        if mark is not None:
            self._stream = mark.stream
        return mark

    def computes_on(self, stream: Any) -> bool:
        """Tell whether spans are computed on a stream: what it waits for holds them up."""
        return bool(stream == self._stream)

    def mark(self) -> Mark | None:
        """Record an event on the current stream; None where that may not or cannot be done."""
        events = self._events
        if events is None or not self.source.on:
            return None
        try:
            if events.is_capturing():
                return None
            host_ns = now_ns()
            stream = events.stream()
            event = events.record(stream)
            return Mark(stream, event, host_ns, self._capture.meter.seen_ns())
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
            return None

    def end(self, begin: Mark | None, event_id: int) -> None:
        """Record the end of a span, whose record is ``event_id``."""
        if event_id >= 0:
            self._end(begin, event_id, None, None)

    def end_operation(self, begin: Mark, taken: Taken, issue: Mark | None = None) -> None:
        """Record that the stream has got over operations.

        Args:
            begin: Of the operations that run on the stream itself, or of the wait for them.
            taken: Takes their times.
            issue: When they were issued, where ``begin`` is that of a wait.
        """
        self._end(begin, -1, taken, issue)

    def drop(self, mark: Mark | None) -> None:
        """Give up an event whose time nobody will ask for."""
        if mark is not None and self._events is not None:
            self._events.give_back(mark.event)

    def _end(
        self, begin: Mark | None, event_id: int, taken: Taken | None, issue: Mark | None
    ) -> None:
        events = self._events
        if begin is None or events is None or not self.source.on:
            return
        try:
            full = self._count >= self._capture.config.max_pending_device_times
            if full or events.is_capturing() or events.stream() != begin.stream:
                events.give_back(begin.event)
                self.drop(issue)
                self._capture.recorder.count("device_times_dropped")
                return
            pair = _Pair(begin, events.record(begin.stream), event_id, taken, issue)
            self._operations += taken is not None
            self._pending.setdefault(begin.stream, deque()).append(pair)
            self._count += 1
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def step_ended(self) -> None:
        """Take the pairs that are complete by now; renew the anchor once a minute."""
        try:
            if self._events is None:
                self._events = self._find()
            if self._events is None or not self.source.on or self._events.is_capturing():
                return
            self._move_anchor(self._events)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)
        self._steps += 1
        # Steps are summed soon after their end: by then the ends of operations have to be known.
        early = self._steps <= _EACH_STEP_UNTIL or self._operations > 0
        if early or self._count >= _READ_AT_PAIRS or not self._steps % _READ_EVERY_STEPS:
            self._take_all()

    def _take_all(self) -> None:
        """Take the pairs that are complete by now."""
        events, anchor = self._events, self._anchor
        if events is None or anchor is None or not self.source.on:
            return
        try:
            if not events.is_capturing():
                for pairs in list(self._pending.values()):
                    self._take(pairs, events, anchor)
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self.source.failed(error)

    def _move_anchor(self, events: EventSource) -> None:
        """Set a new anchor where it is time, and use it once it has happened."""
        now = now_ns()
        newest = self._next_anchor or self._anchor
        if newest is None or now - newest.recorded_ns >= ANCHOR_EVERY_NS:
            self._next_anchor = _Anchor(events.record(events.stream()), now)
        elif self._next_anchor is not None and events.is_complete(self._next_anchor.event):
            if self._anchor is not None:
                elapsed_ns = events.elapsed_ns(self._anchor.event, self._next_anchor.event)
                self._next_anchor.inherit(self._anchor, elapsed_ns)
                events.give_back(self._anchor.event)
            self._anchor, self._next_anchor = self._next_anchor, None

    def _take(self, pairs: deque[_Pair], events: EventSource, anchor: _Anchor) -> None:
        """Record the complete pairs of one stream, oldest first."""
        complete = []
        while pairs and events.is_complete(pairs[0].end):
            pair = pairs.popleft()
            self._count -= 1
            start_ns = events.elapsed_ns(anchor.event, pair.begin.event)
            dur_ns = events.elapsed_ns(pair.begin.event, pair.end)
            anchor.narrow(start_ns, pair.begin.host_ns, now_ns() - dur_ns)
            issue_ns = start_ns
            if pair.issue is not None:
                issue_ns = events.elapsed_ns(anchor.event, pair.issue.event)
                events.give_back(pair.issue.event)
            complete.append((pair, issue_ns, start_ns, dur_ns))
            self._hide(pair.begin, anchor.least_ns + start_ns)
            events.give_back(pair.begin.event)
            events.give_back(pair.end)
        recorder, zero_ns = self._capture.recorder, anchor.least_ns
        for pair, issue_ns, start_ns, dur_ns in complete:
            if pair.taken is None:
                recorder.record_device_time(pair.event_id, zero_ns + start_ns, dur_ns)
            else:
                self._operations -= 1
                begin_ns = zero_ns + start_ns
                pair.taken(zero_ns + issue_ns, begin_ns, begin_ns + dur_ns)
        if complete:
            bounds = {"least_ns": anchor.least_ns, "most_ns": anchor.most_ns}
            recorder.annotate(_ANNOTATION, bounds)

    def _hide(self, begin: Mark, began_ns: int) -> None:
        """Take out of the cost what the hooks took since the span before, if the device was behind."""
        before = self._leads.get(begin.stream)
        if before is not None and begin.seen_ns < before.seen_ns:
            return  # The span around the last one: pairs come in the order of their ends.
        now = self._leads[begin.stream] = _Lead(began_ns - begin.host_ns, begin.seen_ns)
        if before is None:
            return
        seen_ns = now.seen_ns - before.seen_ns
        if min(before.lead_ns, now.lead_ns) > max(_AHEAD_NS, COST_OVER_SEEN * seen_ns):
            self._capture.meter.hidden_ns += seen_ns
