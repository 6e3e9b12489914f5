"""What another order of the ranks would return.

The time of an axis in another order is predicted from this run, as hops times their latency and bytes at a
rate. While an axis crosses hosts, its bytes are those that leave the busiest host. From inside to across and
back, latency and rate are the best that another axis of the run reaches there; without such an axis the time
is unknown. The recorded program is then replayed with these times, so what compute hides stays hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis

from ...account.links.ceiling import port_speeds
from ...tables.arrays import FloatArray, IntArray
from ..replay.edge_effect import edge_effect
from ..replay.program import Program
from ..replay.scenarios import replay_scenarios
from ..run_account import Account
from .crossing import Pattern, exits, orders
from .traffic import Traffic, patterns

REPLAYED = 3
"""Orders that are replayed: the best by exposed time. What is hidden changes their rank little."""

_INNER = (Axis.TP, Axis.EP)
"""Axes that belong inside a host."""

Ratios = Mapping[tuple[Axis, Pattern], float]
"""Time in another order over time now, of each kind of traffic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOrder:
    """The order with the largest predicted gain."""

    order: str
    """Slowest axis first."""
    gain_ns: float
    """Per step."""
    own_gain_ns: dict[Axis, float]
    """Where the transfers of one axis change alone."""


@dataclass(frozen=True, slots=True)
class Place:
    """How fast transfers are inside a host, or across."""

    hop_ns: float
    bytes_per_ns: float


def best_order(
    account: Account, layout: ParallelLayout, hosts: IntArray, traffic: Sequence[Traffic]
) -> BestOrder | None:
    """Return the order with the largest predicted gain; None where no order has a known price."""
    estimated = estimated_gains(layout, hosts, traffic, _slowest_port(account))
    if not estimated:
        return None
    program = account.program
    best: BestOrder | None = None
    for order, (linear, ratios) in list(estimated.items())[:REPLAYED]:
        gain = linear if program is None else _replayed(account, program, ratios)
        if best is None or gain > best.gain_ns + 1:
            best = BestOrder(order=order, gain_ns=gain, own_gain_ns={})
    if best is None:
        return None
    ratios = estimated[best.order][1]
    own = {}
    for axis in {axis for axis, _ in ratios}:
        alone = {key: ratio for key, ratio in ratios.items() if key[0] is axis}
        own[axis] = (
            _linear(traffic, alone) if program is None else _replayed(account, program, alone)
        )
    return replace(best, own_gain_ns=own)


def estimated_gains(
    layout: ParallelLayout,
    hosts: IntArray,
    traffic: Sequence[Traffic],
    most_bytes_per_ns: float = np.inf,
) -> dict[str, tuple[float, Ratios]]:
    """Return gain in exposed time, ns, and ratios of the orders whose rates are known, best first.

    Of orders that put everything in the same place, the first by name. None sends an inner axis across hosts that
    stays inside now.

    Args:
        layout: The mesh as it is.
        hosts: (rank,) number of the host of each rank.
        traffic: What each axis sends.
        most_bytes_per_ns: What the ports of a host carry, where it is stated: short messages may seem faster.
    """
    now = {_key(t): _most_left(layout, hosts, t) for t in traffic}
    inside = _place([t for t in traffic if not now[_key(t)]], now)
    across = _place([t for t in traffic if now[_key(t)]], now)
    if across is not None:
        across = replace(across, bytes_per_ns=min(across.bytes_per_ns, most_bytes_per_ns))
    found: dict[str, tuple[float, Ratios]] = {}
    seen = set()
    for order in orders():
        other = replace(layout, order=order)
        after = {_key(one): _most_left(other, hosts, one) for one in traffic}
        if any(after[axis, kind] and not now[axis, kind] for axis, kind in now if axis in _INNER):
            continue  # It would be the next violation.
        ratios = {
            _key(one): _ratio(one, now[_key(one)], after[_key(one)], inside, across)
            for one in traffic
        }
        shape = tuple(ratios.values())
        if shape in seen or not np.isfinite(shape).all():
            continue
        seen.add(shape)
        found[order] = (_linear(traffic, ratios), ratios)
    return dict(sorted(found.items(), key=lambda item: -item[1][0]))


def _slowest_port(account: Account) -> float:
    """Return what the ports of the slowest host carry, bytes/ns; no limit where a host does not say it."""
    trace, speeds = account.trace, port_speeds(account.trace)
    hosts = {trace.clock_of(rank) for rank in trace.ranks}
    return min(speeds.values()) / 1e9 if hosts and hosts <= speeds.keys() else float("inf")


def _most_left(layout: ParallelLayout, hosts: IntArray, one: Traffic) -> float:
    """Return what leaves the busiest host for each byte of a rank."""
    return float(exits(layout, hosts, one.axis, one.pattern, one.members).max())


def _key(one: Traffic) -> tuple[Axis, Pattern]:
    return one.axis, one.pattern


def _place(traffic: Sequence[Traffic], now: Mapping[tuple[Axis, Pattern], float]) -> Place | None:
    """Return the best latency and rate that any of the traffic reaches; None without any."""
    if not traffic:
        return None
    hops = [t.fixed_ns / t.hops for t in traffic if t.hops]
    rates = [
        (now[_key(t)] or 1.0) * t.sent_bytes / max(t.wire_ns - t.fixed_ns, 1e-9) for t in traffic
    ]
    return Place(min(hops, default=0.0), max(rates))


def _ratio(
    one: Traffic, before: float, after: float, inside: Place | None, across: Place | None
) -> float:
    """Return time after over time before; NaN where the run does not show the rate.

    Large messages of one axis may run faster across hosts than small ones of another inside: to cross makes
    none faster for that, and not to cross none slower.
    """
    if not before and not after:
        return 1.0
    if before and after:
        return (one.fixed_ns + (one.wire_ns - one.fixed_ns) * after / before) / one.wire_ns
    place = inside if before else across
    if place is None:
        return float("nan")
    amount = one.sent_bytes * (after or 1.0)
    ratio = (one.hops * place.hop_ns + amount / place.bytes_per_ns) / one.wire_ns
    return min(ratio, 1.0) if before else max(ratio, 1.0)


def _linear(traffic: Sequence[Traffic], ratios: Ratios) -> float:
    """Return the gain where the exposed share of each axis stays as it is."""
    return sum(one.exposed_ns * (1 - ratios.get(_key(one), 1.0)) for one in traffic)


def _replayed(account: Account, program: Program, ratios: Ratios) -> float:
    """Return the gain of the recorded program with other transfer times, ns per step."""
    share = _shares(program, ratios)
    base = np.maximum(program.base_ns[program.first_wire :], 0.0)
    effect = [edge_effect(base * share[program.wire_event], first=program.first_wire)]
    if effect[0].is_nothing:
        return 0.0
    changed, unchanged = replay_scenarios(program, effect, np.array([[0.0, 1.0]]))[0].tolist()
    return float(account.windows.step_time_ns * (1.0 - changed / unchanged))


def _shares(program: Program, ratios: Ratios) -> FloatArray:
    """Return the share of each event's wire that is taken away, negative where it gets longer."""
    frame = program.events
    axis, pattern = frame["axis"].astype(str).to_numpy(), patterns(frame)
    share = np.zeros(len(frame))
    for (name, kind), ratio in ratios.items():
        share[(axis == name.value) & (pattern == kind.value)] = 1.0 - ratio
    return share
