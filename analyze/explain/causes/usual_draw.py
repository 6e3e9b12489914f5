"""Which healthy steps a repaired rank is as uneven as: those that stand for all of them.

A repaired rank deviates from its peers as one of them does in other steps (``repair``). Over many steps it does
not matter which: of three steps of a job with much jitter it decides what the repair returns. So where few steps
were recorded each peer and shift of steps is tried, and the draw is taken of which the step is nearest to
the mean of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..replay.program import Program
from ..replay.scenarios import replay_scenarios
from .effects import Expected, Work
from .repair import healthy_peers, repaired_work
from .shapley_player import spread

ENOUGH_STEPS = 8
"""So many steps are a mean of their own."""
MOST_DRAWS = 16
MOST_CELLS = 1 << 20
"""Most cells of all draws together: what has more has more pieces to a step, which are a mean too."""


def usual_draw(program: Program, work: Work, expected: Expected, slow: Sequence[int]) -> int:
    """Return the draw of ``repaired_work`` that returns most nearly what all of them do on average.

    Args:
        program: The replay graph.
        work: The recorded work by cell.
        expected: What each cell would have taken on a healthy rank.
        slow: The ranks that are to be repaired.
    """
    draws = _draws(work, slow, len(program.windows.steps))
    if draws < 2:
        return 0
    own_ns = work.cells["work_ns"].to_numpy()
    taken = [own_ns - repaired_work(work, expected, slow, draw) for draw in range(draws)]
    # Each lane keeps all but what its own draw takes away.
    times, _ = replay_scenarios(program, [spread(work, own) for own in taken], 1.0 - np.eye(draws))
    return int(np.argmin(np.abs(times - times.mean())))


def _draws(work: Work, slow: Sequence[int], steps: int) -> int:
    """Return how many draws differ and can be tried; 1 where one is enough."""
    if steps >= ENOUGH_STEPS or not slow:
        return 1
    healthy = healthy_peers(work, slow)
    peers = max((len(healthy.get(work.peer_class[rank], ())) for rank in slow), default=0)
    most = MOST_CELLS // max(len(work.cells), 1)
    return max(1, min(peers * steps, MOST_DRAWS, most))
