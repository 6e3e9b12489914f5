"""How long the traffic of a run takes in other orders of the ranks, and what these would return.

The time of an axis in another order is hops times their latency and bytes at a rate. While an axis crosses
hosts, its bytes are those that leave the busiest host. From inside to across and back, latency and rate are the
best that another axis of the run reaches there; without such an axis the time is unknown.

Buffers and allowances for bursts let a port pass more for a while than it carries. So an order that sends more
across hosts than now, in a step or in one go, has a time only where the speed of the ports is known.

For what an order returns, the recorded program is replayed with these times, so what compute hides stays hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

import msgspec
import numpy as np

from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import Axis

from ...account.links.ceiling import port_speeds
from ...tables.arrays import FloatArray, IntArray
from ..replay.effect_folding import edge_effect
from ..replay.program import Program
from ..replay.scenarios import replay_scenarios
from ..run_account import Account
from .crossing import Pattern, exits, orders
from .traffic import Traffic, patterns

_SAME = 1 + 1e-6
"""More by less than this is rounding."""

_INNER = (Axis.TP, Axis.EP)
"""Axes that belong inside a host."""

Ratios = Mapping[tuple[Axis, Pattern], float]
"""Time in another order over time now, of each kind of traffic."""


class NoPrice(StrEnum):
    """Why an order has no price."""

    PORT_SPEED = "port_speed"
    """It sends more across hosts, in a step or in one go, than was recorded, and the speed of the ports is unknown."""
    INSIDE = "inside"
    """It moves an axis into a host, and the run shows nothing of how fast that is."""


class Estimate(NamedTuple):
    """What an order gains."""

    gain_ns: float
    """In exposed time; of an order without a price at most."""
    ratios: Ratios
    no_price: NoPrice | None = None


class Estimates(msgspec.Struct, frozen=True):
    """Orders, best first."""

    priced: dict[str, Estimate] = msgspec.field(default_factory=dict)
    unpriced: dict[str, Estimate] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Place:
    """How fast transfers are inside a host, or across."""

    hop_ns: float
    bytes_per_ns: float


class _Crossing(NamedTuple):
    """What an order sends across hosts."""

    left: dict[tuple[Axis, Pattern], float]
    """Out of the busiest host, for each byte of a rank."""
    step_bytes: float
    """Out of the busiest host in a step, on all axes."""
    train_bytes: float
    """Out of the busiest host in one go."""


def estimated_gains(
    layout: ParallelLayout,
    hosts: IntArray,
    traffic: Sequence[Traffic],
    port_bytes_per_ns: float | None = None,
) -> Estimates:
    """Return what other orders gain, and at most gain where they have no price.

    Of orders that put everything in the same place, the first by name. None sends an inner axis across hosts that
    stays inside now.

    Args:
        layout: The mesh as it is.
        hosts: (rank,) number of the host of each rank.
        traffic: What each axis sends.
        port_bytes_per_ns: What the ports of a host carry, where it is known: short messages may seem faster.
    """
    now = _crossing(layout, hosts, traffic)
    found = Estimates()
    seen = set()
    for order in orders():
        after = _crossing(replace(layout, order=order), hosts, traffic)
        if any(after.left[key] and not now.left[key] for key in now.left if key[0] in _INNER):
            continue  # It would be the next violation.
        why, ratios = _ratios(traffic, now, after, port_bytes_per_ns)
        shape = (why, *ratios.values())
        if shape in seen or not np.isfinite([*ratios.values()]).all():
            continue
        seen.add(shape)
        by_order = found.priced if why is None else found.unpriced
        by_order[order] = Estimate(linear_gain(traffic, ratios), ratios, why)
    return Estimates(*map(_best_first, (found.priced, found.unpriced)))


def _best_first(found: dict[str, Estimate]) -> dict[str, Estimate]:
    return dict(sorted(found.items(), key=lambda item: -item[1].gain_ns))


def linear_gain(traffic: Sequence[Traffic], ratios: Ratios) -> float:
    """Return the gain where the exposed share of each axis stays as it is."""
    return sum(one.exposed_ns * (1 - ratios.get(_key(one), 1.0)) for one in traffic)


def _crossing(layout: ParallelLayout, hosts: IntArray, traffic: Sequence[Traffic]) -> _Crossing:
    out = {_key(one): exits(layout, hosts, one.axis, one.pattern, one.members) for one in traffic}
    in_step = sum((out[_key(one)] * one.sent_bytes for one in traffic), np.zeros(1))
    left = {key: float(of_host.max()) for key, of_host in out.items()}
    trains = [left[_key(one)] * one.train_bytes for one in traffic]
    return _Crossing(left, float(in_step.max()), max(trains, default=0.0))


def _key(one: Traffic) -> tuple[Axis, Pattern]:
    return one.axis, one.pattern


def _ratios(
    traffic: Sequence[Traffic], now: _Crossing, after: _Crossing, port_bytes_per_ns: float | None
) -> tuple[NoPrice | None, Ratios]:
    """Return times over times now, and why they are no more than bounds of a gain."""
    inside = _place([t for t in traffic if not now.left[_key(t)]], now)
    enters = any(now.left[_key(t)] and not after.left[_key(t)] for t in traffic)
    is_more = (
        after.step_bytes > now.step_bytes * _SAME or after.train_bytes > now.train_bytes * _SAME
    )
    why: NoPrice | None = NoPrice.PORT_SPEED if is_more and port_bytes_per_ns is None else None
    if enters and inside is None:
        why = NoPrice.INSIDE
    ratios = {}
    for one in traffic:
        before, out = now.left[_key(one)], after.left[_key(one)]
        if why is not None and out and not before:
            ratios[_key(one)] = 1.0
        elif why is not None and before and not out and inside is None:
            ratios[_key(one)] = 0.0
        else:
            across = _across(traffic, now, out * one.train_bytes, port_bytes_per_ns)
            ratios[_key(one)] = _ratio(one, before, out, inside, across)
    return why, ratios


def _across(
    traffic: Sequence[Traffic], now: _Crossing, train: float, port_bytes_per_ns: float | None
) -> Place | None:
    """Return how fast as much in one go is across hosts; shorter messages are the measure only where no other is."""
    crossing = [t for t in traffic if now.left[_key(t)]]
    as_long = [t for t in crossing if now.left[_key(t)] * t.train_bytes * _SAME >= train]
    found = _place(as_long or crossing, now)
    if found is None or port_bytes_per_ns is None:
        return found
    return replace(found, bytes_per_ns=min(found.bytes_per_ns, port_bytes_per_ns))


def _place(traffic: Sequence[Traffic], now: _Crossing) -> Place | None:
    """Return the best latency and rate that any of the traffic reaches; None without any."""
    if not traffic:
        return None
    hops = [t.fixed_ns / t.hops for t in traffic if t.hops]
    rates = [
        (now.left[_key(t)] or 1.0) * t.sent_bytes / max(t.wire_ns - t.fixed_ns, 1e-9)
        for t in traffic
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


REPLAYED = 3
"""Orders that are replayed: the best by exposed time. What is hidden changes their rank little."""

MIN_GAIN_FRAC = 0.01
"""Predicted gain, as a share of the step, from which another order is proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOrder:
    """The order with the largest predicted gain."""

    order: str
    """Slowest axis first."""
    gain_ns: float
    """Per step."""
    own_gain_ns: dict[Axis, float]
    """Where the transfers of one axis change alone."""


