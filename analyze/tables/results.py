"""What the analyses return: plain results that report, dashboard and gate share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypedDict

import pandas as pd

from meshscope.probe.schema.terms import FindingKind, Severity

from ..wording.limits import Limit
from ..wording.message import Message, Text


class Where(TypedDict, total=False):
    """The place a cause or finding is about; only the keys that apply.

    ``steps`` is the first and the last step of a range.
    """

    rank: int
    ranks: list[int]
    stage: int
    axis: str
    group_id: str
    link: str
    host: str
    steps: list[int]


LEAST_SHOWN = 5e-5
"""A smaller share is written 0.00 %: a row of zeros tells a reader nothing, and JSON has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of the waterfall: a class of time, averaged over ranks and steps."""

    name: str
    """Class: ``useful``, ``clock``, ``kernel_inefficiency``, ``exposed_tp_wait`` …"""
    frac: float
    """Share of the time that ranks spend in their steps; all bars sum to 1."""
    dur_ns: float
    """The same in nanoseconds per step, the mean over ranks and steps."""

    @property
    def is_shown(self) -> bool:
        """Return whether people see it: its share is not written 0.00 %."""
        return abs(self.frac) >= LEAST_SHOWN


class Hiding(NamedTuple):
    """The cause that hides another, and what repairing both returns."""

    kind: str
    where: Where
    pair_gain_frac: float
    """Share of the step that both together return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One cause of loss by counterfactual replay."""

    kind: str
    where: Where
    share_frac: float
    """Shapley share of the step time; shares of all causes sum to the loss."""
    removal_gain_frac: float
    """Step time that repairing this cause alone would return, as a share of it."""
    direct_ns: float
    """Part that makes the ranks themselves busier, per step, averaged over ranks; NaN if unknown."""
    induced_wait_ns: float
    """Part that makes ranks wait, per step, averaged over ranks; NaN if unknown."""
    removal_gain_interval: tuple[float, float] | None = None
    """95 % interval of the removal gain, by the error of what was compared; None where that is not known."""
    relief_ns: float | None = None
    """What else is faster while it is there, per mean step: share and gain are without it; 0 where it
    is no more than chance makes, None where nothing tells."""
    hidden_by: Hiding | None = None
    """The cause without which this one would return more; None where there is none."""
    gain_as_host_frac: float | None = None
    """Of a heavy stage whose ranks are those of a host: the removal gain if that host is slow, and then
    gets as fast as the others. None of other causes."""

    @property
    def worth_frac(self) -> float:
        """Return what it costs, or what its repair alone returns, whichever is more."""
        return max(self.share_frac, self.removal_gain_frac)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitAccount:
    """The waiting for peers per step, averaged over ranks, as a sum of its sources.

    ``measured = bubble + induced + model_error``; ``induced`` is the sum of the induced
    waits of all causes.
    """

    measured_ns: float
    """By the ledger."""
    bubble_ns: float
    """Left with every cause repaired: what the schedule imposes."""
    induced_ns: float
    """Caused by stragglers, imbalance, stalls, wires and jitter."""
    model_error_ns: float
    """What the replay does not explain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryExpectation:
    """On what the expected memory rests."""

    assumed: tuple[str, ...] = ()
    """Settings that nothing states."""
    inferred: tuple[str, ...] = ()
    """Settings that the recorded bytes of weights, gradients and optimizer fit."""
    unknown_because: Text = ""
    """Why nothing is expected; empty where something is."""


