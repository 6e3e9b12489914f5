"""Causes of loss by counterfactual replay, with Shapley shares that add up.

Each cause owns a part of the recorded work or wire time (``causes.effects``); a
coalition of causes is replayed with the parts of all others repaired. The share
of a cause is its Shapley value, its removal gain is what the step gets shorter
when it alone is repaired. Both are taken on the step time and on the waiting in
it, which splits a share into direct time and induced wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..account.devices.steps import DeviceSteps
from ..account.ledger.build import Ledger
from ..align.communication.events import CommunicationEvents
from ..align.communication.waiting import arrivals
from ..tables.arrays import FloatArray, IntArray
from ..tables.classes import WAIT_CLASSES
from ..tables.results import Cause, WaitAccount
from ..tables.trace import Trace
from ..wording.limits import Limit
from ..wording.message import Message, message
from .causes import (
    SLOW_RANKS,
    Off,
    Overlap,
    Passes,
    Player,
    SlowClock,
    SlowParts,
    Suspect,
    WireExcess,
    excess_of_program,
    explained_by_experts,
    find_players,
    gain_errors,
    kept_overlaps,
    suspects_of,
    with_experts,
    with_rest,
    without_slow_clocks,
)
from .causes.checks import MAX_WAIT_APART, late_waiting, losing, parted
from .causes.effects import Expected, Work, among_healthy, by_step, peer_centre, place_work
from .causes.idle_released import is_moved, released_gains
from .causes.launches import LateLaunches, late_launches
from .causes.shapley import (
    MAX_PLAYERS,
    Joining,
    alone_and_last,
    changes,
    coalitions,
    hiding,
    joining,
    membership,
    shares,
)
from .not_recorded import MAX_LONELY, MAX_UNSEEN, limits_of, slow_together
from .replay.program import Program
from .replay.scenarios import replay_scenarios
from .slow_ranks import DetectionResult
from .slow_ranks.durations import own_durations
from .slow_ranks.suspicion import detect_in, steps_of_slow
from .suspects import (
    Compared,
    arrives_late,
    beside_data,
    beyond_chance,
    candidates_of,
    compared_ranks,
    idle_taken_for_work,
    is_suspect,
    of_suspects,
    slow_by_passes,
    their_peers,
)

MAX_SUSPECTS = 4
"""Slow ranks that are causes of their own; those beyond are one cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Causes, and the per-rank table behind the worker causes."""

    ranks: pd.DataFrame
    """rank, peer_class, peers, excess_ns, peer_ns, slowdown, z, late, suspect, chance (of a suspect, of
    being found in a job without slow ranks; NaN if not tested), and clock_ns: what a slow clock cost
    the rank per step, which the excess is without."""
    limits: tuple[Limit, ...]
    causes: tuple[Cause, ...] = ()
    """Empty where the capture does not tell whom ranks waited for."""
    replayed_ns: float | None = None
    """Step time with nothing repaired."""
    without_slow_ns: float | None = None
    """Step time with all slow ranks repaired, and those of slow clocks."""
    refused: tuple[Limit, ...] = ()
    """Which checks the replay fails; then it is not believed."""
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
    """Whether the training code said how much work microbatches are, and their passes follow that."""
    unlike: tuple[int, ...] = ()
    """The ranks that were taken for slow then."""
    wires: WireExcess | None = None
    """What transfers take beyond their like; None without transfers, or where no causes are reported."""


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
    chance counts as the second witness. Where microbatches are recorded, the detection is a
    third one, and clears ranks that only had more work. What a slow clock cost is taken out.
    """
    work = place_work(trace, program, ledger)
    work, clocks = without_slow_clocks(work, program, ledger, devices)
    hidden = events.unseen_frac > MAX_UNSEEN
    detection = None if hidden else detect_in(trace, program.windows, ledger)
    peers = peer_centre(work)
    ranks = compared_ranks(work, peers)
    ranks["late"] = arrives_late(trace, ranks, waits)
    is_slow = is_suspect(ranks, program.windows.step_time_ns, detection)
    unlike = _unlike(ranks.loc[is_slow, "rank"], detection, clocks)
    computing = Passes(trace, program.windows, ledger)
    compared = Compared(trace, program, computing, work, peers, ranks, waits, detection)
    at_first, (unlike, sequence, expected, ranks) = ranks, beside_data(compared, unlike)
    ranks["suspect"] &= not hidden
    tested = candidates_of(work, ranks, detection)
    passes = own_durations(trace, program.windows, ledger, their_peers(work, tested))
    arrived = arrivals(events) if tested.intersection(ranks["rank"][ranks["late"]]) else None
    ranks, detection = beyond_chance(work, expected, passes, ranks, detection, arrived)
    found = Attribution(
        ranks=ranks,
        limits=(*limits_of(work, program, events), *slow_together(detection)),
        detection=detection,
        at_first=at_first,
        unequal_ns=None if sequence is None else by_step(work, sequence.effect_ns),
        work_is_stated=sequence is not None and sequence.is_stated,
        unlike=tuple(unlike),
    )
    if hidden or events.lonely_frac > MAX_LONELY:
        return found
    if late_ns := idle_taken_for_work(ranks, detection, passes, program.windows, ledger):
        return _by_passes(found, late_ns)
    expected, ranks = _separated(work, expected, ranks)
    suspects = _suspects(trace, ranks, events, detection)
    wires = excess_of_program(trace, program)
    slow = SlowParts(with_rest(suspects, MAX_SUSPECTS), clocks, wires)
    players, overlaps = find_players(trace, program, computing, work, expected, slow)
    off = gain_errors(trace, work, expected, players, ranks)
    late = late_launches(trace, program, ledger)
    # Not needed any more, and as large as the replays that follow.
    del work, peers, sequence, expected, clocks, compared, computing
    return _with_causes(
        replace(found, ranks=ranks, wires=wires),
        program,
        ledger,
        _Acting(players, overlaps, off, late),
    )


