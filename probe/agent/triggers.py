"""What makes an agent record a few steps in depth by itself: a signal, or a suspicion."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from ..deep.arming import Armed, arm
from ..safety.notices import tell
from ..schema.errors import MeshscopeError

SUSPICIOUS_FRAC = 0.10
"""A rank that works this much longer than the others of its stage is suspected …"""
LASTING_LOOKS = 5
"""… if it does in so many looks in a row."""
_COOL_NS = 600_000_000_000
"""Least time between two traces on suspicion."""
_MOST = 3
"""Traces on suspicion in the life of an agent: one that is suspected stays so."""
_BURST_S = 60.0
"""So long devices are read at the higher rate: longer than it takes to arm and to record a trace."""


class TraceTriggers:
    """Arms the ranks of a run on this node, one request at a time."""

    def __init__(
        self,
        run_path: Path,
        steps: int,
        burst: Callable[[float], None],
        *,
        on_suspicion: bool,
    ) -> None:
        """Wait for a reason.

        Args:
            run_path: The run directory.
            steps: How many steps a trace has.
            burst: Told for how many seconds to sample faster.
            on_suspicion: Whether a slow rank is a reason.
        """
        self._run_path = run_path
        self._steps = steps
        self._burst = burst
        self._on_suspicion = on_suspicion
        self._seen: Counter[int] = Counter()
        self._left = _MOST
        self._not_before_ns = 0
        self._thread: threading.Thread | None = None

    def consider(self, scores: Mapping[int, float], time_ns: int) -> bool:
        """Take note of how slow each rank is; tell whether a trace was asked for.

        Args:
            scores: Work of each rank beyond that of the others of its stage, as a share.
            time_ns: Now, monotonic.
        """
        if not self._on_suspicion:
            return False
        slow = {rank for rank, score in scores.items() if score >= SUSPICIOUS_FRAC}
        self._seen = Counter({rank: self._seen[rank] + 1 for rank in slow})
        lasting = [rank for rank, looks in self._seen.items() if looks >= LASTING_LOOKS]
        if not lasting or not self._left or time_ns < self._not_before_ns:
            return False
        if not self.trace(f"rank {min(lasting)} is slower than the others of its stage"):
            return False
        self._left -= 1
        self._not_before_ns = time_ns + _COOL_NS
        return True

    def trace(self, reason: str) -> bool:
        """Have all ranks of this node record some steps; False while they do already.

        Args:
            reason: Why, in a clause; it is printed on stderr.
        """
        if self._thread is not None and self._thread.is_alive():
            return False
        self._burst(_BURST_S)
        self._thread = threading.Thread(
            target=self._arm, args=(reason,), name="meshscope-arm", daemon=True
        )
        self._thread.start()
        return True

    def _arm(self, reason: str) -> None:
        try:
            armed = arm(self._run_path, self._steps, os.environ)
        except (MeshscopeError, OSError) as error:
            tell(f"no deep trace ({reason}): {error}")
            return
        tell(f"{_described(armed)}: {reason}")


def _described(armed: Armed) -> str:
    return f"{len(armed.pids)} ranks record steps {armed.first_step} to {armed.last_step} in depth"
