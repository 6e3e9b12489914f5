"""Changes how much a running session records, at step borders, on request or for its cost.

What costs too much is recorded in one window of steps in so many, the same on all ranks
(``sample_order``). A rank for which the least of that is too dear lowers its own level and leaves
the others as they are. Every change, why it was made, and what the hooks took meanwhile go into
the rank's manifest.
"""

from __future__ import annotations

import os
from threading import get_native_id, main_thread
from typing import Any

from ..clock import now_ns, own_threads_cpu_ns, thread_cpu_ns, thread_queued_ns
from ..cost import COST_OVER_SEEN, ONE_IN, CostCredit, CostWindows, SampledCost
from ..hooks.base import Capture
from ..hooks.collective_times import refusal
from ..schema.errors import ConfigError
from ..schema.manifest import RECORDING_KEY
from ..schema.message import Message, message, message_to_cell
from ..schema.sampling import (
    EARLY_WINDOW_STEPS,
    FIRST_SEQ_BITS,
    MOST_ONE_IN,
    WINDOW_STEPS,
    begins_window,
    is_recorded,
    least_one_in,
    next_window,
)
from ..schema.terms import CaptureLevel
from ..settings.config import level_below, level_of
from .hook_set import HookSet
from .sample_order import ALL_STEPS, MOST_ROUNDS, Sample, SampleOrder

_MOST_STRETCHES = 256
"""Changes of level that a manifest lists; of more the first ones and the newest stay."""


class _Queue:
    """How long the thread that trains waits for a processor."""

    def __init__(self, native_id: int | None) -> None:
        self.native_id = native_id
        self._last_ns = thread_queued_ns(native_id)

    def since_last(self) -> int | None:
        """Return how long the thread has waited since this was last asked, in ns; None if unknown."""
        before, self._last_ns = self._last_ns, thread_queued_ns(self.native_id)
        return None if before is None or self._last_ns is None else self._last_ns - before


