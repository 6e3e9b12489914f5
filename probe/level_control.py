"""Changes the level of a running session at step borders, on request or for its cost.

Every change, why it was made, and what the hooks took meanwhile go into the rank's
manifest. The cost of a rank is its own: a rank that lowers its level leaves the
others as they are, since agreeing would take communication.
"""

from __future__ import annotations

import os
from typing import Any

from .clock import now_ns, own_threads_cpu_ns
from .cost import ONE_IN, CostWindows
from .hook_set import HookSet
from .hooks.base import Capture
from .hooks.collective_times import refusal
from .levels import level_below, level_of
from .schema.errors import ConfigError
from .schema.manifest import RECORDING_KEY
from .schema.terms import CaptureLevel

_MOST_STRETCHES = 256
"""Changes of level that a manifest lists; of more the first ones and the newest stay."""


class LevelControl:
    """The level of one session, and the account of what it cost."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture
        self._source = capture.source("levels")
        self._wanted = level_of(capture.config.level)
        self._request: tuple[CaptureLevel, int] | None = None
        self._hooks: HookSet | None = None
        self._stretches: list[dict[str, Any]] = []
        self._windows: CostWindows | None = None

    def start(self, hooks: HookSet) -> None:
        """Install the hooks of the level that was chosen at the start."""
        self._hooks = hooks
        config = self._capture.config
        self._windows = CostWindows(
            self._capture.meter, steps=config.cost_window_steps, budget_ppm=config.cost_budget_ppm
        )
        self._set(self._wanted, "chosen at the start")

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
            raise ConfigError(reason, where=f"level {word}")
        if self._hooks is None:
            self._wanted = level
            return f"{level.value} as soon as torch is imported"
        first = self._capture.recorder.step + 1 if from_step is None else from_step
        self._request = (level, first)
        return f"{level.value} from step {first} on"

    def at_border(self) -> None:
        """Do what is due at the end of a step, in the training thread."""
        try:
            window = self._windows.step_ended() if self._windows is not None else None
            if window is not None:
                self._account(*window)
            request = self._request
            if request is not None and self._capture.recorder.step >= request[1]:
                self._set(request[0], "asked for")
                if self._request is request:
                    self._request = None
        except Exception as error:  # noqa: BLE001 - counted; training goes on
            self._source.failed(error)

    def close(self) -> None:
        """Write the account of the last, incomplete window."""
        if self._windows is not None and self._stretches:
            self._add(*self._windows.close())

    def _set(self, level: CaptureLevel, reason: str) -> None:
        assert self._hooks is not None
        if self._windows is not None and self._stretches:
            self._add(*self._windows.close())
        self._hooks.apply(level)
        reached = self._hooks.level
        if reached is not level:
            missing = ", ".join(sorted(self._hooks.coverage)) or "nothing"
            reason = f"{reason}: {level.value}, without {missing}"
        self._wanted = level
        if len(self._stretches) >= _MOST_STRETCHES:
            del self._stretches[_MOST_STRETCHES // 2]
        self._stretches.append(
            {
                "step": self._capture.recorder.step,
                "level": reached.value,
                "reason": reason,
                "start_ns": now_ns(),
                "steps": 0,
                "dur_ns": 0,
                "cost_ns": 0,
            }
        )
        self._publish()

    def _account(self, steps: int, dur_ns: int, cost_ns: int) -> None:
        """Add a window; lower the level if there were too many windows over budget."""
        self._add(steps, dur_ns, cost_ns)
        if self._capture.recorder.step <= self._capture.config.full_first_steps:
            return
        if self._windows is None or not self._windows.is_too_much(dur_ns, cost_ns):
            return
        below = level_below(self._wanted)
        if below is None:
            return
        share = f"{cost_ns / dur_ns:.2%}"
        budget = f"{self._capture.config.cost_budget_ppm / 1e6:.2%}"
        self._capture.recorder.count("levels_lowered")
        self._capture.tell_once(
            f"the hooks took {share} of the time (budget {budget}): the level is lowered from "
            f"{self._wanted.value} to {below.value}"
        )
        self._set(below, f"over budget: {share} of the time, {budget} allowed")

    def _add(self, steps: int, dur_ns: int, cost_ns: int) -> None:
        stretch = self._stretches[-1]
        for name, amount in (("steps", steps), ("dur_ns", dur_ns), ("cost_ns", cost_ns)):
            stretch[name] += amount
        self._note()

    def _note(self) -> None:
        recorder, meter = self._capture.recorder, self._capture.meter
        recorder.annotate(RECORDING_KEY, [dict(stretch) for stretch in self._stretches])
        cost: dict[str, Any] = {
            "per_call_ns": meter.per_call_ns(),
            "hop_ns": meter.hop_ns,
            "frame_ns": meter.frame_ns,
            "frames": meter.frames,
            "bare_border_ns": meter.bare_border_ns(),
            "sampled_one_in": ONE_IN,
        }
        if self._capture.config.compare_window_steps:
            cost["threads_cpu_ns"] = own_threads_cpu_ns()
        recorder.annotate("cost", cost)

    def _publish(self) -> None:
        self._note()
        self._capture.recorder.publish()
