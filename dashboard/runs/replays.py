"""The replays of a run with changes: what they predict, and when everything recorded happens with them."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from meshscope.analyze import Trace
from meshscope.analyze.explain.whatif import (
    RepairedTimes,
    parse_changes,
    predict,
    repaired_times,
)
from meshscope.analyze.output.json import prediction_to_json
from meshscope.analyze.output.timeline.repaired import repaired_step
from meshscope.analyze.output.timeline.slices import StepSlices

from ..timeline.paths import LastAccount

Changes = tuple[tuple[str, ...], tuple[str, ...]]
"""What is repaired and what is set, as ``meshscope whatif`` takes them."""
_MOST_KEPT = 4
"""Changes that one compares; each is a replay of the whole run."""


class _Replay(NamedTuple):
    prediction: dict[str, Any]
    times: RepairedTimes | None
    """None where the passes are simulated."""


class Replays:
    """Replays of one run; the last few are kept, because a page, its JSON and its CSV ask for the same."""

    def __init__(self, trace: Trace, accounts: LastAccount) -> None:
        """Begin without any.

        Args:
            trace: The run.
            accounts: Where its account is kept.
        """
        self._trace = trace
        self._accounts = accounts
        self._lock = threading.Lock()
        self._kept: dict[Changes, _Replay] = {}

    def is_kept(self, changes: Changes) -> bool:
        """Return whether the answer for some changes is there, so that nobody waits for it."""
        return changes in self._kept

    def prediction(self, changes: Changes) -> dict[str, Any]:
        """Return the step time with some changes, as ``meshscope whatif`` has it.

        Raises:
            MeshscopeError: A change is not understood or does not fit, or the run has no replay.
        """
        return self._of(changes).prediction

    def repaired(self, changes: Changes, drawn: StepSlices) -> StepSlices | None:
        """Return a drawn step as the replay with some changes has it.

        None where the replay has no times of what was recorded, or the step is not among the analysed ones.

        Raises:
            MeshscopeError: As ``prediction``.
        """
        times = self._of(changes).times
        windows = self._accounts.of(self._trace).windows
        if times is None or drawn.step not in windows.steps:
            return None
        return repaired_step(windows, times, drawn)

    def _of(self, changes: Changes) -> _Replay:
        with self._lock:
            found = self._kept.get(changes)
            if found is None:
                asked = parse_changes(*changes)
                account = self._accounts.of(self._trace)
                result = prediction_to_json(asked, predict(account, asked), account.limits)
                found = _Replay(result, repaired_times(account, asked))
                for oldest in list(self._kept)[: 1 - _MOST_KEPT]:
                    del self._kept[oldest]
                self._kept[changes] = found
        return found