class LevelControl:
    """The level of one session, and the account of what it cost.

    Attributes:
        order: Of how many windows of steps the ranks of the run record one.
    """

    def __init__(self, capture: Capture) -> None:
        self.order = SampleOrder(self._tell_order)
        self._sample = ALL_STEPS
        self._capture = capture
        self._source = capture.source("levels")
        self._wanted = level_of(capture.config.level)
        self._request: tuple[CaptureLevel, int] | None = None
        self._hooks: HookSet | None = None
        self._stretches: list[dict[str, Any]] = []
        self._windows: CostWindows | None = None
        self._credit: CostCredit | None = None
        self._sampled: SampledCost | None = None
        self._queue: _Queue | None = None

    def start(self, hooks: HookSet) -> None:
        """Install the hooks of the level that was chosen at the start."""
        self._hooks = hooks
        config = self._capture.config
        self._windows = CostWindows(
            self._capture.meter, steps=config.cost_window_steps, budget_ppm=config.cost_budget_ppm
        )
        # Whoever attaches to a running job is another thread than the one that trains.
        self._queue = _Queue(main_thread().native_id)
        self._credit = CostCredit(self._capture.meter, budget_ppm=config.cost_budget_ppm)
        self._set(self._wanted, message("level.chosen"))

    def request(self, word: str, from_step: int | None = None) -> str:
        """Ask for a level from any thread; return what will happen, in words.

        Args:
            word: A ``CaptureLevel``.
            from_step: First step at that level, the same on all ranks, so that what they
                record of messages fits together; by default the next one of this rank.

        Raises:
            ConfigError: There is no such level, or it would harm the job.
        """
        level = level_of(word)
        reason = refusal(self._capture.config, os.environ)
        if level is CaptureLevel.KERNELS and reason is not None:
            raise ConfigError(message("refused.reason", reason=reason), where=f"level {word}")
        if self._hooks is None:
            self._wanted = level
            return f"{level.value} as soon as torch is imported"
        first = self._capture.recorder.step + 1 if from_step is None else from_step
        self._request = (level, first)
        return f"{level.value} from step {first} on"

    def look_for_order(self) -> None:
        """See what the ranks of the run are to record, in a thread that may touch files."""
        if self._source.on:
            try:
                self.order.look()
            except Exception as error:  # noqa: BLE001 - counted; training goes on
                self._source.failed(error)

    def at_border(self) -> None:
        """Do what is due at the end of a step, in the training thread."""
        try:
            self._follow_thread()
            self._count_step()
            self._look_at_credit()
            self._look_at_sampled()
            request = self._request
            if request is not None and self._capture.recorder.step >= request[1]:
                self._set(request[0], message("level.asked"))
                if self._request is request:
                    self._request = None
            self._follow_order()
            if self.order.hasten(self._capture.recorder.step):
                self._capture.recorder.wake()
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)

    def close(self) -> None:
        """Write the account of the last, incomplete window."""
        if self._windows is not None and self._stretches:
            self._add(*self._windows.close())

    def _count_step(self) -> None:
        """Add the step that ended to its window, and the window to the account once it is complete."""
        if self._windows is None:
            return
        if self._windows.begin():
            if self._queue is not None:
                self._queue.since_last()
            return
        window = self._windows.step_ended()
        if window is not None:
            self._account(*window)

    def _follow_thread(self) -> None:
        """Watch the thread that ends steps; what another one waited before is unknown."""
        own = get_native_id()
        if self._queue is not None and self._queue.native_id != own:
            self._queue = _Queue(own)
            self._stretches[-1]["queued_ns"] = None

    def _look_at_credit(self) -> None:
        """Ask all ranks for less as soon as this one sees that it will be over its budget."""
        credit = self._credit
        if credit is None or self._sample != ALL_STEPS or self.order.is_coming(ALL_STEPS):
            return
        step = self._capture.recorder.step
        times_over = credit.times_over(self.order.ahead_ns(step, credit.step_ns))
        if times_over is not None and self._wanted is not CaptureLevel.STEPS:
            self._ask(least_one_in(times_over) or MOST_ONE_IN, credit.step_ns)

    def _look_at_sampled(self) -> None:
        """Ask for less or for more at the end of a window that was recorded, where its order proves wrong.

        Only who gave an order asks for more: to others the run may be cheap that is dear to that rank.
        """
        sampled, now, step = self._sampled, self._sample, self._capture.recorder.step
        if sampled is None:
            return
        was_recorded = is_recorded(step - 1, now.one_in)
        sampled.step_ended(was_recorded=was_recorded)
        if not was_recorded or not begins_window(step) or self.order.is_coming(now):
            return
        times_over = sampled.times_over()
        if times_over is None:
            return
        least, enough = (least_one_in(times) or MOST_ONE_IN for times in times_over)
        if least > now.one_in:
            self._ask(least, sampled.step_ns)
        elif enough < now.one_in and self.order.is_own and now.round < MOST_ROUNDS:
            self._ask(enough, sampled.step_ns)

    def _ask(self, one_in: int, step_ns: int) -> None:
        step, now = self._capture.recorder.step, self._sample
        ahead = -(-self.order.ahead_ns(step, step_ns) // max(step_ns, 1))
        first_step = max(step + ahead, EARLY_WINDOW_STEPS)
        # What is recorded in windows already, is so in whole ones.
        if now.one_in > 1:
            first_step = next_window(first_step)
        self.order.ask(Sample(one_in, first_step, now.round + (one_in < now.one_in)))

    def _follow_order(self) -> None:
        """Take the hooks out, or put them in again, where the order or a window of it begins."""
        hooks, ordered, step = self._hooks, self.order.newest, self._capture.recorder.step
        if hooks is None or ordered is None:
            return
        begins = begins_window(step)
        is_new = step >= ordered.first_step and ordered.overrules(self._sample)
        # What is recorded beyond the order before begins with a window, also where this rank learns of it late.
        is_new &= begins or ordered.one_in > self._sample.one_in
        if is_new:
            self._begin_to_sample(ordered)
        one_in = self._sample.one_in
        if self._sample == ALL_STEPS or not (is_new or begins):
            return
        entered_ns = thread_cpu_ns()
        if not is_recorded(step, one_in):
            hooks.pause()
        elif begins and (is_new or one_in > 1 or is_recorded(step, MOST_ONE_IN)):
            # What was recorded before is resumed, too, so that all ranks begin with the same numbers.
            hooks.pause()
            hooks.resume(first_seq=step << FIRST_SEQ_BITS)
        self._capture.meter.leave_out(thread_cpu_ns() - entered_ns, counts_once=True)

    def _begin_to_sample(self, ordered: Sample) -> None:
        assert self._hooks is not None
        assert self._windows is not None
        self._sample = ordered
        config, meter = self._capture.config, self._capture.meter
        period = WINDOW_STEPS * ordered.one_in
        windows = -(-config.cost_window_steps // period)
        is_all = ordered.one_in == 1
        reason = (
            message("level.within_budget")
            if is_all
            else message("level.sampled", one_in=ordered.one_in)
        )
        self._begin_stretch(self._hooks.level, reason)
        self._windows.last(windows * period)
        self._sampled = None if is_all else SampledCost(meter, budget_ppm=config.cost_budget_ppm)

    def _tell_order(self, ordered: Sample) -> None:
        first, one_in = ordered.first_step, ordered.one_in
        share = "all steps" if one_in == 1 else f"1 step in {one_in}, in windows"
        is_more = one_in < self._sample.one_in
        why = f"{'less' if is_more else 'more'} than {self._budget} of the time"
        self._capture.tell_once(
            f"the hooks take {why}: from step {first} on all ranks record {share}"
        )

    @property
    def _budget(self) -> str:
        return f"{self._capture.config.cost_budget_ppm / 1e4:.2f} %"

    def _set(self, level: CaptureLevel, reason: Message) -> None:
        assert self._hooks is not None
        self._hooks.apply(level)
        reached = self._hooks.level
        if reached is not level:
            missing = sorted(self._hooks.coverage)
            reason = message("level.incomplete", because=reason, level=level.value, missing=missing)
        self._wanted = level
        self._begin_stretch(reached, reason)

    def _begin_stretch(self, level: CaptureLevel, reason: Message) -> None:
        if self._windows is not None and self._stretches:
            self._add(*self._windows.close())
        if len(self._stretches) >= _MOST_STRETCHES:
            del self._stretches[_MOST_STRETCHES // 2]
        self._stretches.append(
            {
                "step": self._capture.recorder.step,
                "level": level.value,
                "reason": message_to_cell(reason),
                "one_in": self._sample.one_in,
                "start_ns": now_ns(),
                "steps": 0,
                "dur_ns": 0,
                "cost_ns": 0,
                "queued_ns": 0,
            }
        )
        self._publish()

    def _account(self, steps: int, dur_ns: int, cost_ns: int) -> None:
        """Add a window; record less if there were too many windows over budget."""
        self._add(steps, dur_ns, cost_ns)
        config = self._capture.config
        if self._sample.one_in == 1 and self._capture.recorder.step <= config.full_first_steps:
            return
        if self._windows is None or not self._windows.is_too_much(dur_ns, cost_ns):
            return
        times_over = self._sample.one_in * cost_ns * 1e6 / (config.cost_budget_ppm * dur_ns)
        one_in = least_one_in(times_over)
        if one_in is not None and self._wanted is not CaptureLevel.STEPS:
            if not self.order.is_coming(self._sample):
                self._ask(one_in, dur_ns // max(steps, 1))
            return
        self._lower_level(dur_ns, cost_ns)

    def _lower_level(self, dur_ns: int, cost_ns: int) -> None:
        below = level_below(self._wanted)
        if below is None:
            return
        share = f"{100 * cost_ns / dur_ns:.2f} %"
        self._sampled = None
        self._capture.recorder.count("levels_lowered")
        self._capture.tell_once(
            f"the hooks took {share} of the time (budget {self._budget}): the level is lowered from "
            f"{self._wanted.value} to {below.value}"
        )
        budget_frac = self._capture.config.cost_budget_ppm / 1e6
        self._set(below, message("level.over_budget", share=cost_ns / dur_ns, allowed=budget_frac))

    def _add(self, steps: int, dur_ns: int, cost_ns: int) -> None:
        stretch = self._stretches[-1]
        for name, amount in (("steps", steps), ("dur_ns", dur_ns), ("cost_ns", cost_ns)):
            stretch[name] += amount
        queued_ns = None if self._queue is None else self._queue.since_last()
        if queued_ns is None or stretch["queued_ns"] is None:
            stretch["queued_ns"] = None
        else:
            # At the end of a run it is read after the last border, where the time of steps ends.
            stretch["queued_ns"] += min(queued_ns, dur_ns)
        self._note()

    def _note(self) -> None:
        recorder, meter = self._capture.recorder, self._capture.meter
        recorder.annotate(RECORDING_KEY, [dict(stretch) for stretch in self._stretches])
        cost: dict[str, Any] = {
            "per_call_ns": meter.per_call_ns(),
            "hidden_ns": COST_OVER_SEEN * meter.hidden_ns,
            "hop_ns": meter.hop_ns,
            "frame_ns": meter.frame_ns,
            "frames": meter.frames,
            "bare_border_ns": meter.bare.median_ns(),
            "sampled_one_in": ONE_IN,
        }
        if self._capture.config.compare_window_steps:
            cost["threads_cpu_ns"] = own_threads_cpu_ns()
        recorder.annotate("cost", cost)

    def _publish(self) -> None:
        self._note()
        self._capture.recorder.publish()
