"""What the ranks of this node are doing now, from the newest records of their rings.

Definitions, over the last complete steps of a rank (medians over ``WINDOW`` of them; what is inside
of steps, over those that were recorded):

* step time: length of the step window;
* work: length of its forward and backward passes, less the waiting for communication in them;
* bubble: the share of the step in which its host waited for messages of the pipeline,
  their transfer included; only in a pipeline;
* straggler score: work over the median work of the others in its stage, minus 1; only
  with two others or more, since of two it cannot be known which is slow;
* MFU: model FLOPs of a step / (world size x peak x step time).

On a device that the host only launches for, host spans are not work and the host waits
for no message: the bubble is left out, and work, and with it the score, is the time that
the device itself took, where the rank records that (``device_time``).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from ..schema.records import SPAN_CODES
from ..schema.sampling import ONE_IN, WINDOW_STEPS
from ..schema.terms import SpanKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WINDOW = 16
WANTED = frozenset({"step", "span", "p2p", "completion", "device_time"})
_PASSES = (
    SpanKind.FORWARD,
    SpanKind.BACKWARD,
    SpanKind.BACKWARD_INPUT,
    SpanKind.BACKWARD_WEIGHT,
)
_PASS_CODES = tuple(SPAN_CODES[kind] for kind in _PASSES)
_MOST_OPEN_STEPS = 8
_MOST_EVENTS = 16_384
_MOST_WAITS = 65_536
_LEAST_OTHERS = 2
_LONGEST_PERIOD = WINDOW_STEPS * max(ONE_IN)
"""Steps from one recorded window to the next, at most."""

Interval = tuple[int, int]


class StepFigures(NamedTuple):
    """One complete step of a rank."""

    step: int
    dur_ns: int
    tokens: int | None
    work_ns: int
    """Length of the passes, without waits."""
    passes: int
    """Forward and backward spans in it."""
    piped_ns: int | None
    """Waiting for messages of the pipeline; None where no wait was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFigures:
    """One rank now; what is not known is None."""

    step: int
    step_time_s: float
    tokens_per_s: float | None
    stage: int
    work_s: float | None
    bubble_frac: float | None
    sees_waits: bool = True
    """Whether waits are known, and not in the work."""


