"""What the hooks cost by their own measure, and whether that is too much.

Timing every call would double what it measures. Of the records of a rank one in
``ONE_IN`` is made under the clock, which is a fair sample of all kinds: the number is
prime, so no pattern of a step falls in with it, and so small that a few steps show what they cost. A communication call also passes the
dispatcher twice, which cannot be timed from inside: that part is measured once, on an
operator of our own (``compat.dispatcher_hop_ns``); so is the frame that each module call
passes (``compat.wrapper_frame_ns``), whose calls are counted by the structure of the model
(``hooks.module_calls``). Borders of steps are all timed, by the CPU time of their thread:
on a busy host a thread waits for a CPU at a border as anywhere else. What no clock in a
hook sees is in ``COST_OVER_SEEN``.

What hooks take while the host is ahead of its device delays no step: the device has work
queued meanwhile. That part is taken out where both clocks show it (``hooks.device_times``).
On an H200 a job whose host is 20 to 60 ms ahead lost 0.3 % of its steps to hooks that took
3 % of the host's time.
"""

from __future__ import annotations

import math

from .clock import now_ns

ONE_IN = 7
COST_OVER_SEEN = 2
"""What hooks cost, over what they see of it: a hook is entered before its first look at the
clock and left after its last, the clock of CPU time is a system call, training finds its
caches used, and what is measured in a loop finds its own warm. Measured by attaching and
detaching in one process, on CPUs, by ``bench/self_measure.py``: 2.1 for a model of one module,
1.9 for one of 200."""
_MOST_NS = 100_000
_MOST_BARE = 4096
"""Borders that the median is taken of."""
WINDOWS_OVER_BUDGET = 3
"""So many windows in a row have to be over budget before less is recorded."""
CREDIT_NS = 10_000_000
"""What the hooks may take beyond the budget before less is recorded, once in a run: a hundredth of a second is
lost on no job, and is more than chance shows in the first steps of one that keeps its budget."""
_STARTING_STEPS = 2
"""What these take is paid once: groups are met, heads of records made, caches filled."""
_LEAST_STEPS = 2
"""Steps after them that a cost of steps is taken of, at the least."""


