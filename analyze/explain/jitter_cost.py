"""Steps of ranks that are late, and what moving or joining these steps would return.

Where all ranks meet once a step, the step lasts as long as its latest rank::

    late(r, s)            by how much rank r exceeds its usual step in step s
    lost                  mean over s of max over r of late(r, s)
    at the same steps     mean over k of max over r of the k-th largest late(r, .)
    meeting every n steps mean over blocks of n steps of max over r of mean over the block of late(r, .)

The second keeps what each rank loses and lets all lose it in the same steps; the third lets ranks make up
for one another's late steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..tables.arrays import FloatArray

BLOCKS = (2, 4)
"""Steps between two meetings that are tried."""


class JitterCost(NamedTuple):
    """What late steps cost, ns per step."""

    lost_ns: float
    at_the_same_steps_ns: float
    """Left with all ranks late in the same steps."""
    every_ns: dict[int, float]
    """Left with ranks that meet every so many steps."""

    @property
    def same_steps_return(self) -> float:
        """Return which share of the loss all ranks being late in the same steps returns, 0..1."""
        return self._returned(self.at_the_same_steps_ns)

    def every_returns(self, steps: int) -> float:
        """Return which share of the loss meeting every so many steps returns, 0..1."""
        return self._returned(self.every_ns[steps])

    def _returned(self, left_ns: float) -> float:
        return float(np.clip(1.0 - left_ns / self.lost_ns, 0.0, 1.0)) if self.lost_ns > 0 else 0.0


def jitter_cost(late_ns: FloatArray) -> JitterCost:
    """Return what late steps cost as they are, and moved.

    Args:
        late_ns: By how much each rank is late ``(steps, ranks)``; negative where it is early.
    """
    late = np.maximum(late_ns, 0.0)
    steps = len(late)
    every = {}
    for block in BLOCKS:
        whole = steps // block * block
        if whole:
            means = late_ns[:whole].reshape(whole // block, block, -1).mean(axis=1)
            every[block] = float(np.maximum(means.max(axis=1), 0.0).mean())
    return JitterCost(
        lost_ns=float(late.max(axis=1).mean()) if late.size else 0.0,
        at_the_same_steps_ns=float(np.sort(late, axis=0).max(axis=1).mean()) if late.size else 0.0,
        every_ns=every,
    )
