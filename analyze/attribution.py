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

from meshscope.probe.schema.listing import listed

from .causes import (
    Overlap,
    Player,
    SlowRanks,
    explained_by_experts,
    find_players,
    kept_overlaps,
    sequence_effect,
    suspects_of,
    with_experts,
    with_rest,
    without_slow_clocks,
)
from .communication import CommunicationEvents, from_anyone
from .detection import DetectionResult
from .detection.suspicion import cleared_ranks, detect_in, expected_work
from .device_steps import DeviceSteps
from .effects import Expected, Work, excess_by_rank, peer_centre, place_work
from .intervals import IntArray
from .ledger import WAIT_CLASSES, Ledger
from .program import Program
from .replay import FloatArray
from .results import Cause, WaitAccount
from .scenarios import replay_scenarios
from .shapley import coalitions, membership, shares, unions_of
from .trace import Trace
from .words import counted

MAX_SUSPECTS = 4
"""Slow ranks that are causes of their own; those beyond are one cause."""
MIN_Z = 4.0
"""Robust z from which a rank's excess is more than noise (false alarms ~ 3e-5 a rank)."""
MIN_Z_IF_LAST = 2.0
MAX_CHANCE = 1e-4
"""With this little a chance of arriving last so often, a smaller z is enough."""
MIN_EXCESS_FRAC = 0.005
"""Excess below this share of the step is not worth a suspect."""
MIN_OVER_CLOCK = 0.1
"""Least excess over what its slow clock cost, for a rank to be suspected besides."""
MAX_UNSEEN = 0.2
"""Share of operations without an end above which waiting hides in the work."""
MAX_LONELY = 0.02
"""Share of operations without a member above which a replay would freeze what was waited for."""

MAX_UNEXPLAINED = 0.1
"""Waiting that the replay does not explain, as a share of the step, above which no cause is split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Causes, and the per-rank table behind the worker causes."""

    ranks: pd.DataFrame
    """rank, peer_class, peers, excess_ns, peer_ns, slowdown, z, suspect, and clock_ns: what a slow
    clock cost the rank per step, which the excess is without."""
    limits: tuple[str, ...]
    causes: tuple[Cause, ...] = ()
    """Empty where the capture does not tell whom ranks waited for."""
    replayed_ns: float | None = None
    """Step time with nothing repaired."""
    waiting: WaitAccount | None = None
    """Where the waiting comes from; None where the causes are not known."""
    detection: DetectionResult | None = None
    """Slow ranks whatever their work is; None where the capture shows no microbatches."""


def attribute(
    trace: Trace,
    program: Program,
    ledger: Ledger,
    events: CommunicationEvents,
    waits: pd.DataFrame,
    devices: DeviceSteps,
) -> Attribution:
    """Return the causes of loss of the analysed steps.

    A rank is suspected when its work exceeds that of its peers by more than noise;
    over few steps that is hard to tell, and arriving last far more often than by
    chance counts as the second witness. Where microbatches are recorded, the detection
    is a third one, and clears ranks that only had more work. What a slow clock cost is
    taken out before.
    """
    recorded = place_work(trace, program, ledger)
    work, clocks = without_slow_clocks(recorded, program, ledger, devices)
    del recorded
    hidden = events.unseen_frac > MAX_UNSEEN
    detection = None if hidden else detect_in(trace, program.windows, ledger)
    peers = peer_centre(work)
    ranks = _compared(work, peers)
    measured = program.windows.step_time_ns
    unlike = ranks.loc[_is_suspect(ranks, waits, measured, detection), "rank"].tolist()
    unlike += [] if detection is None else [verdict.rank for verdict in detection.suspects]
    unlike += [rank for clock in clocks for rank in clock.ranks]
    sequence = sequence_effect(trace, program, ledger, work, unlike)
    expected = healthy_work(work, ranks, Expected(peers, sequence), detection)
    ranks = _compared(work, expected.work_ns)
    ranks["suspect"] = _is_suspect(ranks, waits, measured, detection) & (not hidden)
    limits = (*_limits(work, program, events), *_slow_together(detection))
    if hidden or events.lonely_frac > MAX_LONELY:
        return Attribution(ranks=ranks, limits=limits, detection=detection)
    slow = ranks[ranks["suspect"]]
    excess = dict(zip(slow["rank"].tolist(), slow["excess_ns"].tolist(), strict=True))
    slowdowns = dict(zip(slow["rank"].tolist(), slow["slowdown"].tolist(), strict=True))
    by_experts = explained_by_experts(events.frame, slowdowns)
    suspects = with_experts(trace, suspects_of(trace, excess), by_experts)
    slow_ranks = SlowRanks(with_rest(suspects, MAX_SUSPECTS), clocks)
    players, overlaps = find_players(trace, program, ledger, work, expected, slow_ranks)
    # Not needed any more, and as large as the replays that follow.
    del work, peers, sequence, expected, clocks
    masks = coalitions(unions_of([player.union for player in players]))
    times, waiting = _replayed(program, players, overlaps, masks)
    account: WaitAccount | None = _wait_account(ledger, waiting)
    if account is not None and abs(account.model_error_ns) > MAX_UNEXPLAINED * measured:
        limits = (*limits, _unsplit(account, measured))
        waiting, account = np.full_like(waiting, np.nan), None
    return Attribution(
        ranks=ranks,
        limits=limits,
        causes=_causes(players, masks, times, waiting, measured),
        replayed_ns=float(times[-1]),
        waiting=account,
        detection=detection,
    )


def without_blame(ranks: list[int], limits: tuple[str, ...]) -> Attribution:
    """Return the attribution of a capture in which no rank can be compared with its peers."""
    unknown = ("excess_ns", "peer_ns", "slowdown", "z")
    table = pd.DataFrame({"rank": ranks, "peer_class": range(len(ranks)), "peers": 0})
    table = table.assign(**dict.fromkeys(unknown, np.nan), suspect=False, clock_ns=0.0)
    return Attribution(ranks=table, limits=limits)


