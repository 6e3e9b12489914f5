"""Which settings each kind of fault takes, and where it can act.

``COMMON`` settings say when a fault is on and belong to every kind; ``PLACE``
settings name one rank and belong to the kinds that have a rank. Everything else
is listed kind by kind, so that a setting which a kind would ignore is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .checks import FINITE

COMMON = frozenset({"kind", "start", "stop", "window", "seed"})
"""Settings of every kind."""
PLACE = frozenset({"rank", "tp", "pp", "dp", "cp"})
"""Settings that name a rank."""
MOST_DELAY_MS = 1e9
"""Twelve days, of which nobody sees the end."""
RANGES: Mapping[str, tuple[float, float]] = {
    "first": (0, FINITE),
    "start": (0, FINITE),
    "window": (0, FINITE),
    "every": (1, FINITE),
    "delay_ms": (0, MOST_DELAY_MS),
    "period_ms": (1, 1e9),
    "bytes_per_s": (0, FINITE),
    "stopped_frac": (0, 0.9),
    "megabytes": (0, 1e6),
    "bias": (-1e4, 1e4),
    "offset_ms": (-1e9, 1e9),
    "drift_ppm": (-1e5, 1e5),
}
"""The least and the most of each setting that is a number; a wrong clock goes on running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """What one kind of fault takes."""

    takes: frozenset[str] = frozenset()
    """Settings besides COMMON and PLACE."""
    needs: tuple[str, ...] = ()
    """Settings of which at least one must be given."""
    purpose: str = ""
    """What the first of ``needs`` sets, for the message when all are missing."""
    has_rank: bool = True
    """It takes PLACE settings; without, its place follows from the mesh or is every rank."""
    may_hit_all: bool = False
    """``rank=all`` has a meaning."""
    only_once: bool = False
    """It happens once, in step ``start``; ``stop`` and ``window`` mean nothing."""
    after_the_run: bool = False
    """It is done to what the whole run has left: it has no steps."""
    most_delay_ms: float = MOST_DELAY_MS
    """The most of ``delay_ms``."""
    over_nccl: bool = True
    """It also works where NCCL moves the data."""


RULES: Mapping[str, FaultRule] = {
    "slow_rank": FaultRule(
        takes=frozenset({"mode", "delay_ms", "stopped_frac", "period_ms"}),
        needs=("delay_ms", "stopped_frac"),
        purpose="the time per microbatch",
    ),
    "slow_link": FaultRule(
        takes=frozenset({"axis", "peer", "first", "delay_ms", "bytes_per_s"}),
        needs=("delay_ms", "bytes_per_s"),
        purpose="the latency per operation",
        over_nccl=False,
    ),
    "heavy_stage": FaultRule(
        takes=frozenset({"part", "stage", "delay_ms"}),
        needs=("delay_ms",),
        purpose="the extra time of the part's forward",
        has_rank=False,
    ),
    "sequence_imbalance": FaultRule(takes=frozenset({"delay_ms"}), has_rank=False),
    "gc_pause": FaultRule(
        takes=frozenset({"delay_ms", "every"}),
        needs=("delay_ms",),
        purpose="the length of a pause",
        # 4 million objects, 400 MB, at 7000 to 8000 per millisecond (``GarbagePause``).
        most_delay_ms=500,
    ),
    "data_stall": FaultRule(
        takes=frozenset({"delay_ms", "every"}),
        needs=("delay_ms",),
        purpose="the extra time to load a batch",
        may_hit_all=True,
    ),
    "checkpoint_stall": FaultRule(
        takes=frozenset({"delay_ms", "bytes_per_s", "every"}),
        needs=("delay_ms", "bytes_per_s"),
        purpose="the latency of the storage",
        may_hit_all=True,
    ),
    "item_sync": FaultRule(takes=frozenset({"delay_ms", "every"}), has_rank=False),
    "clock_skew": FaultRule(
        takes=frozenset({"offset_ms", "drift_ppm"}),
        needs=("offset_ms", "drift_ppm"),
        purpose="how far the clock is ahead",
        after_the_run=True,
    ),
    "memory_growth": FaultRule(
        takes=frozenset({"megabytes"}), needs=("megabytes",), purpose="the growth per step"
    ),
    "hot_expert": FaultRule(
        takes=frozenset({"expert", "bias"}),
        needs=("bias",),
        purpose="what is added to the router's score",
        has_rank=False,
    ),
    "hang": FaultRule(only_once=True),
    "crash": FaultRule(takes=frozenset({"mode"}), only_once=True),
}
"""The rule of each kind."""

MODES: Mapping[str, tuple[str, ...]] = {
    "slow_rank": ("sleep", "compute", "duty"),
    "crash": ("exit", "kill"),
}
"""Values of ``mode``, the default first."""


def kinds_taking(setting: str) -> list[str]:
    """Return the kinds of fault that a setting belongs to."""
    return [
        kind
        for kind, rule in RULES.items()
        if setting in rule.takes or (setting in PLACE and rule.has_rank)
    ]
