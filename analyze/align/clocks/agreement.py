"""Whether the ranks' clocks agree, judged from what the tables say of the same moments.

Members leave a synchronising collective together, so the differences of their
recorded ends show the differences of their clocks. What is judged here remains after
offsets were corrected (``alignment``). Ends are used only where the
member was seen to stand still until the end (host) or on the device. A host may leave as
soon as what it sends lies in a buffer, long before a slow link brings it to the others: of
its ends only what no transfer explains counts, an end before another member came. And nothing
is received before it is sent. Ranks that read one clock cannot disagree: what their
ends differ by is how busy their machine was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import SYNCHRONISING

from ...tables.sorting import greatest_of_group, least_of_group, ranks_of_group, sorted_in_groups
from ..communication.events import BLOCKING_NS, CommunicationEvents

MAX_SKEW_NS = 1_000_000
"""Constant offset that is taken as a wrong clock; members leave within far less."""
MAX_SPREADS = 5.0
"""It must also be that many times the usual scatter of the rank's ends."""
_LOW = 0.1
"""Share of the ends that may lie elsewhere."""

PARTS = 4
LEAST_IN_PART = 8
"""Ends of a rank in a part of the capture from which the part is judged by itself."""
_FEW = 4
_MANY = 8
"""Parts of a rank's receives of which one may be early by chance: a quarter of few, an eighth of many."""


def clock_offsets(
    events: CommunicationEvents,
    clock_of: Callable[[int], str],
    errors_ns: Mapping[str, float] | None = None,
) -> pd.Series:
    """Return how far clocks are off, in ns, by rank; only ranks beyond the limits.

    From collectives: the offset to the median of the rank's groups. From sends and
    receives, which may cross hosts where no collective does: how long before the
    send a receive is recorded to have ended. Empty where the clocks agree.

    Args:
        events: The communication of the analysed steps.
        clock_of: The clock that a rank read; only operations across clocks tell anything.
        errors_ns: How far each clock that was corrected may still be off: that much besides the
            limits is no news, up to as much again.
    """
    frame = _across_clocks(events.frame, clock_of)
    if frame.empty:
        return pd.Series(dtype=float)
    found = pd.concat([_by_common_end(frame), _by_causality(frame)])
    left_ns = min(max((errors_ns or {}).values(), default=0.0), MAX_SKEW_NS)
    found = found[found.abs() > MAX_SKEW_NS + left_ns]
    worst: pd.Series[float] = found.iloc[np.argsort(-found.abs().to_numpy(), kind="stable")]
    return worst[~worst.index.duplicated()]


_COLUMNS = (
    *("rank", "step", "join", "kind", "host", "is_p2p", "is_send"),
    *("start_ns", "end_ns", "wait_start_ns", "wait_end_ns"),
)
"""What of events tells how far clocks are apart."""


def _across_clocks(frame: pd.DataFrame, clock_of: Callable[[int], str]) -> pd.DataFrame:
    """Return the times of the events of operations whose members read different clocks."""
    clocks = {rank: clock_of(rank) for rank in frame["rank"].unique().tolist()}
    if len(set(clocks.values())) == len(clocks):
        return frame
    clock_of_rank = np.zeros(max(clocks) + 1, np.int32)
    clock_of_rank[list(clocks)] = pd.factorize(np.array([*clocks.values()], dtype=object))[0]
    clock, join = clock_of_rank[frame["rank"].to_numpy()], frame["join"].to_numpy()
    row = np.flatnonzero(least_of_group(clock, join) != greatest_of_group(clock, join))
    return pd.DataFrame({name: frame[name].array[row] for name in _COLUMNS}, copy=False)