class _Acting(NamedTuple):
    """All causes, what they have in common, and how far off the removal gain of each may be."""

    players: list[Player]
    overlaps: list[Overlap]
    off: list[Off | None]
    late: LateLaunches | None
    """What hosts launched late; None where no devices were recorded."""


def _with_causes(
    found: Attribution, program: Program, ledger: Ledger, acting: _Acting
) -> Attribution:
    """Return the attribution with what each cause is charged with, from replays of their coalitions."""
    players, overlaps, off, late = acting
    measured = program.windows.step_time_ns
    order = _order(program, players, overlaps)
    everybody = (1 << len(players)) - 1
    without_slow = everybody ^ sum(
        1 << n for n, own in enumerate(players) if own.kind in SLOW_RANKS
    )
    masks = np.union1d([*alone_and_last(len(players)), without_slow], coalitions(order))
    times, waiting = _replayed(program, players, overlaps, masks)
    account = _wait_account(ledger, waiting)
    released = released_gains(program, ledger, players, overlaps)
    if released is None:
        released = np.asarray(_removal_gains(times, masks, len(players)))
    causes = _causes(players, off, (order, masks), (times, waiting, released), measured)
    causes = _with_slow_hosts(causes, program, players)
    if refused := _refusals((*parted(program, ledger, account, late), *losing(causes))):
        return replace(found, limits=(*found.limits, *refused), refused=refused)
    late_frac, limits = late_waiting(late, len(program.windows.steps)) / measured, found.limits
    if late_frac > MAX_WAIT_APART:
        limits = (*limits, message("scope.idle_beside_transfers", share=late_frac))
    return replace(
        found,
        limits=limits,
        causes=causes,
        replayed_ns=float(times[-1]),
        without_slow_ns=float(times[np.searchsorted(masks, without_slow)]),
        waiting=account,
    )


def _by_passes(found: Attribution, late_ns: dict[int, float]) -> Attribution:
    """Return the attribution without causes: passes alone tell who is slow, and the account denies it."""
    refused = _refusals(
        message("check.idle_taken_for_work", rank=rank, late_ns=late)
        for rank, late in late_ns.items()
    )
    ranks = slow_by_passes(found.ranks, found.detection, late_ns)
    return replace(found, ranks=ranks, limits=(*found.limits, *refused), refused=refused)


def _refusals(reasons: Iterable[Message]) -> tuple[Limit, ...]:
    return tuple(message("unknown.no_causes", reason=why) for why in reasons)


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


def _separated(
    work: Work, expected: Expected, ranks: pd.DataFrame
) -> tuple[Expected, pd.DataFrame]:
    """Return what is expected, and the table, with suspects compared with ranks that are none."""
    slow = ranks.loc[ranks["suspect"], "rank"].tolist()
    apart = among_healthy(work, expected, slow)
    if apart is expected:
        return expected, ranks
    table = compared_ranks(work, apart.work_ns)
    is_slow = ranks["suspect"].to_numpy(bool)
    computing = ["excess_ns", "peer_ns", "slowdown", "z"]
    return apart, ranks.assign(
        **{name: ranks[name].where(~is_slow, table[name]) for name in computing}
    )


