"""Causes of loss by counterfactual replay, with Shapley shares that add up.

Each cause owns a part of the recorded work or wire time (``effects``); a
coalition of causes is replayed with the parts of all others repaired. The share
of a cause is its Shapley value, its removal gain is what the step gets shorter
when it alone is repaired. Both are taken on the step time and on the waiting in
it, which splits a share into direct time and induced wait.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from .causes import Player, find_players, suspects_of
from .communication import CommunicationEvents
from .effects import Work, excess_by_rank, peer_centre, place_work
from .intervals import IntArray
from .ledger import WAIT_CLASSES, Ledger
from .marks import END
from .program import Program
from .replay import LANE_BLOCK, FloatArray
from .results import Cause, WaitAccount
from .shapley import coalitions, membership, shares, unions_of
from .trace import Trace
from .words import counted

MAX_SUSPECTS = 4
MIN_Z = 4.0
"""Robust z from which a rank's excess is more than noise (false alarms ~ 3e-5 a rank)."""
MIN_Z_IF_LAST = 2.0
MAX_CHANCE = 1e-4
"""With this little a chance of arriving last so often, a smaller z is enough."""
MIN_EXCESS_FRAC = 0.005
"""Excess below this share of the step is not worth a suspect."""
MAX_UNSEEN = 0.2
"""Share of operations without an end above which waiting hides in the work."""
MAX_LONELY = 0.02
"""Share of operations without a member above which a replay would freeze what was waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Causes, and the per-rank table behind the worker causes."""

    ranks: pd.DataFrame
    """rank, peer_class, peers, excess_ns, slowdown, z, suspect."""
    limits: tuple[str, ...]
    causes: tuple[Cause, ...] = ()
    """Empty where the capture does not tell whom ranks waited for."""
    replayed_ns: float | None = None
    """Step time with nothing repaired."""
    waiting: WaitAccount | None = None
    """Where the waiting comes from; None where the causes are not known."""


def attribute(
    trace: Trace,
    program: Program,
    ledger: Ledger,
    events: CommunicationEvents,
    waits: pd.DataFrame,
) -> Attribution:
    """Return the causes of loss of the analysed steps.

    A rank is suspected when its work exceeds that of its peers by more than noise;
    over few steps that is hard to tell, and arriving last far more often than by
    chance counts as the second witness.
    """
    work = place_work(trace, program, ledger)
    peer_ns = peer_centre(work)
    ranks = excess_by_rank(work, peer_ns)
    measured = program.windows.step_time_ns
    hidden = events.unseen_frac > MAX_UNSEEN
    ranks["suspect"] = _is_suspect(ranks, waits, measured) & (not hidden)
    limits = tuple(_limits(work, program, events))
    if hidden or events.lonely_frac > MAX_LONELY:
        return Attribution(ranks=ranks, limits=limits)
    slow = ranks[ranks["suspect"]]
    excess = dict(zip(slow["rank"].tolist(), slow["excess_ns"].tolist(), strict=True))
    players = find_players(trace, program, work, peer_ns, suspects_of(trace, excess, MAX_SUSPECTS))
    unions = unions_of([player.union for player in players])
    masks = coalitions(unions)
    times, waiting = _replay_coalitions(program, players, masks)
    causes = [
        Cause(
            kind=player.kind,
            where=player.where,
            share_frac=share / measured,
            removal_gain_frac=gain / measured,
            direct_ns=share - induced,
            induced_wait_ns=induced,
        )
        for player, share, induced, gain in zip(
            players,
            shares(unions, masks, times).tolist(),
            shares(unions, masks, waiting).tolist(),
            _removal_gains(times, masks, len(players)),
            strict=True,
        )
    ]
    return Attribution(
        ranks=ranks,
        limits=limits,
        causes=tuple(sorted(causes, key=lambda cause: -cause.share_frac)),
        replayed_ns=float(times[-1]),
        waiting=_wait_account(ledger, waiting),
    )


def _is_suspect(ranks: pd.DataFrame, waits: pd.DataFrame, measured: float) -> npt.NDArray[np.bool_]:
    """Return which ranks work longer than their peers by more than noise."""
    by_rank = dict(zip(waits["rank"].tolist(), waits["chance"].tolist(), strict=True))
    chance = np.array([by_rank[rank] for rank in ranks["rank"].tolist()])
    z, excess = ranks["z"].to_numpy(np.float64), ranks["excess_ns"].to_numpy(np.float64)
    unlikely = (z >= MIN_Z) | ((z >= MIN_Z_IF_LAST) & (chance <= MAX_CHANCE))
    return np.asarray(unlikely & (excess >= MIN_EXCESS_FRAC * measured))