def best_order(
    account: Account, layout: ParallelLayout, hosts: IntArray, traffic: Sequence[Traffic]
) -> tuple[BestOrder | None, NoPrice | None]:
    """Return the order with the largest predicted gain, if any helps, and why one that could help has no price."""
    found = estimated_gains(layout, hosts, traffic, _slowest_port(account))
    least = MIN_GAIN_FRAC * account.windows.mean_ns
    best = _best(account, traffic, found.priced)
    helps = best is not None and best.gain_ns >= least
    # Of orders without a price the one that could gain the most.
    first = next(iter(found.unpriced.values()), None)
    is_open = first is not None and _gain(account, first) >= least
    return best if helps else None, first.no_price if first is not None and is_open else None


def _best(
    account: Account, traffic: Sequence[Traffic], estimated: dict[str, Estimate]
) -> BestOrder | None:
    best: BestOrder | None = None
    for order, one in list(estimated.items())[:REPLAYED]:
        gain = _gain(account, one)
        if best is None or gain > best.gain_ns + 1:
            best = BestOrder(order=order, gain_ns=gain, own_gain_ns={})
    if best is None:
        return None
    ratios = estimated[best.order].ratios
    own = {}
    for axis in {axis for axis, _ in ratios}:
        alone = {key: ratio for key, ratio in ratios.items() if key[0] is axis}
        own[axis] = _gain(account, Estimate(linear_gain(traffic, alone), alone))
    return replace(best, own_gain_ns=own)


def _gain(account: Account, estimate: Estimate) -> float:
    """Return the gain by replay; that in exposed time where the run cannot be replayed."""
    if account.program is None:
        return estimate.gain_ns
    return _replayed(account, account.program, estimate.ratios)


def _slowest_port(account: Account) -> float | None:
    """Return what the ports of the slowest host carry, bytes/ns; None where that of a host is unknown."""
    trace, speeds = account.trace, port_speeds(account.trace)
    hosts = {trace.clock_of(rank) for rank in trace.ranks}
    return min(speeds.values()) / 1e9 if hosts and hosts <= speeds.keys() else None


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