def without_blame(ranks: list[int], limits: tuple[Limit, ...]) -> Attribution:
    """Return the attribution of a capture in which no rank can be compared with its peers."""
    unknown = ("excess_ns", "peer_ns", "slowdown", "z")
    table = pd.DataFrame({"rank": ranks, "peer_class": range(len(ranks)), "peers": 0})
    table = table.assign(
        **dict.fromkeys(unknown, np.nan), late=False, suspect=False, chance=np.nan, clock_ns=0.0
    )
    return Attribution(ranks=table, limits=limits)


def _causes(
    players: list[Player],
    off: list[Off | None],
    game: tuple[Joining, IntArray],
    replayed: tuple[FloatArray, FloatArray, FloatArray],
    measured: float,
) -> tuple[Cause, ...]:
    """Return what each player is charged with, the largest share first.

    Args:
        players: All causes.
        off: How far off the removal gain of each may be.
        game: In which order they join, and the coalitions that were replayed.
        replayed: The step time of each, and the waiting in it; and the removal gain of each player
            where ranks do not stand idle.
        measured: The measured step time, ns.
    """
    order, masks = game
    causes = [
        Cause(
            kind=player.kind,
            where=player.where,
            share_frac=share / measured,
            removal_gain_frac=gain / measured,
            removal_gain_interval=_interval(error, gain, without_idle, measured),
            direct_ns=share - induced,
            induced_wait_ns=induced,
            relief_ns=player.relief_ns,
            hidden_by=hidden_by,
        )
        for player, error, share, induced, gain, without_idle, hidden_by in zip(
            players,
            off,
            *(shares(order, masks, values).tolist() for values in replayed[:2]),
            _removal_gains(replayed[0], masks, len(players)),
            replayed[2].tolist(),
            hiding(players, masks, replayed[0], measured),
            strict=True,
        )
    ]
    return tuple(sorted(causes, key=lambda cause: -cause.share_frac))


def _with_slow_hosts(
    causes: tuple[Cause, ...], program: Program, players: list[Player]
) -> tuple[Cause, ...]:
    """Return the causes with what heavy stages would return as slow hosts, each by a replay of its own."""
    effects = [own.as_host for own in players if own.as_host is not None]
    if not effects:
        return causes
    stages = [own.where["stage"] for own in players if own.as_host is not None]
    # The last lane keeps all of them.
    lanes = np.hstack([1.0 - np.eye(len(effects)), np.ones((len(effects), 1))])
    times, _ = replay_scenarios(program, effects, lanes)
    gains = dict(zip(stages, (times[-1] - times[:-1]).tolist(), strict=True))
    return tuple(
        replace(own, gain_as_host_frac=gains[own.where["stage"]] / program.windows.step_time_ns)
        if own.kind == "stage_imbalance" and own.where["stage"] in gains
        else own
        for own in causes
    )


def _order(program: Program, players: list[Player], overlaps: list[Overlap]) -> Joining:
    """Return in which orders causes join: those that change next to nothing first, if there are many."""
    count = len(players)
    labels = [player.union for player in players]
    if count <= MAX_PLAYERS:
        return joining(labels, np.ones(count))
    masks = alone_and_last(count)
    times, _ = _replayed(program, players, overlaps, masks)
    return joining(labels, changes(masks, times, count) / times[-1])


def _replayed(
    program: Program, players: list[Player], overlaps: list[Overlap], masks: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return step time and waiting of every coalition of causes."""
    keep = membership(masks, len(players))
    keep = np.vstack([keep, kept_overlaps(keep, overlaps)])
    effects = [*(own.effect for own in players), *(own.given_back for own in overlaps)]
    return replay_scenarios(program, effects, keep)


def _interval(
    error: Off | None, gain: float, without_idle: float, measured: float
) -> tuple[float, float] | None:
    """Return between what a removal gain lies, by its error and by what idle time may mean."""
    bounds = [] if error is None else [*error.interval(gain)]
    if is_moved(gain, without_idle, measured):
        bounds += [gain, without_idle]
    return (min(bounds) / measured, max(bounds) / measured) if bounds else None


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
