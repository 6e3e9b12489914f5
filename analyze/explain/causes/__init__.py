"""The causes of loss: what each of them adds to the edges of the replay graph.

One module a family: slow clocks, slow ranks, unequal stages, unequal data, stalls of the
host, degraded wires. Effects are nested, so that none is counted twice::

    recorded work = centre of equal stages + stage + rank + data + jitter + clock + host stalls + gaps
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...tables.arrays import FloatArray
from ...tables.trace import Trace
from ..replay.program import Program
from .clocks import SlowClock, clock_cells, of_single_ranks, without_slow_clocks
from .data import expected_of, sequence_effect
from .degraded import Degraded, both_ways, degraded_places, places
from .effects import Expected, Work, stage_centre
from .experts import expert_loads, explained_by_experts
from .gain_interval import Off, gain_errors
from .gaps import UNRECORDED_DELAY, gap_players
from .host import HOST_CAUSES, MIN_CONCENTRATION, MIN_OVER_OTHERS, host_players, stalled_rank
from .one_port import SlowPort
from .overlaps import Overlap, kept_overlaps, longer_by_factor, mean_passes, with_overlaps
from .passes import Passes
from .repair import repaired_work
from .shapley_player import Player, Union, spread
from .side_effects import with_side_effects
from .stages import stage_players
from .steady_links import SteadyLink
from .usual_draw import usual_draw
from .wires import (
    WireExcess,
    between_ranks,
    beyond_its_like,
    excess_of_program,
    named_place,
    wire_excess,
    wire_players,
)
from .workers import OTHERS, Suspect, ranks_of, suspects_of, with_experts, with_rest, worker_players

CAUSES = (
    "clock_throttle",
    "straggler_rank",
    OTHERS,
    "expert_imbalance",
    "stage_imbalance",
    "sequence_imbalance",
    "jitter",
    *HOST_CAUSES,
    UNRECORDED_DELAY,
    "slow_link",
    "slow_wire",
)
"""The kinds of all causes."""
SLOW_RANKS = ("straggler_rank", OTHERS, "clock_throttle")
"""Those that make single ranks slow."""

__all__ = [
    "CAUSES",
    "HOST_CAUSES",
    "MIN_CONCENTRATION",
    "MIN_OVER_OTHERS",
    "OTHERS",
    "SLOW_RANKS",
    "UNRECORDED_DELAY",
    "Degraded",
    "Off",
    "Overlap",
    "Passes",
    "Player",
    "SlowClock",
    "SlowParts",
    "SlowPort",
    "SteadyLink",
    "Suspect",
    "Union",
    "WireExcess",
    "between_ranks",
    "beyond_its_like",
    "both_ways",
    "degraded_places",
    "excess_of_program",
    "expected_of",
    "expert_loads",
    "explained_by_experts",
    "find_players",
    "gain_errors",
    "kept_overlaps",
    "named_place",
    "of_single_ranks",
    "places",
    "ranks_of",
    "sequence_effect",
    "stalled_rank",
    "suspects_of",
    "wire_excess",
    "with_experts",
    "with_rest",
    "without_slow_clocks",
]


class SlowParts(NamedTuple):
    """What is known to be slow before the causes are made of it."""

    suspects: list[Suspect]
    """Ranks that work longer than their peers, as players of their own."""
    clocks: list[SlowClock]
    """Ranks whose devices have slow clocks."""
    wires: WireExcess | None
    """What transfers take beyond their like; None without any."""


def find_players(
    trace: Trace,
    program: Program,
    computing: Passes,
    work: Work,
    expected: Expected,
    slow: SlowParts,
) -> tuple[list[Player], list[Overlap]]:
    """Return all causes that the capture can tell apart, and what two of them have together.

    Args:
        trace: The capture.
        program: The replay graph.
        computing: Its passes, and which part of each was computing.
        work: The recorded work by cell, without what slow clocks cost.
        expected: What each cell would have taken on a healthy rank.
        slow: What is known to be slow already.
    """
    suspects, clocks, wires = slow
    suspected = [rank for suspect in suspects for rank in suspect.ranks]
    draw = usual_draw(program, work, expected, suspected)
    reference = repaired_work(work, expected, suspected, draw)
    usual = stage_centre(work, reference, expected.unequal_ns)
    residual = reference - usual
    if expected.unequal_ns is not None:
        residual = residual - expected.unequal_ns
    players = [
        *(Player("clock_throttle", own.where, Union.WORKERS, own.effect) for own in clocks),
        *worker_players(work, reference, suspects),
        *stage_players(trace, program, computing, work, reference - residual),
        *gap_players(program, work, reference),
    ]
    if expected.unequal_ns is not None:
        effect = spread(work, expected.unequal_ns)
        players.append(Player("sequence_imbalance", {}, Union.DATA, effect))
    players.append(Player("jitter", {}, Union.DATA, spread(work, residual)))
    players += host_players(program, work)
    players += wire_players(program, wires)
    longer = [clock_cells(work, clock) for clock in clocks]
    if suspects:
        passes = mean_passes(computing)
        longer += longer_by_factor(work, reference, suspects, passes)
    players, overlaps = with_overlaps(work, longer, players, _by_sequence(reference, expected))
    return with_side_effects(program, work, players, overlaps), overlaps


def _by_sequence(reference: FloatArray, expected: Expected) -> FloatArray | None:
    """Return which share of each cell's work its own microbatch is beyond the mean one."""
    if expected.unequal_ns is None:
        return None
    return np.divide(
        expected.unequal_ns, reference, out=np.zeros_like(reference), where=reference > 0
    )
