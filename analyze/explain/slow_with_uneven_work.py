"""Which ranks are slow where microbatches are unequal.

A rank that is slow tells nobody's lengths: the others of its replica would be said to have long
sequences, and to be fast. Some ranks show only after unequal data is taken out, as one that is slow in
every second step of long and short ones. Then the data is judged once more without them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from ..tables.arrays import FloatArray
from ..tables.trace import Trace
from .causes import Passes, expected_of, sequence_effect
from .causes.data import Sequences
from .causes.effects import Expected, Work
from .replay.program import Program
from .slow_ranks import DetectionResult
from .slow_ranks.suspicion import steps_of_slow
from .suspects import arrives_late, compared_ranks, healthy_work, is_suspect


class Compared(NamedTuple):
    """A run whose ranks were compared with their peers, data and all."""

    trace: Trace
    program: Program
    computing: Passes
    """Its passes, and which part of each was computing."""
    work: Work
    peers: FloatArray
    """What the peers of each cell's rank worked, ns."""
    ranks: pd.DataFrame
    """What ``compared_ranks`` returns by that, and late."""
    waits: pd.DataFrame
    detection: DetectionResult | None


class Judged(NamedTuple):
    """What unequal data is, who is slow beside it, and who was no witness of it."""

    unlike: list[int]
    sequence: Sequences | None
    expected: Expected
    ranks: pd.DataFrame
    """What ``compared_ranks`` returns without unequal data; late and suspect."""

    def unexplained(self) -> float:
        """Return the sum of squares by which ranks that are not slow differ from what is expected."""
        healthy = self.ranks.loc[~self.ranks["suspect"], "excess_ns"]
        return float(np.square(healthy).sum())


def beside_data(compared: Compared, unlike: list[int]) -> Judged:
    """Return the judgement without ranks as witnesses that were slow already, or are by it.

    The second judgement holds only if the others are more alike by it.

    Args:
        compared: The run.
        unlike: Ranks that may be slow, data and all.
    """
    found = _judged(compared, unlike)
    slow = found.ranks.loc[found.ranks["suspect"], "rank"].tolist()
    more = sorted(set(slow).difference(unlike))
    if found.sequence is None or not more:
        return found
    again = _judged(compared, [*unlike, *more])
    return again if again.unexplained() < found.unexplained() else found


def _judged(compared: Compared, unlike: list[int]) -> Judged:
    trace, program, computing, work, peers, at_first, waits, detection = compared
    slow_steps = steps_of_slow(unlike, detection)
    sequence = sequence_effect(trace, program, computing, work, slow_steps)
    expected = healthy_work(work, at_first, expected_of(peers, sequence), detection)
    ranks = compared_ranks(work, expected.work_ns)
    ranks["late"] = arrives_late(trace, ranks, waits)
    ranks["suspect"] = is_suspect(ranks, program.windows.step_time_ns, detection)
    return Judged(unlike, sequence, expected, ranks)
