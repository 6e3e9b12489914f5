"""Which ranks work longer than their peers by more than noise.

Microbatches may be unequal. A rank that is slow tells nobody's lengths: the others of its replica would be said to have long
sequences, and to be fast. Some ranks show only after unequal data is taken out, as one that is slow in
every second step of long and short ones. Then the data is judged once more without them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Axis

from ..account.ledger.build import Ledger
from ..align.steps.windows import StepWindows
from ..tables.arrays import BoolArray, FloatArray, numbers_in
from ..tables.centres import median_of_others
from ..tables.trace import Trace, position_of_ranks
from .causes import Passes, expected_of, sequence_effect
from .causes.chance import chance_of_arrivals, chance_of_ranks
from .causes.data import Sequences
from .causes.effects import Expected, Work, excess_by_rank, peer_centre
from .replay.program import Program
from .slow_ranks import DetectionResult
from .slow_ranks.suspicion import cleared_ranks, expected_work, steps_of_slow, without_ranks
from .slow_ranks.verdict import Persistence
from .unrecorded_joins.places import IDLE

MIN_Z = 4.0
"""Robust z from which a rank's excess is more than noise (false alarms ~ 3e-5 a rank)."""
MIN_Z_IF_LAST = 2.0
MAX_CHANCE = 1e-4
"""With this little a chance of arriving last so often, a smaller z is enough."""
MIN_EXCESS_FRAC = 0.005
"""Excess below this share of the step is not worth a suspect."""
MIN_OVER_CLOCK = 0.1
"""Least excess over what its slow clock cost, for a rank to be suspected besides."""
MIN_LATE_FRAC = 0.02
"""Share of the step by which passes must take longer to contradict the account."""
LEAST_KEPT = 0.25
"""Share of what a rank's passes take longer that its excess in the account must show."""


def compared_ranks(work: Work, expected_ns: FloatArray) -> pd.DataFrame:
    """Return how much longer each rank works than expected, and what its clock cost besides."""
    ranks = excess_by_rank(work, expected_ns)
    return ranks.assign(clock_ns=_clock_by_rank(work, ranks["rank"]))


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


def arrives_late(trace: Trace, ranks: pd.DataFrame, waits: pd.DataFrame) -> BoolArray:
    """Return which ranks arrive last by more than chance, for no other rank's sake.

    A slow rank makes the whole of its replica late, since the stages wait for one another: beside
    one that exceeds its peers by more than noise, being late is no witness against the others.
    """
    by_rank, layout = waits.set_index("rank")["chance"], trace.layout
    own = ranks["rank"].tolist()
    replica = own
    if layout is not None:
        replica = [*position_of_ranks(layout, Axis.DP, own).values()]
    is_slow = ranks["z"] >= MIN_Z
    others = is_slow.groupby(np.asarray(replica)).transform("sum") - is_slow
    return np.asarray((by_rank[own].to_numpy() <= MAX_CHANCE) & (others == 0).to_numpy())


def is_suspect(
    ranks: pd.DataFrame, measured: float, detection: DetectionResult | None
) -> BoolArray:
    """Return which ranks work longer than their peers by more than noise."""
    z, excess = ranks["z"].to_numpy(np.float64), ranks["excess_ns"].to_numpy(np.float64)
    unlikely = (z >= MIN_Z) | ((z >= MIN_Z_IF_LAST) & ranks["late"].to_numpy(bool))
    found = [] if detection is None else [verdict.rank for verdict in detection.suspects]
    clock = ranks["clock_ns"].to_numpy(np.float64)
    # The detection does not know of clocks.
    unlikely |= np.isin(ranks["rank"], found) & (clock == 0)
    unlikely &= excess >= MIN_OVER_CLOCK * clock
    unlikely &= ~np.isin(ranks["rank"], cleared_ranks(ranks, detection))
    return np.asarray(unlikely & (excess >= MIN_EXCESS_FRAC * measured))


def candidates_of(work: Work, ranks: pd.DataFrame, detection: DetectionResult | None) -> set[int]:
    """Return the ranks that seem to be slow, by their work or as the detection finds."""
    found = [] if detection is None else [verdict.rank for verdict in detection.suspects]
    candidates = {*ranks.loc[ranks["suspect"], "rank"].tolist(), *found}
    return candidates.intersection(work.peer_class)


def their_peers(work: Work, ranks: Collection[int]) -> list[int]:
    """Return the ranks of the classes of some ranks."""
    classes = {work.peer_class[rank] for rank in ranks}
    return [rank for rank, own in work.peer_class.items() if own in classes]


