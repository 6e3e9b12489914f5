"""Ports, phases and recorded bytes brought together."""

from __future__ import annotations

from collections.abc import Iterator
from math import comb

import msgspec
import numpy as np
import pandas as pd

from ...align.communication.events import CommunicationEvents
from ...align.steps.windows import StepWindows
from ...tables.arrays import BoolArray, FloatArray
from ...tables.intervals import pair, total_length
from ...tables.trace import Trace
from .counters import FAULTS, PAUSES, growth
from .own import crossing_events
from .phases import HostPhases, Phase, phase_rates

RESOLVED_FRAC = 0.1
"""Standard error of a rate, as a share of the peak, up to which it is stated."""

SLOWER = 1.2
"""Times as long as else take operations that faults or pauses explain."""
SLOWEST = 0.1
"""Share of the operations that count as slow by chance."""
MAX_CHANCE = 1e-3 * (1 + 1e-9)
"""Pauses explain operations that are among the slowest with less chance than this."""
MUCH_PAUSED = 2.0
"""Times its usual growth from which a counter of pauses grows much."""
MOST_OF_SPEED = 1.05
"""Share of the stated speed above which that, or a fitted rate, cannot be true."""


class PortSeries(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of one port over time; arrays of ``(intervals,)``."""

    begin_ns: FloatArray
    """From the begin of the first analysed step."""
    end_ns: FloatArray
    moved_bytes: FloatArray
    phase_ns: FloatArray
    """``(intervals, phases)``, in the order of ``Phase``."""

    def pooled(self, most: int) -> PortSeries:
        """Return at most so many intervals: neighbours are put together."""
        each = -(-len(self.begin_ns) // most)
        if each <= 1:
            return self
        first = np.arange(0, len(self.begin_ns), each)
        last = np.append(first[1:], len(self.begin_ns)) - 1
        return PortSeries(
            begin_ns=self.begin_ns[first],
            end_ns=self.end_ns[last],
            moved_bytes=np.add.reduceat(self.moved_bytes, first),
            phase_ns=np.add.reduceat(self.phase_ns, first, axis=0),
        )


class PortUse(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of one port over the analysed steps."""

    host: str
    port: str
    kind: str
    direction: str
    """``tx`` or ``rx``."""
    speed_bytes_per_s: float | None
    interval_ns: float
    """Median between two samples."""
    intervals: int
    mean_bytes_per_s: float
    peak_bytes_per_s: float
    """Of the busiest interval."""
    rates: dict[Phase, float | None]
    """By phase, bytes/s; None where the samples do not resolve it."""
    errors: dict[Phase, float | None]
    """Standard errors of the rates."""
    series: PortSeries

    def used(self, rate: float | None) -> float | None:
        """Return a rate as a share of the speed of the port."""
        return None if rate is None or not self.speed_bytes_per_s else rate / self.speed_bytes_per_s


class AxisUse(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded bytes of one axis that leave one host."""

    host: str
    axis: str
    sent_bytes: float
    """Per step."""
    busy_ns: float
    """Per step: how long some of it was on the wire."""
    groups: tuple[str, ...]


class PortFaults(msgspec.Struct, frozen=True, kw_only=True):
    """Counted faults of one port, and the operations that cross its host meanwhile."""

    host: str
    port: str
    counts: dict[str, int]
    """Growth of errors, retries, link_downed over the analysed steps; or of congestion or wait, where that is much."""
    ratio: float | None
    """Median wire time in intervals with faults over that in those without, of like operations."""
    operations: int
    """In intervals with faults."""
    groups: tuple[str, ...]

    @property
    def is_pause(self) -> bool:
        """Return whether it was held back, and nothing broke."""
        return not set(self.counts) & set(FAULTS)


class HostTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What the network ports of a host sent beside what was recorded."""

    host: str
    counted_bytes_per_s: float
    recorded_bytes_per_s: float
    speed_bytes_per_s: float | None
    """Of all its ports; None if one is unknown."""


class LinkUse(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    ports: tuple[PortUse, ...] = ()
    axes: tuple[AxisUse, ...] = ()
    faults: tuple[PortFaults, ...] = ()
    traffic: tuple[HostTraffic, ...] = ()
    step_ns: float = 0.0
    unknown: str | None = None
    """``samples``, ``steps`` or ``clock``: what is missing."""


def link_use(trace: Trace, windows: StepWindows, events: CommunicationEvents) -> LinkUse:
    """Return how the ports of the hosts were used in the analysed steps."""
    if not windows.has_marks or windows.frame.empty:
        return LinkUse(unknown="steps")
    if trace.per_step_clock:
        return LinkUse(unknown="clock")
    if not trace.row_count("link_sample") + trace.row_count("device_sample"):
        return LinkUse(unknown="samples")
    grown = growth(trace, windows)
    if grown.empty:
        return LinkUse(unknown="samples")
    crossing = crossing_events(trace, events)
    return LinkUse(
        ports=tuple(_ports(trace, windows, events, grown)),
        axes=tuple(_axes(crossing, len(windows.steps))),
        faults=tuple(_faults(grown, crossing)),
        traffic=tuple(_traffic(grown, crossing)),
        step_ns=windows.mean_ns,
    )


def _ports(
    trace: Trace, windows: StepWindows, events: CommunicationEvents, grown: pd.DataFrame
) -> Iterator[PortUse]:
    ranks: dict[str, list[int]] = {}
    for rank in trace.ranks:
        ranks.setdefault(trace.clock_of(rank), []).append(rank)
    phases: dict[str, HostPhases] = {}
    origin_ns = float(windows.frame["start_ns"].min())
    for (host, port), rows in grown.groupby(["host", "port"], sort=True):
        own = ranks.get(str(host))
        if own is None:
            continue
        if host not in phases:
            phases[str(host)] = HostPhases(trace, windows, events, own)
        begin, end = (rows[name].to_numpy(np.float64) for name in ("begin_ns", "end_ns"))
        inside = phases[str(host)].inside(begin, end)
        for direction in ("tx", "rx"):
            amount = rows[f"{direction}_bytes"].to_numpy(np.float64)
            if np.isfinite(amount).any():
                known = np.isfinite(amount)
                series = PortSeries(
                    begin_ns=begin[known] - origin_ns,
                    end_ns=end[known] - origin_ns,
                    moved_bytes=amount[known],
                    phase_ns=inside[known],
                )
                yield _port(str(host), str(port), direction, rows, series)


def _port(host: str, port: str, direction: str, rows: pd.DataFrame, series: PortSeries) -> PortUse:
    amount, inside = series.moved_bytes, series.phase_ns
    length = inside.sum(axis=1)
    found = phase_rates(amount, inside)
    stated = rows["speed_bytes_per_s"].to_numpy(np.float64)
    stated = stated[np.isfinite(stated)]
    speed = float(np.median(stated)) if len(stated) else np.nan
    each = amount / length * 1e9
    if each.max() > MOST_OF_SPEED * speed:
        speed = np.nan  # No port carries more than its speed: the stated one is another's.
    limit = RESOLVED_FRAC * (speed if speed > 0 else float(each.max()))
    is_sure = np.isfinite(found.rate) & (found.error <= limit)
    if speed > 0:
        is_sure &= found.rate - 2 * found.error <= MOST_OF_SPEED * speed
    named = list(zip(Phase, is_sure.tolist(), found.rate, found.error, strict=True))
    return PortUse(
        host=host,
        port=port,
        kind=str(rows["kind"].iloc[0]),
        direction=direction,
        speed_bytes_per_s=speed if speed > 0 else None,
        interval_ns=float(np.median(length)),
        intervals=len(amount),
        mean_bytes_per_s=float(amount.sum() / length.sum() * 1e9),
        peak_bytes_per_s=float(each.max()),
        rates={phase: float(rate) if sure else None for phase, sure, rate, _ in named},
        errors={phase: float(error) if sure else None for phase, sure, _, error in named},
        series=series,
    )


def _axes(crossing: pd.DataFrame, steps: int) -> Iterator[AxisUse]:
    for (host, axis), rows in crossing.groupby(["host", "axis"], sort=True):
        ended = rows[rows["end_ns"].notna() & rows["start_ns"].notna()]
        busy = total_length(pair(ended["start_ns"], ended["end_ns"])) if len(ended) else 0
        yield AxisUse(
            host=str(host),
            axis=str(axis),
            sent_bytes=float(rows["sent_bytes"].sum()) / steps,
            busy_ns=busy / steps,
            groups=tuple(sorted(set(rows["group_id"]))),
        )


def _faults(grown: pd.DataFrame, crossing: pd.DataFrame) -> Iterator[PortFaults]:
    like = ["axis", "group_id", "kind", "size_bytes"]
    usual = crossing.groupby(like)["wire_ns"].transform("median")
    timed = crossing.assign(ratio=(crossing["wire_ns"] / usual).where(usual > 0))
    for (host, port), rows in grown.groupby(["host", "port"], sort=True):
        own = timed[(timed["host"] == host) & timed["ratio"].notna()]
        counts = {name: int(rows[name].sum()) for name in FAULTS}
        if any(counts.values()):
            bad = rows[rows[list(FAULTS)].sum(axis=1) > 0]
            yield _beside(str(host), str(port), counts, bad, own)
        for name in PAUSES:
            bad = _much_paused(rows, name)
            found = _beside(str(host), str(port), {name: int(bad[name].sum())}, bad, own)
            # All ports pause a little: only what goes with slow operations, beyond chance, is said.
            is_slower = found.ratio is not None and found.ratio >= SLOWER
            if is_slower and _chance(own, _inside(own, bad)) <= MAX_CHANCE:
                yield found


def _much_paused(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the intervals in which a counter of pauses grows far faster than usual; none where all do."""
    rate = rows[name] / (rows["end_ns"] - rows["begin_ns"])
    if rate.isna().all():
        return rows[:0]
    bad = rows[(rate > MUCH_PAUSED * rate.median()).to_numpy(bool)]
    return bad if len(bad) < len(rows) else rows[:0]


def _beside(
    host: str, port: str, counts: dict[str, int], bad: pd.DataFrame, own: pd.DataFrame
) -> PortFaults:
    """Return what a port counted in some intervals, with the operations that cross its host meanwhile."""
    inside = _inside(own, bad)
    ahead, behind = own.loc[inside, "ratio"], own.loc[~inside, "ratio"]
    return PortFaults(
        host=host,
        port=port,
        counts=counts,
        ratio=float(ahead.median() / behind.median()) if len(ahead) and len(behind) else None,
        operations=len(ahead),
        groups=tuple(sorted(set(own.loc[inside, "group_id"]))),
    )


def _inside(own: pd.DataFrame, bad: pd.DataFrame) -> BoolArray:
    """Return which operations have their middle in some intervals."""
    middle = ((own["start_ns"] + own["end_ns"]) / 2).to_numpy(np.float64)
    if bad.empty:
        return np.zeros(len(own), bool)
    begin, end = (bad[name].to_numpy(np.float64) for name in ("begin_ns", "end_ns"))
    at = np.searchsorted(begin, middle, side="right") - 1
    found: BoolArray = (at >= 0) & (middle <= end[np.maximum(at, 0)])
    return found


def _chance(own: pd.DataFrame, inside: BoolArray) -> float:
    """Return how likely as many of some operations are among the slowest tenth of the others; one a group and step."""
    keys = [own["group_id"], own["step"]]
    ahead = own.loc[inside, "ratio"].groupby([key[inside] for key in keys]).mean()
    behind = own.loc[~inside, "ratio"].groupby([key[~inside] for key in keys]).mean()
    if ahead.empty or behind.empty:
        return 1.0
    count, slow = len(ahead), int((ahead > behind.quantile(1.0 - SLOWEST)).sum())
    return sum(
        comb(count, number) * SLOWEST**number * (1.0 - SLOWEST) ** (count - number)
        for number in range(slow, count + 1)
    )


def _traffic(grown: pd.DataFrame, crossing: pd.DataFrame) -> Iterator[HostTraffic]:
    """Compare over the time from the first to the last sample of each host."""
    network = grown[grown["kind"] == "network"]
    for host, rows in network.groupby("host", sort=True):
        begin, end = float(rows["begin_ns"].min()), float(rows["end_ns"].max())
        own = crossing[crossing["host"] == host]
        inside = own["end_ns"].fillna(own["start_ns"]).between(begin, end)
        speeds = rows.groupby("port")["speed_bytes_per_s"].median()
        yield HostTraffic(
            host=str(host),
            counted_bytes_per_s=float(rows["tx_bytes"].sum()) / (end - begin) * 1e9,
            recorded_bytes_per_s=float(own.loc[inside, "sent_bytes"].sum()) / (end - begin) * 1e9,
            speed_bytes_per_s=None if speeds.isna().any() else float(speeds.sum()),
        )