def healthy_work(
    work: Work, ranks: pd.DataFrame, peers: Expected, detection: DetectionResult | None
) -> Expected:
    """Return what each cell should have taken, given what its peers took for their own work.

    Args:
        work: The work by cell, without what slow clocks cost.
        ranks: rank, z and clock_ns of each rank.
        peers: What the peers of each cell's rank worked.
        detection: Slow ranks as durations show them.
    """
    seen = set(ranks.loc[ranks["z"] >= MIN_Z, "rank"].tolist())
    if peers.unequal_ns is not None:
        peers = peers._replace(work_ns=peer_centre(work, peers.unequal_ns))
    clocked = set(ranks.loc[ranks["clock_ns"] > 0, "rank"].tolist())
    return expected_work(work, peers, seen, detection, clocked)


def _compared(work: Work, expected_ns: FloatArray) -> pd.DataFrame:
    """Return how much longer each rank works than expected, and what its clock cost besides."""
    ranks = excess_by_rank(work, expected_ns)
    return ranks.assign(clock_ns=_clock_by_rank(work, ranks["rank"]))


def _causes(
    players: list[Player],
    masks: IntArray,
    times: FloatArray,
    waiting: FloatArray,
    measured: float,
) -> tuple[Cause, ...]:
    """Return what each player is charged with, the largest share first.

    Args:
        players: All causes.
        masks: The coalitions that were replayed.
        times: The step time of each.
        waiting: The waiting in it.
        measured: The measured step time, ns.
    """
    unions = unions_of([player.union for player in players])
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
    return tuple(sorted(causes, key=lambda cause: -cause.share_frac))


def _replayed(
    program: Program, players: list[Player], overlaps: list[Overlap], masks: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return step time and waiting of every coalition of causes."""
    keep = membership(masks, len(players))
    keep = np.vstack([keep, kept_overlaps(keep, overlaps)])
    effects = [*(own.effect for own in players), *(own.given_back for own in overlaps)]
    return replay_scenarios(program, effects, keep)


def _is_suspect(
    ranks: pd.DataFrame, waits: pd.DataFrame, measured: float, detection: DetectionResult | None
) -> npt.NDArray[np.bool_]:
    """Return which ranks work longer than their peers by more than noise."""
    by_rank = dict(zip(waits["rank"].tolist(), waits["chance"].tolist(), strict=True))
    chance = np.array([by_rank[rank] for rank in ranks["rank"].tolist()])
    z, excess = ranks["z"].to_numpy(np.float64), ranks["excess_ns"].to_numpy(np.float64)
    unlikely = (z >= MIN_Z) | ((z >= MIN_Z_IF_LAST) & (chance <= MAX_CHANCE))
    found = [] if detection is None else [verdict.rank for verdict in detection.suspects]
    clock = ranks["clock_ns"].to_numpy(np.float64)
    # The detection does not know of clocks.
    unlikely |= np.isin(ranks["rank"], found) & (clock == 0)
    unlikely &= excess >= MIN_OVER_CLOCK * clock
    unlikely &= ~np.isin(ranks["rank"], cleared_ranks(ranks, detection))
    return np.asarray(unlikely & (excess >= MIN_EXCESS_FRAC * measured))


def _clock_by_rank(work: Work, rank: pd.Series) -> FloatArray:
    """Return what a slow clock cost each rank per step, ns."""
    cells = work.cells[work.cells["clock_ns"] > 0]
    steps = work.cells["step"].nunique()
    mean = cells.groupby("rank")["clock_ns"].sum() / max(steps, 1)
    return rank.map(mean).fillna(0.0).to_numpy(np.float64)


def untold(events: CommunicationEvents) -> list[str]:
    """Return why no causes are told; nothing where they are."""
    limits = []
    if events.unseen_frac > MAX_UNSEEN:
        limits.append(
            "waiting cannot be told from working where the ends of operations are not seen: "
            "no rank is suspected, and no causes are told"
        )
    if events.lonely_frac > MAX_LONELY:
        whom = "others that are not in the capture"
        if from_anyone(events.frame).any():
            whom = "senders that their receives do not name"
        limits.append(f"ranks waited for {whom}: what repairing a cause returns is not known")
    return limits


def _limits(work: Work, program: Program, events: CommunicationEvents) -> list[str]:
    limits = untold(events)
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


def _slow_together(detection: DetectionResult | None) -> list[str]:
    """Say that all ranks became slower, which no comparison between them shows."""
    job = None if detection is None else detection.together
    if job is None:
        return []
    steps = listed(
        f"{first} to {last}" if last > first else f"{first}" for first, last in job.slow_steps
    )
    return [
        f"all ranks take {job.slowdown:.1%} longer for their own work in steps {steps} than in the others, "
        "which is blamed on none of them: compare what changed there for the whole job (sequence lengths, "
        "clocks, code)"
    ]


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


def _unsplit(account: WaitAccount, measured: float) -> str:
    replayed = account.measured_ns - account.model_error_ns
    return (
        f"ranks wait {account.measured_ns / measured:.1%} of the step by the account, and "
        f"{replayed / measured:.1%} by the replay: how much of a cause makes ranks busy, and how much makes "
        "them wait, is not known"
    )


def _removal_gains(times: FloatArray, masks: IntArray, players: int) -> list[float]:
    """Return how much shorter the step is with each player alone repaired."""
    without = masks[-1] ^ (1 << np.arange(players))
    gains: list[float] = (times[-1] - times[np.searchsorted(masks, without)]).tolist()
    return gains
