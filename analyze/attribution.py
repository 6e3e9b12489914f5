"""Causes of loss by counterfactual replay, with Shapley shares that add up.

Each cause owns a part of the recorded work or wire time (``causes.effects``); a
coalition of causes is replayed with the parts of all others repaired. The share
of a cause is its Shapley value, its removal gain is what the step gets shorter
when it alone is repaired. Both are taken on the step time and on the waiting in
it, which splits a share into direct time and induced wait.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from .arrays import FloatArray, IntArray
from .capture.trace import Trace
from .causes import (
    SLOW_RANKS,
    Off,
    Overlap,
    Player,
    SlowClock,
    SlowRanks,
    Suspect,
    expected_of,
    explained_by_experts,
    find_players,
    gain_errors,
    kept_overlaps,
    sequence_effect,
    suspects_of,
    with_experts,
    with_rest,
    without_slow_clocks,
)
from .causes.effects import Expected, Work, among_healthy, by_step, peer_centre, place_work
from .causes.shapley import coalitions, membership, shares, unions_of
from .communication.events import CommunicationEvents
from .detection import DetectionResult
from .detection.suspicion import detect_in, steps_of_slow
from .devices.steps import DeviceSteps
from .ledger.build import Ledger
from .ledger.classes import WAIT_CLASSES
from .replay.program import Program
from .replay.scenarios import replay_scenarios
from .results import Cause, WaitAccount
from .suspects import arrives_late, compared_ranks, healthy_work, is_suspect, of_suspects
from .untold import MAX_LONELY, MAX_UNSEEN, limits_of, slow_together

MAX_SUSPECTS = 4
"""Slow ranks that are causes of their own; those beyond are one cause."""
MAX_UNEXPLAINED = 0.1
"""Waiting that the replay does not explain, as a share of the step, above which no cause is split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Causes, and the per-rank table behind the worker causes."""

    ranks: pd.DataFrame
    """rank, peer_class, peers, excess_ns, peer_ns, slowdown, z, late, suspect, and clock_ns: what a slow
    clock cost the rank per step, which the excess is without."""
    limits: tuple[str, ...]
    causes: tuple[Cause, ...] = ()
    """Empty where the capture does not tell whom ranks waited for."""
    replayed_ns: float | None = None
    """Step time with nothing repaired."""
    without_slow_ns: float | None = None
    """Step time with all slow ranks repaired, and those of slow clocks."""
    waiting: WaitAccount | None = None
    """Where the waiting comes from; None where the causes are not known."""
    detection: DetectionResult | None = None
    """Slow ranks whatever their work is; None where the capture shows no microbatches."""
    at_first: pd.DataFrame | None = None
    """The table before unequal data was taken out: what is usual was judged by it."""
    unequal_ns: pd.DataFrame | None = None
    """What each rank (columns) works in each step because its microbatches are not the mean one; None
    where these are alike, or nothing tells."""
    work_is_stated: bool = False
    """Whether the training code told how much work microbatches are, and their passes follow that."""
    unlike: tuple[int, ...] = ()
    """The ranks that were taken for slow then."""


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
    ranks = compared_ranks(work, peers)
    measured = program.windows.step_time_ns
    ranks["late"] = arrives_late(trace, ranks, waits)
    unlike = _unlike(ranks.loc[is_suspect(ranks, measured, detection), "rank"], detection, clocks)
    sequence = sequence_effect(trace, program, ledger, work, steps_of_slow(unlike, detection))
    expected = healthy_work(work, ranks, expected_of(peers, sequence), detection)
    at_first, ranks = ranks, compared_ranks(work, expected.work_ns)
    ranks["late"] = arrives_late(trace, ranks, waits)
    ranks["suspect"] = is_suspect(ranks, measured, detection) & (not hidden)
    limits = (*limits_of(work, program, events), *slow_together(detection))
    found = Attribution(
        ranks=ranks,
        limits=limits,
        detection=detection,
        at_first=at_first,
        unequal_ns=None if sequence is None else by_step(work, sequence.effect_ns),
        work_is_stated=sequence is not None and sequence.is_stated,
        unlike=tuple(unlike),
    )
    if hidden or events.lonely_frac > MAX_LONELY:
        return found
    expected, ranks = _told_apart(work, expected, ranks)
    suspects = _suspects(trace, ranks, events, detection)
    slow_ranks = SlowRanks(with_rest(suspects, MAX_SUSPECTS), clocks)
    players, overlaps = find_players(trace, program, ledger, work, expected, slow_ranks)
    off = gain_errors(trace, work, expected, players, ranks)
    # Not needed any more, and as large as the replays that follow.
    del work, peers, sequence, expected, clocks
    return _with_causes(
        replace(found, ranks=ranks), program, ledger, _Acting(players, overlaps, off)
    )


class _Acting(NamedTuple):
    """All causes, what they have in common, and how far off the removal gain of each may be."""

    players: list[Player]
    overlaps: list[Overlap]
    off: list[Off | None]


def _with_causes(
    found: Attribution, program: Program, ledger: Ledger, acting: _Acting
) -> Attribution:
    """Return the attribution with what each cause is charged with, from replays of their coalitions."""
    players, overlaps, off = acting
    measured, limits = program.windows.step_time_ns, found.limits
    masks = coalitions(unions_of([player.union for player in players]))
    times, waiting = _replayed(program, players, overlaps, masks)
    account: WaitAccount | None = _wait_account(ledger, waiting)
    if account is not None and abs(account.model_error_ns) > MAX_UNEXPLAINED * measured:
        limits = (*limits, _unsplit(account, measured))
        waiting, account = np.full_like(waiting, np.nan), None
    causes = _causes(players, off, masks, (times, waiting), measured)
    return replace(
        found,
        limits=limits,
        causes=causes,
        replayed_ns=float(times[-1]),
        without_slow_ns=_without_slow(players, masks, times),
        waiting=account,
    )


def _unlike(
    slow: pd.Series, detection: DetectionResult | None, clocks: list[SlowClock]
) -> list[int]:
    """Return the ranks that may be slow by their work, their durations or their clocks."""
    unlike: list[int] = slow.tolist()
    unlike += [] if detection is None else [verdict.rank for verdict in detection.suspects]
    return unlike + [rank for clock in clocks for rank in clock.ranks]


def _suspects(
    trace: Trace,
    ranks: pd.DataFrame,
    events: CommunicationEvents,
    detection: DetectionResult | None,
) -> list[Suspect]:
    """Return the suspected ranks as causes: slow, alone or together, or with popular experts."""
    slowdowns = of_suspects(ranks, "slowdown")
    by_experts = explained_by_experts(events.frame, slowdowns, steps_of_slow(slowdowns, detection))
    return with_experts(trace, suspects_of(trace, of_suspects(ranks, "excess_ns")), by_experts)


def _told_apart(
    work: Work, expected: Expected, ranks: pd.DataFrame
) -> tuple[Expected, pd.DataFrame]:
    """Return what is expected, and the table, with suspects compared with ranks that are none."""
    slow = ranks.loc[ranks["suspect"], "rank"].tolist()
    apart = among_healthy(work, expected, slow)
    if apart is expected:
        return expected, ranks
    table = compared_ranks(work, apart.work_ns)
    is_slow = ranks["suspect"].to_numpy(bool)
    told = ["excess_ns", "peer_ns", "slowdown", "z"]
    return apart, ranks.assign(**{name: ranks[name].where(~is_slow, table[name]) for name in told})


def without_blame(ranks: list[int], limits: tuple[str, ...]) -> Attribution:
    """Return the attribution of a capture in which no rank can be compared with its peers."""
    unknown = ("excess_ns", "peer_ns", "slowdown", "z")
    table = pd.DataFrame({"rank": ranks, "peer_class": range(len(ranks)), "peers": 0})
    table = table.assign(**dict.fromkeys(unknown, np.nan), late=False, suspect=False, clock_ns=0.0)
    return Attribution(ranks=table, limits=limits)


def _causes(
    players: list[Player],
    off: list[Off | None],
    masks: IntArray,
    replayed: tuple[FloatArray, FloatArray],
    measured: float,
) -> tuple[Cause, ...]:
    """Return what each player is charged with, the largest share first.

    Args:
        players: All causes.
        off: How far off the removal gain of each may be.
        masks: The coalitions that were replayed.
        replayed: The step time of each, and the waiting in it.
        measured: The measured step time, ns.
    """
    unions = unions_of([player.union for player in players])
    causes = [
        Cause(
            kind=player.kind,
            where=player.where,
            share_frac=share / measured,
            removal_gain_frac=gain / measured,
            removal_gain_interval=None if error is None else _over(error.interval(gain), measured),
            direct_ns=share - induced,
            induced_wait_ns=induced,
            relief_ns=player.relief_ns,
        )
        for player, error, share, induced, gain in zip(
            players,
            off,
            *(shares(unions, masks, values).tolist() for values in replayed),
            _removal_gains(replayed[0], masks, len(players)),
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


def _without_slow(players: list[Player], masks: IntArray, times: FloatArray) -> float:
    """Return the step time of the coalition that lacks all slow ranks: they are of one union."""
    slow = sum(1 << n for n, player in enumerate(players) if player.kind in SLOW_RANKS)
    return float(times[np.searchsorted(masks, masks[-1] ^ slow)])


def _over(interval: tuple[float, float], measured: float) -> tuple[float, float]:
    low, high = interval
    return low / measured, high / measured


def _removal_gains(times: FloatArray, masks: IntArray, players: int) -> list[float]:
    """Return how much shorter the step is with each player alone repaired."""
    without = masks[-1] ^ (1 << np.arange(players))
    gains: list[float] = (times[-1] - times[np.searchsorted(masks, without)]).tolist()
    return gains
