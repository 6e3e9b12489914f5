"""What repairs return where ranks do not stand idle: the other end of what idle time may mean.

Idle time before an operation may be the rank's own (launches, Python), and then stays when others are
repaired; or it may be waiting that nothing shows, and then goes with them. The replay keeps it. With all of
it released the same repairs are replayed once more: where the gain moves, it is known as a range only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...account.ledger.build import Ledger
from ...tables.arrays import FloatArray
from ...tables.classes import UNATTRIBUTED, class_code
from ..replay.effect_folding import EdgeEffect, edge_effect
from ..replay.program import Program
from ..replay.scenarios import replay_scenarios
from .overlaps import Overlap, kept_overlaps
from .shapley_player import Player, Union
from .time_inside import time_inside

IDLE = (UNATTRIBUTED, "host_blocked", "other")
"""Classes that may hide waiting."""
MIN_POINTS, MIN_PART = 0.01, 0.2
"""A gain is a range where it moves by more than this share of the step, and this part of itself."""


def released_gains(
    program: Program, ledger: Ledger, players: Sequence[Player], overlaps: Sequence[Overlap]
) -> FloatArray | None:
    """Return the removal gain of each player where no rank stands idle for another reason, ns.

    Two lanes a player, with it and without: all idle time is released but what the player owns. None where
    no rank stands idle: then these are the gains.
    """
    idle, count = _idle_effect(program, ledger, players), len(players)
    if idle.is_nothing:
        return None
    owned = [_shared(idle, player) for player in players]
    acts = np.hstack([np.ones((count, count)), 1.0 - np.eye(count)])
    others = np.tile(1.0 - np.eye(count), 2)
    rows = [acts, kept_overlaps(acts, overlaps), np.zeros((1, 2 * count)), others]
    effects = [
        *(own.effect for own in players),
        *(own.given_back for own in overlaps),
        idle,
        *owned,
    ]
    times, _ = replay_scenarios(program, effects, np.vstack(rows))
    return np.asarray(times[:count] - times[count:])


def _idle_effect(program: Program, ledger: Ledger, players: Sequence[Player]) -> EdgeEffect:
    """Return the idle time on the edges of a program, without what causes of the host own."""
    edge = program.work_edges
    idle_ns = time_inside(program.marks, edge, ledger, [class_code(name) for name in IDLE])
    for player in players:
        if player.union is Union.HOST:
            own = player.effect.part(0, len(edge))
            idle_ns[own.edge] -= np.maximum(own.ns, 0.0)
    return edge_effect(np.maximum(idle_ns, 0.0))


def _shared(idle: EdgeEffect, player: Player) -> EdgeEffect:
    """Return the idle time that a player owns, negative: it is given back where the player is judged."""
    edge, at, of_player = np.intersect1d(
        idle.edge, player.effect.edge, assume_unique=True, return_indices=True
    )
    both = np.minimum(idle.ns[at], np.maximum(player.effect.ns[of_player], 0.0))
    if player.union is Union.HOST:
        both = np.zeros(len(edge))
    return EdgeEffect(edge[both > 0], -both[both > 0])


def is_moved(gain: float, released: float, measured: float) -> bool:
    """Tell whether a gain is another one without idle time, in ns of a step so long."""
    return abs(released - gain) > max(MIN_POINTS * measured, MIN_PART * abs(gain))