ENDS = (FindingKind.HANG, FindingKind.CRASH, FindingKind.JOB_ENDED)
"""Kinds of findings about a job that did not go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to act on."""

    kind: FindingKind
    severity: Severity
    where: Where
    claim: Message
    """One sentence: what is wrong, where."""
    cost_frac: float | None
    """Share of the step time that it costs; None where that cannot be known."""
    removal_gain_frac: float | None
    """Share of the step time that fixing it alone returns; None if unknown."""
    confidence: float
    """0..1: how sure the rule is that the claim holds."""
    evidence: tuple[Message, ...]
    """Measured facts with units, one sentence each."""
    remedy: Message
    """What to do next."""
    removal_gain_interval: tuple[float, float] | None = None
    """95 % interval of ``removal_gain_frac``; None where its error is not known."""
    steps: tuple[int, ...] = ()
    """The steps in which it is so, one by one; empty where that is not known or has no meaning."""
    cause: str | None = None
    """What of its kind it is, in one word (``allocator``); None where the kind says it all."""

    @property
    def is_end(self) -> bool:
        """Return whether it says how the job ended. That some rank was the last in a job that was killed says no such thing."""
        return self.kind in ENDS and (
            self.kind is not FindingKind.HANG or self.severity is not Severity.INFO
        )

    @property
    def returns_frac(self) -> float | None:
        """Return the removal gain as people read it: no repair costs time, so that below 0 are errors."""
        return None if self.removal_gain_frac is None else max(0.0, self.removal_gain_frac)

    @property
    def returns_interval(self) -> tuple[float, float] | None:
        """Return the interval of ``returns_frac``."""
        if self.removal_gain_interval is None:
            return None
        low, high = self.removal_gain_interval
        return max(0.0, low), max(0.0, high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """MFU with everything that it depends on."""

    mfu: float | None
    hfu: float | None
    flops_per_step: float | None
    """Model FLOPs of one step over all ranks."""
    flops_convention: str
    peak_flops: float | None
    """Of one device, flop/s."""
    peak_source: str
    tokens_per_s: float | None
    unknown_because: Text = ""
    """Why mfu is None; empty when it is known."""
    mfu_by_convention: Mapping[str, float | None] = field(default_factory=dict)
    """MFU by every convention of ``flops.CONVENTIONS``; None where one is not known."""
    flops_by_convention: Mapping[str, float | None] = field(default_factory=dict)
    """Model FLOPs of one step over all ranks, by convention."""
    notes: tuple[Limit, ...] = ()
    """What was assumed of the inputs, or contradicts itself."""
    devices_per_rank: float = 1.0
    """Devices that a rank computes on, on average; MFU counts the peak of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUse:
    """One device of a rank that computes on several: shares of the steps, which sum to 1."""

    rank: int
    device: int
    compute_frac: float
    communication_frac: float
    """Communication that no compute of this device hides."""
    other_frac: float
    """Copies, fills and work of unknown kind beside neither."""
    beside_frac: float
    """Idle while another device of the rank works."""
    idle_frac: float
    """Idle while all devices of the rank are."""
    idle_causes_frac: dict[str, float] | None = None
    """Both by cause, as found from the launches of this device; None where none is known."""

    @property
    def busy_frac(self) -> float:
        """Return the share in which it does anything."""
        return self.compute_frac + self.communication_frac + self.other_frac


@dataclass(frozen=True, slots=True)
class Bubble:
    """Pipeline idle time against what the schedule makes unavoidable."""

    measured_frac: float | None
    """Waiting for other stages, as a share of step time, averaged over ranks."""
    ideal_frac: float | None
    """(p-1)/(m+p-1) for GPipe and 1F1B; divided by v for interleaved."""
    by_stage: pd.DataFrame
    """stage, wait_ns (per step), wait_frac."""
    unknown_because: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The whole account of one run."""

    run: dict[str, object]
    """Layout, model, schedule, captured ranks, steps; what the header shows."""
    step_time_ns: float
    """Mean length of the analysed steps."""
    utilization: Utilization
    waterfall: tuple[Bar, ...]
    causes: tuple[Cause, ...]
    findings: tuple[Finding, ...]
    """Most costly first."""
    limits: tuple[Limit, ...]
    ledger: pd.DataFrame
    """One row a rank and step: rank, step, step_ns and one column per class in ns, which sum to
    step_ns; ``clock`` and ``memory_bound`` are NaN where they are not known."""
    stragglers: pd.DataFrame
    """One row a rank: rank, pp, dp, tp, slowdown, excess_ns, removal_gain_frac, wait_ns, early_ns, wait_caused_ns, arrived_last, collectives (waits are sums over the analysed steps)."""
    bubble: Bubble
    memory: pd.DataFrame
    """One row a stage: stage, ranks, peak_bytes, rss_bytes, capacity_bytes, peak_frac, and the bytes
    by category (``parameters_bytes`` …) when most was allocated; ``memory_differences`` adds what is expected."""
    groups: pd.DataFrame
    """One row a group: group_id, axis, ranks, operations, wire_ns, wait_ns, size_bytes (per step)."""
    expectation: MemoryExpectation = field(default_factory=lambda: MemoryExpectation())
    """On what the expected columns of ``memory`` rest, or why they are unknown."""
    devices: tuple[DeviceUse, ...] = ()
    """Of each rank that computes on several, the busiest first; the waterfall takes them as one."""
    waiting: WaitAccount | None = None
    """Where the waiting comes from; None where the causes are not known."""
    model_error_frac: float | None = None
    """(measured - replayed) / measured step time; None where there was no replay."""
    unknown_causes: tuple[Limit, ...] = ()
    """Those of the limits for which no causes are reported: without a finding that is no all-clear."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """The numbers that the gate can bound, by name."""
    unknown_because: dict[str, Text] = field(default_factory=dict)
    """Why a number of ``metrics`` is None, by its name."""

    @property
    def bubble_words(self) -> str:
        """Return what the waiting is called that is left with every cause repaired."""
        is_pipeline = self.bubble.measured_frac is not None
        return "imposed by the schedule" if is_pipeline else "left with all of them repaired"