def _by_common_end(frame: pd.DataFrame) -> pd.Series:
    """Return, by rank, offsets in the whole capture and in parts of it, where beyond the limits."""
    stood = ~frame["host"] | ((frame["wait_end_ns"] - frame["wait_start_ns"]) > BLOCKING_NS)
    kinds = [kind.value for kind in SYNCHRONISING]
    rows = frame[frame["kind"].isin(kinds) & frame["end_ns"].notna() & stood]
    rows = rows[ranks_of_group(rows["rank"].to_numpy(), rows["join"].to_numpy()) > 1]
    early = _unexplained(rows)
    rows, early = rows[early.notna()], early.dropna()
    # A clock that is set in mid-capture is wrong in a part of it only.
    part = rows["step"].rank(method="dense") * PARTS // (rows["step"].nunique() + 1)
    in_part = early.groupby([rows["rank"], part]).transform("size") >= LEAST_IN_PART
    of_part = _beyond(early[in_part], [rows.loc[in_part, "rank"], part[in_part]]).droplevel(1)
    found: pd.Series[float] = pd.concat([_beyond(early, [rows["rank"]]), of_part])
    return found


def _unexplained(rows: pd.DataFrame) -> pd.Series:
    """Return how much earlier than the median member each one left, as far as no transfer explains it.

    NaN where hosts left far apart, and none before the last came: such an operation does not tell.
    """
    by_join = rows.groupby("join")
    early = rows["end_ns"] - by_join["end_ns"].transform("median")
    is_explained = rows["host"] & (early.abs() > MAX_SKEW_NS)
    if not is_explained.any():
        return early
    before = by_join["start_ns"].transform("max") - by_join["end_ns"].transform("min")
    within = early.clip(-before.clip(lower=0), before.clip(lower=0))
    return early.mask(is_explained, within.where(before > 0))


def _beyond(early: pd.Series, keys: list[pd.Series]) -> pd.Series:
    """Return the medians of early by key that are beyond the limits.

    A wrong clock is wrong at every end: nine tenths must lie on its side, by half of the median. Of the
    few ends in a part the scatter alone may be small by chance, and times may come in ticks of milliseconds.
    """
    by_key = early.groupby(keys)
    usual = by_key.transform("median")
    offset: pd.Series[float] = by_key.median()
    scatter = (early - usual).abs().groupby(keys).median()
    least = (early * np.sign(usual)).groupby(keys).quantile(_LOW, interpolation="higher")
    beyond = offset.abs() > np.maximum(MAX_SKEW_NS, MAX_SPREADS * scatter)
    found: pd.Series[float] = offset[beyond & (least > offset.abs() / 2)]
    return found


def _by_causality(frame: pd.DataFrame) -> pd.Series:
    """Return, by receiving rank, how long before its send a receive ended, where many did.

    A wrong clock is wrong at all of a rank's receives that waited for their data, stamps that scatter
    at some of them: an eighth, the first eight at least, or a quarter of few, does not tell.
    """
    is_p2p, is_send, start, join = (
        frame[name].to_numpy() for name in ("is_p2p", "is_send", "start_ns", "join")
    )
    sent = np.full(int(join.max(initial=-1)) + 1, np.inf)
    sends = np.flatnonzero(is_p2p & is_send)
    np.minimum.at(sent, join[sends], start[sends].astype(np.float64))
    receives = np.flatnonzero(is_p2p & ~is_send & np.isfinite(sent[join]) & frame["end_ns"].notna())
    ahead = frame["end_ns"].to_numpy(np.float64)[receives] - sent[join[receives]]
    rank = frame["rank"].to_numpy()[receives]
    order = sorted_in_groups(ahead, rank)
    sorted_rank = rank[order]
    opens = np.append(True, sorted_rank[1:] != sorted_rank[:-1])[: len(order)]
    first = np.flatnonzero(opens)
    count = np.diff(np.append(first, len(order)))
    needed = np.maximum(np.minimum(LEAST_IN_PART, np.ceil(count / _FEW)), count // _MANY)
    chosen = np.sort(order[first + needed.astype(np.int64) - 1])
    usual = pd.Series(ahead[chosen], index=rank[chosen])
    return usual[usual < -MAX_SKEW_NS]