def beyond_chance(
    work: Work,
    expected: Expected,
    passes: pd.DataFrame,
    ranks: pd.DataFrame,
    detection: DetectionResult | None,
    arrivals: pd.DataFrame | None = None,
) -> tuple[pd.DataFrame, DetectionResult | None]:
    """Return the table and the detection without suspects that relabelling the ranks finds as well.

    Ranks that are late by chance, each in its own steps, exceed one another by as much as slow ones
    (``causes.chance``). Of a rank without peers nothing tells; it stays.

    Args:
        work: The recorded work by cell.
        expected: What each cell would have taken on a healthy rank.
        passes: Own durations of passes of these ranks and their peers; may be empty.
        ranks: rank, late and suspect.
        detection: Slow ranks as durations show them.
        arrivals: rank, step, join and late_ns of the members of collectives; a second witness of ranks that
            arrive late, for they are under the same test.

    Returns:
        The table with ``chance`` of each suspect (NaN: not tested), and the detection.
    """
    candidates = candidates_of(work, ranks, detection)
    slow_steps = steps_of_slow(candidates, detection)
    tested = chance_of_ranks(work, expected.unequal_ns, passes, sorted(candidates), slow_steps)
    if arrivals is not None:
        for rank in ranks.loc[ranks["late"], "rank"].tolist():
            if rank in tested and tested[rank].explains:
                tested[rank] = chance_of_arrivals(work.peer_class, arrivals, rank)
    by_step = {rank: own.by_step for rank, own in tested.items()}
    table = ranks.assign(chance=ranks["rank"].map(by_step).astype(np.float64))
    explained = [rank for rank, own in tested.items() if own.explains]
    table["suspect"] &= ~table["rank"].isin(explained)
    return table, without_ranks(detection, explained)


def of_suspects(ranks: pd.DataFrame, name: str) -> dict[int, float]:
    """Return a column of the suspects, by rank."""
    slow = ranks[ranks["suspect"]]
    return dict(zip(slow["rank"].tolist(), slow[name].tolist(), strict=True))


def _clock_by_rank(work: Work, rank: pd.Series) -> FloatArray:
    """Return what a slow clock cost each rank per step, ns."""
    cells = work.cells[work.cells["clock_ns"] > 0]
    steps = len(numbers_in(work.cells["step"].to_numpy()))
    mean = cells.groupby("rank")["clock_ns"].sum() / max(steps, 1)
    return rank.map(mean).fillna(0.0).to_numpy(np.float64)


def idle_taken_for_work(
    ranks: pd.DataFrame,
    detection: DetectionResult | None,
    passes: pd.DataFrame,
    windows: StepWindows,
    ledger: Ledger,
) -> dict[int, float]:
    """Return slow ranks whose excess is gone from the account because peers stand idle as long, unrecorded.

    Their passes alone say that they are slow; what their peers do meanwhile is most likely waiting for them.

    Args:
        ranks: rank, peer_class, peers, excess_ns, suspect and clock_ns.
        detection: Slow ranks as the durations of their passes show them.
        passes: Those durations: rank, dur_ns.
        windows: The analysed steps.
        ledger: Tells how long each rank stands idle.

    Returns:
        By how much the passes of a step take longer, ns, by rank.
    """
    if detection is None or passes.empty:
        return {}
    step_ns, steps = windows.step_time_ns, len(windows.steps)
    own_ns = passes.groupby("rank")["dur_ns"].sum() / steps
    table = ranks[(ranks["peers"] > 0) & ~ranks["suspect"] & (ranks["clock_ns"] == 0)]
    excess_ns = table.set_index("rank")["excess_ns"]
    more_idle_ns = _idle_of_peers(ranks, ledger) / steps
    found = {}
    for verdict in detection.suspects:
        rank, slower = verdict.rank, verdict.slowdown
        is_measured = rank in excess_ns.index and rank in own_ns.index
        if slower is None or verdict.persistence is not Persistence.PERSISTENT or not is_measured:
            continue
        late_ns = float(own_ns[rank]) * slower / (1 + slower)
        is_gone = excess_ns[rank] < LEAST_KEPT * late_ns
        is_idle = more_idle_ns[rank] >= (1 - LEAST_KEPT) * late_ns
        if late_ns > MIN_LATE_FRAC * step_ns and is_gone and is_idle:
            found[rank] = late_ns
    return found


def _idle_of_peers(ranks: pd.DataFrame, ledger: Ledger) -> pd.Series:
    """Return by rank how much longer its usual peer stands idle, with nothing recorded, all steps, ns."""
    by_rank = ledger.by_step[list(IDLE)].sum(axis=1).groupby(ledger.by_step["rank"]).sum()
    idle = by_rank.reindex(ranks["rank"]).fillna(0.0).to_numpy(np.float64)
    others = median_of_others(idle, ranks["peer_class"].to_numpy(np.int64))
    return pd.Series(others - idle, index=ranks["rank"])


def slow_by_passes(
    ranks: pd.DataFrame, detection: DetectionResult | None, late_ns: dict[int, float]
) -> pd.DataFrame:
    """Return the table with slow ranks by their passes alone, whose account does not show it."""
    table = ranks.copy()
    for verdict in () if detection is None else detection.suspects:
        if verdict.rank in late_ns and verdict.slowdown:
            late = late_ns[verdict.rank]
            entry = (True, late, 1 + verdict.slowdown, late / verdict.slowdown)
            names = ["suspect", "excess_ns", "slowdown", "peer_ns"]
            table.loc[table["rank"] == verdict.rank, names] = entry
    return table


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