def _limits(work: Work, program: Program, events: CommunicationEvents) -> list[str]:
    limits = []
    if events.unseen_frac > MAX_UNSEEN:
        limits.append(
            "waiting cannot be told from working where the ends of operations are not seen: "
            "no rank is suspected, and no causes are told"
        )
    if events.lonely_frac > MAX_LONELY:
        limits.append(
            "ranks waited for others that are not in the capture: "
            "what repairing a cause returns is not known"
        )
    sizes = Counter(work.peer_class.values())
    alone = [rank for rank, own in work.peer_class.items() if sizes[own] < 2]
    if alone:
        limits.append(
            f"{counted(len(alone), 'rank')} without a peer that runs the same operations: whether "
            "such a rank or its stage is slow cannot be told apart"
        )
    if work.deviating:
        limits.append(
            f"{counted(work.deviating, 'step')} of ranks with other operations than usual: "
            "not compared with their peers"
        )
    if program.disorder:
        limits.append(
            f"{program.disorder} of {len(program.marks)} program marks are out of order "
            "(overlapping waits of several threads, or a wrong clock)"
        )
    return limits


def _replay_coalitions(
    program: Program, players: list[Player], masks: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return step time and mean waiting per step, for every coalition of causes."""
    recorded = _step_time(program, program.recorded_ns[:, None])[0]
    scale = program.windows.step_time_ns / recorded
    effects = np.column_stack([player.effect_ns for player in players])
    base = program.base_ns - effects.sum(axis=1)
    keep = membership(masks, len(players))
    times, waits = [], []
    for low in range(0, keep.shape[1], LANE_BLOCK):
        lanes = keep[:, low : low + LANE_BLOCK]
        nodes = program.graph.replay(base, effects, lanes)
        if program.windows.chained:
            shift = _own_skew(program, nodes)
            nodes = program.graph.replay(base, effects, lanes, shift)
        times.append(_step_time(program, nodes))
        waits.append(_waiting(program, nodes, base, effects, lanes))
    return np.concatenate(times) * scale, np.concatenate(waits)


def _own_skew(program: Program, nodes: FloatArray) -> FloatArray:
    """Return how to move the starts of the ranks so that each lane begins with its own skew.

    Ranks start a step at different times, by what the causes did in the step before
    it. What comes before the first analysed step is not replayed; the skew after it
    is taken in its place, as the difference to the recorded one.
    """
    marks = program.marks
    ends = marks[(marks["mark"] == END) & ~marks["is_root"]]
    first = ends.groupby("rank").head(1).index.to_numpy()
    lane, recorded = nodes[first], program.recorded_ns[first]
    skew = (lane - lane.mean(axis=0)) - (recorded - recorded.mean())[:, None]
    return np.asarray(skew)


def _step_time(program: Program, nodes: FloatArray) -> FloatArray:
    """Return the mean step time of every lane, as ``StepWindows.step_time_ns`` defines it."""
    marks, steps = program.marks, len(program.windows.steps)
    ends = marks[(marks["mark"] == END) & ~marks["is_root"]]
    if program.windows.chained:
        last = ends.groupby("rank").tail(1).index.to_numpy()
        roots = program.graph.roots
        return np.asarray((nodes[last] - nodes[roots]).mean(axis=0) / steps)
    start = marks[marks["is_root"]].groupby("step")["start_ns"].min().to_numpy(np.float64)
    by_step = pd.DataFrame(nodes[ends.index.to_numpy()]).groupby(ends["step"].to_numpy()).max()
    return np.asarray((by_step.to_numpy() - start[:, None]).mean(axis=0))


def _waiting(
    program: Program, nodes: FloatArray, base: FloatArray, effects: FloatArray, keep: FloatArray
) -> FloatArray:
    """Return the time that ranks wait for peers, per step, averaged over ranks."""
    marks = program.marks
    edge_of_mark = np.full(len(marks), -1)
    edge_of_mark[program.work_edges] = np.arange(len(program.work_edges))
    edge = edge_of_mark[program.waits]
    arrived = (
        nodes[marks["previous"].to_numpy()[program.waits]] + base[edge, None] + effects[edge] @ keep
    )
    issued = nodes[len(marks) + marks["join"].to_numpy()[program.waits]]
    total = np.clip(issued - arrived, 0, None).sum(axis=0)
    return np.asarray(total / (len(program.windows.ranks) * len(program.windows.steps)))


def _wait_account(ledger: Ledger, waiting: FloatArray) -> WaitAccount:
    """Return the waiting of the ledger as bubble, what causes induce, and the rest."""
    measured = float(ledger.by_step[list(WAIT_CLASSES)].sum(axis=1).mean())
    bubble, replayed = float(waiting[0]), float(waiting[-1])
    return WaitAccount(
        measured_ns=measured,
        bubble_ns=bubble,
        induced_ns=replayed - bubble,
        model_error_ns=measured - replayed,
    )


def _removal_gains(times: FloatArray, masks: IntArray, players: int) -> list[float]:
    """Return how much shorter the step is with each player alone repaired."""
    without = masks[-1] ^ (1 << np.arange(players))
    gains: list[float] = (times[-1] - times[np.searchsorted(masks, without)]).tolist()
    return gains