class BareBorders:
    """Borders in windows without the probe, where hooks only see that a step ends."""

    def __init__(self) -> None:
        self._taken_ns: list[int] = []

    def add(self, taken_ns: int) -> None:
        """Add the CPU time of one."""
        if len(self._taken_ns) < _MOST_BARE:
            self._taken_ns.append(taken_ns)

    def median_ns(self) -> int | None:
        """Return what is left of the probe in a step of a window without it; None if unknown."""
        if not self._taken_ns:
            return None
        return COST_OVER_SEEN * sorted(self._taken_ns)[len(self._taken_ns) // 2]


class CostMeter:
    """Adds up the sampled time of the hooks.

    Attributes:
        hop_ns: What a communication call takes in the dispatcher; 0 where it is not known.
        frame_ns: What a module call takes with nothing to record; 0 where it is not known.
        frames: How many of these there were so far.
        hidden_ns: What was seen of the hooks while the device had work queued beyond it: it delays nothing.
        bare: Borders in windows without the probe.
        once_ns: What took time once in a run: it tells nothing of the steps to come.
    """

    def __init__(self) -> None:
        self.hop_ns = 0
        self.once_ns = 0
        self.frame_ns = 0
        self.frames = 0
        self._calls = {"communication": 0, "wait": 0, "span": 0}
        self._taken_ns = dict.fromkeys(self._calls, 0)
        self._border_ns = 0
        self.hidden_ns = 0
        self.bare = BareBorders()
        self._reported_ns = 0

    def add(self, kind: str, taken_ns: int) -> None:
        """Add a sampled call of a kind: communication, wait or span.

        A call in which the thread lost its CPU counts as ``_MOST_NS``: the rest was not ours.
        """
        self._calls[kind] += 1
        self._taken_ns[kind] += min(taken_ns, _MOST_NS)

    def add_border(self, taken_ns: int) -> None:
        """Add the CPU time that a step border took; all of them are timed."""
        self._border_ns += taken_ns

    def leave_out(self, taken_ns: int, *, counts_once: bool = False) -> None:
        """Take CPU time out of a border.

        Args:
            taken_ns: What nothing but a comparison needs, or a long task.
            counts_once: A long task, which is seen whole, unlike a hook, is left in once.
        """
        self._border_ns -= taken_ns - (taken_ns // COST_OVER_SEEN if counts_once else 0)

    def add_facts_time(self, taken_ns: int) -> None:
        """Add what it took to record what the training code tells; all such calls are timed."""
        self._border_ns += min(taken_ns, _MOST_NS)

    def seen_ns(self) -> int:
        """Return what was seen of all that the hooks took so far, also while nothing waited for them."""
        sampled = sum(self._taken_ns.values()) + self._calls["communication"] * self.hop_ns
        return ONE_IN * sampled + self._border_ns + self.frames * self.frame_ns

    def total_ns(self) -> int:
        """Return the estimate of what the training lost to the hooks so far.

        It may go down: that the host was ahead is seen some steps later.
        """
        return COST_OVER_SEEN * (self.seen_ns() - self.hidden_ns) + self.once_ns

    def frames_ns(self) -> int:
        """Return the part of it in module calls with nothing to record."""
        return COST_OVER_SEEN * self.frames * self.frame_ns

    def samples(self) -> int:
        """Return how many calls were timed so far."""
        return sum(self._calls.values())

    def taken_since_last(self) -> int:
        """Return what the hooks took since the last call of this; never below 0.

        What the last calls said too much, because the host was ahead, the next ones say less.
        """
        taken_ns = max(self.total_ns() - self._reported_ns, 0)
        self._reported_ns += taken_ns
        return taken_ns

    def per_call_ns(self) -> dict[str, int | None]:
        """Return the mean time that is seen of a call by kind; None for one that no sample met."""
        found: dict[str, int | None] = {}
        for kind, calls in self._calls.items():
            mean = self._taken_ns[kind] // calls if calls else None
            if mean is not None and kind == "communication":
                mean += self.hop_ns
            found[kind] = mean
        return found


class _Since:
    """What passed, and what the hooks took, since some border."""

    def __init__(self, meter: CostMeter) -> None:
        self._meter = meter
        self._before = (now_ns(), meter.total_ns() - meter.once_ns, meter.samples())

    def now(self) -> tuple[int, int, int]:
        """Return the time (1 ns at least), what the hooks took of it, ns, and how many calls were timed."""
        before_ns, taken_ns, sampled = self._before
        meter = self._meter
        return (
            max(now_ns() - before_ns, 1),
            meter.total_ns() - meter.once_ns - taken_ns,
            meter.samples() - sampled,
        )


class CostCredit:
    """Tells early that a job will be over its budget by more than ``CREDIT_NS``.

    From few samples what the hooks take is known badly, and an order costs the run steps. So it is taken
    one standard error lower than it is measured, where single calls differ by as much as they take.

    Attributes:
        step_ns: The mean step so far, without the first ones.
    """

    def __init__(self, meter: CostMeter, *, budget_ppm: int) -> None:
        """Watch from the next border on.

        Args:
            meter: What the hooks take.
            budget_ppm: Allowed share of the time, in parts per million.
        """
        self.step_ns = 0
        self._meter = meter
        self._budget_frac = budget_ppm / 1e6
        self._steps = 0
        self._since = _Since(meter)

    def times_over(self, lead_ns: int) -> float | None:
        """Count a step; return how many times over budget steps are, None while credit is left.

        Args:
            lead_ns: Time from an order to the step that follows it, for which the credit must last.
        """
        self._steps += 1
        if self._steps <= _STARTING_STEPS:
            self._since = _Since(self._meter)
            return None
        all_ns, taken_ns, count = self._since.now()
        self.step_ns = all_ns // (self._steps - _STARTING_STEPS)
        if self._steps < _STARTING_STEPS + _LEAST_STEPS or not count or not self._budget_frac:
            return None
        cost_frac = taken_ns * (1 - 1 / math.sqrt(count)) / all_ns
        over_frac = cost_frac - self._budget_frac
        if over_frac <= 0 or over_frac * (all_ns + lead_ns) <= CREDIT_NS:
            return None
        return cost_frac / self._budget_frac


class SampledCost:
    """Tells whether one window of steps in so many, as was ordered, is too much or too little.

    An order of the first steps rests on few samples, and of steps that are like no later ones.

    Attributes:
        step_ns: The mean step so far.
    """

    def __init__(self, meter: CostMeter, *, budget_ppm: int) -> None:
        """Watch from now on.

        Args:
            meter: What the hooks take.
            budget_ppm: Allowed share of the time, in parts per million.
        """
        self.step_ns = 0
        self._since = _Since(meter)
        self._budget_frac = budget_ppm / 1e6
        self._steps = self._recorded = 0

    def step_ended(self, *, was_recorded: bool) -> None:
        """Count a step."""
        self._steps += 1
        self._recorded += was_recorded

    def times_over(self) -> tuple[float, float] | None:
        """Return how many times over budget the run were if all steps were recorded; None if unknown.

        Twice: one standard error lower than it is measured, and one higher.
        """
        all_ns, taken_ns, count = self._since.now()
        if not count or not self._recorded or not self._budget_frac:
            return None
        self.step_ns = all_ns // self._steps
        recorded_ns = taken_ns / self._recorded
        times, error = recorded_ns / (self.step_ns * self._budget_frac), 1 / math.sqrt(count)
        return times * (1 - error), times * (1 + error)


class CostWindows:
    """Compares the cost of each window of steps with a budget.

    The first window begins at the first border and the last one ends at the last: imports, groups, a last
    evaluation take minutes in which no hook works, so that their time would hide what steps cost.
    """

    def __init__(self, meter: CostMeter, *, steps: int, budget_ppm: int) -> None:
        """Watch from the first border on.

        Args:
            meter: What the hooks take.
            steps: Steps of a window.
            budget_ppm: Allowed share of the time, in parts per million; 0 allows all.
        """
        self._meter = meter
        self._steps = steps
        self._budget_ppm = budget_ppm
        self._done = 0
        self._over = 0
        self._start_ns: int | None = None
        self._border_ns = 0

    def begin(self) -> bool:
        """Begin at this border, if no earlier one was; return whether it is the first."""
        if self._start_ns is not None:
            return False
        self._start_ns = self._border_ns = now_ns()
        self._meter.taken_since_last()
        return True

    def step_ended(self) -> tuple[int, int, int] | None:
        """Count a step; return steps, length in ns and cost in ns of a window that is complete."""
        self._done += 1
        self._border_ns = now_ns()
        return self.close() if self._done >= self._steps else None

    def close(self) -> tuple[int, int, int]:
        """End the window at the last border and return what ``step_ended`` would; zeros without a step."""
        if not self._done or self._start_ns is None:
            return 0, 0, 0
        dur_ns = self._border_ns - self._start_ns
        # An estimate from few samples may exceed what it is a part of.
        window = (self._done, dur_ns, min(self._meter.taken_since_last(), dur_ns))
        self._done, self._start_ns = 0, self._border_ns
        return window

    def last(self, steps: int) -> None:
        """Make the windows from here on last so many steps."""
        self._steps, self._over = steps, 0

    def is_too_much(self, dur_ns: int, cost_ns: int) -> bool:
        """Tell whether so many windows in a row were over budget, this one included."""
        over = 0 < self._budget_ppm * dur_ns < cost_ns * 1_000_000
        self._over = self._over + 1 if over else 0
        if self._over < WINDOWS_OVER_BUDGET:
            return False
        self._over = 0
        return True
