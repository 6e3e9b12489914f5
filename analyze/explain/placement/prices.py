"""What another order of the ranks would return.

The times of the transfers come from ``estimates``. The recorded program is replayed with them, so what compute
hides stays hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from .estimates import Estimate, NoPrice, Ratios, estimated_gains, linear_gain
from .traffic import Traffic, patterns

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