class RankFollower:
    """Puts the records of one rank together into steps."""

    def __init__(self) -> None:
        self.steps: deque[StepFigures] = deque(maxlen=WINDOW)
        self._recorded: deque[StepFigures] = deque(maxlen=WINDOW)
        self.stage = -1
        self._has_begun = False
        self._passes: dict[int, list[Interval]] = defaultdict(list)
        self._step_of_pass: dict[int, int] = {}
        self._on_device: dict[int, list[int]] = defaultdict(list)
        self._messages: deque[int] = deque(maxlen=_MOST_EVENTS)
        self._waits: list[tuple[Interval, bool]] = []
        self._steps_without_waits = WINDOW

    def add(self, records: Mapping[str, Sequence[NDArray[np.void]]]) -> None:
        """Take new records of the rank, in the order in which they were made."""
        for rows in records.get("span", ()):
            self._add_spans(rows)
        for rows in records.get("p2p", ()):
            self._messages.extend(rows["slot_seq"].tolist())
        for rows in records.get("completion", ()):
            self._add_waits(rows)
        for rows in records.get("device_time", ()):
            self._add_device_times(rows)
        for rows in records.get("step", ()):
            for row in rows:
                self._end_step(row)
        self._forget_old()

    def figures(self, *, timed: bool, piped: bool) -> RankFigures | None:
        """Return what is known now, None before the first complete step.

        Args:
            timed: Whether spans last as long as the work in them.
            piped: Whether the job has more than one pipeline stage.
        """
        steps = list(self.steps)
        if not steps:
            return None
        time_s = median(step.dur_ns for step in steps) / 1e9
        tokens = [step.tokens for step in steps if step.tokens is not None]
        # A run that records some windows of steps only has nothing newer in between.
        recorded = [own for own in self._recorded if own.step >= steps[-1].step - _LONGEST_PERIOD]
        works = [own.work_ns for own in recorded] if timed else self._device_works(recorded)
        seen = bool(works) and min(works) > 0
        shares = [
            step.piped_ns / step.dur_ns
            for step in recorded
            if step.piped_ns is not None and step.dur_ns > 0
        ]
        return RankFigures(
            step=steps[-1].step,
            step_time_s=time_s,
            tokens_per_s=median(tokens) / time_s if tokens and time_s > 0 else None,
            stage=self.stage,
            work_s=median(works) / 1e9 if seen else None,
            bubble_frac=median(shares) if timed and piped and shares else None,
            sees_waits=self._steps_without_waits < WINDOW or not timed,
        )

    def _device_works(self, recorded: Sequence[StepFigures]) -> list[int]:
        """Return the time on the device of those steps whose passes all have one."""
        return [
            sum(self._on_device[own.step])
            for own in recorded
            if own.passes and len(self._on_device.get(own.step, ())) == own.passes
        ]

    def _add_spans(self, rows: NDArray[np.void]) -> None:
        columns = ("slot_seq", "step", "kind", "start_ns", "dur_ns", "stage")
        for event, step, kind, start_ns, dur_ns, stage in zip(
            *(rows[name].tolist() for name in columns), strict=True
        ):
            if kind in _PASS_CODES:
                self._passes[step].append((start_ns, start_ns + dur_ns))
                self._step_of_pass[event] = step
                self.stage = max(self.stage, stage)

    def _forget_old(self) -> None:
        """Bound what is kept of steps that never end, and of passes without a device time."""
        for old in sorted(self._passes)[:-_MOST_OPEN_STEPS]:
            del self._passes[old]
        del self._waits[:-_MOST_WAITS]
        for known, most in ((self._step_of_pass, _MOST_EVENTS), (self._on_device, 2 * WINDOW)):
            for oldest in list(known)[: max(len(known) - most, 0)]:
                del known[oldest]

    def _add_waits(self, rows: NDArray[np.void]) -> None:
        """Keep the waits, each with whether it was for a message of the pipeline."""
        known = set(self._messages)
        columns = (rows[name].tolist() for name in ("event_id", "wait_start_ns", "wait_end_ns"))
        for event, start, end in zip(*columns, strict=True):
            self._steps_without_waits = 0
            if 0 < start < end:
                self._waits.append(((start, end), event in known))

    def _add_device_times(self, rows: NDArray[np.void]) -> None:
        for event, dur_ns in zip(rows["event_id"].tolist(), rows["dur_ns"].tolist(), strict=True):
            if event in self._step_of_pass:
                self._on_device[self._step_of_pass.pop(event)].append(dur_ns)

    def _end_step(self, row: np.void) -> None:
        step, start_ns, dur_ns = int(row["step"]), int(row["start_ns"]), int(row["dur_ns"])
        tokens = int(row["tokens"])
        end_ns = start_ns + dur_ns
        within = [wait for wait in self._waits if wait[0][0] < end_ns and wait[0][1] > start_ns]
        self._waits = [wait for wait in self._waits if wait[0][1] > end_ns]
        piped = [interval for interval, is_piped in within if is_piped]
        piped_ns = common_ns(union(piped), [(start_ns, end_ns)]) if piped else None
        passes = self._passes.pop(step, [])
        if not self._has_begun:
            # Of the first step only the end was seen, or it warms up.
            self._has_begun = True
            return
        work_ns = sum(end - start for start, end in passes)
        work_ns -= common_ns(union([interval for interval, _ in within]), union(passes))
        ended = StepFigures(
            step, dur_ns, tokens if tokens >= 0 else None, work_ns, len(passes), piped_ns
        )
        self.steps.append(ended)
        if passes or piped_ns is not None:
            self._recorded.append(ended)
            self._steps_without_waits += 1


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return sorted intervals without overlap that cover the same."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif start < end:
            found.append((start, end))
    return found


def common_ns(first: Sequence[Interval], second: Sequence[Interval]) -> int:
    """Return for how long two unions both cover."""
    total, at, beside = 0, 0, 0
    while at < len(first) and beside < len(second):
        (start, end), (other_start, other_end) = first[at], second[beside]
        total += max(min(end, other_end) - max(start, other_start), 0)
        at, beside = (at + 1, beside) if end <= other_end else (at, beside + 1)
    return total


def straggler_scores(ranks: Mapping[int, RankFigures]) -> dict[int, float]:
    """Return how much longer each rank works than the others of its stage, as a share."""
    scores = {}
    for rank, own in ranks.items():
        others = [
            other.work_s
            for peer, other in ranks.items()
            if peer != rank
            and other.work_s is not None
            # A rank that records less than the others has its waits in its work.
            and (other.stage, other.sees_waits) == (own.stage, own.sees_waits)
        ]
        if own.work_s is not None and len(others) >= _LEAST_OTHERS and median(others) > 0:
            scores[rank] = own.work_s / median(others) - 1
    return scores
