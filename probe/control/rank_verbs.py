"""The verbs that every rank offers: what it does, and recording on, off and how much."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..clock import now_ns
from ..job.kill_switch import why_disabled
from ..schema.errors import ConfigError
from ..schema.message import message
from ..schema.terms import CaptureLevel
from .fields import Choice, Flag, Whole
from .rank_control import RankControl
from .switch import State
from .verbs import Refusal, Verb

_PATIENCE_S = 0.25
"""How long a verb waits for what it began; the rest shows in ``status``."""
_LARGEST = (1 << 62) - 1
_LEVELS = tuple(level.value for level in CaptureLevel)


def recording_verbs(control: RankControl) -> Iterable[Verb]:
    """Return the verbs about the recording of a rank."""
    verbs = _RecordingVerbs(control)
    return (
        Verb("status", "Tell what this rank does.", verbs.status),
        Verb("attach", "Begin to record.", verbs.attach),
        Verb(
            "detach",
            "Cease to record and take every hook out; with remove the socket goes too.",
            verbs.detach,
            {"remove": Flag(default=False)},
        ),
        Verb(
            "level",
            "Record at another level from a step on that has not begun.",
            verbs.level,
            {"level": Choice(_LEVELS), "first_step": Whole(0, _LARGEST)},
        ),
        Verb("flush", "Write what was recorded so far to disk.", verbs.flush),
    )


class _RecordingVerbs:
    def __init__(self, control: RankControl) -> None:
        self._control = control

    def status(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Return who this is, what it does, and where it is in the training."""
        control, listeners = self._control, self._control.listeners
        switch = control.switch
        age_ns = None if listeners.ended_ns < 0 else now_ns() - listeners.ended_ns
        recording = switch.recording
        return {
            "rank": control.rank,
            "pid": os.getpid(),
            "host": os.uname().nodename,
            "run": str(control.run_path),
            "state": switch.state.value,
            "step": listeners.step,
            "since_step_ns": age_ns,
            "not_recorded": {} if recording is None else dict(recording.coverage),
            "error": switch.error,
            "requests": control.log.count,
            "verbs": list(control.registry.names()),
        }

    def attach(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Begin to record, unless this is disabled."""
        control = self._control
        reason = why_disabled(os.environ, control.run_path)
        if reason:
            raise Refusal(message("reply.disabled", reason=reason))
        if control.switch.state is State.STOPPING:
            raise Refusal(message("reply.still_closing"))
        control.switch.turn_on(_PATIENCE_S)
        return self.status(values)

    def detach(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Cease to record; with ``remove`` for good."""
        control = self._control
        control.switch.turn_off(_PATIENCE_S, control.close if values["remove"] else None)
        return self.status(values)

    def level(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Change the level of what is recorded."""
        recording = self._control.switch.recording
        if recording is None or self._control.switch.state is not State.RECORDING:
            raise Refusal(message("reply.nothing_recorded"))
        if values["first_step"] <= self._control.step:
            raise Refusal(message("reply.step_begun", step=self._control.step))
        try:
            recording.set_level(values["level"], values["first_step"])
        except ConfigError as error:
            raise Refusal(
                message("reply.error", where=error.where, what=error.said["what"])
            ) from error
        return self.status(values)

    def flush(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Write the records to disk."""
        recording = self._control.switch.recording
        if recording is None:
            raise Refusal(message("reply.nothing_recorded"))
        recording.flush()
        return self.status(values)
