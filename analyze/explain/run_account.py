"""Everything that the rules of the findings look at, computed once."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from ..account.devices.steps import DeviceSteps
from ..account.ledger.build import Ledger
from ..align.communication.events import CommunicationEvents
from ..align.steps.windows import StepWindows
from ..tables.results import Bubble, Cause, DeviceUse, Utilization
from ..tables.trace import Trace
from ..wording.limits import Limit
from .attribution import Attribution
from .causes import WireExcess, between_ranks, wire_excess
from .memory.expected import Expectation
from .replay.program import Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One run, measured: the input of every rule."""

    trace: Trace
    windows: StepWindows
    events: CommunicationEvents
    ledger: Ledger
    program: Program | None
    """The replay graph; None where the recorded events do not form a replayable order."""
    attribution: Attribution | None
    """None where the recorded events do not form a replayable order."""
    utilization: Utilization
    devices: DeviceSteps
    """Clocks and memory use of the devices."""
    bubble: Bubble
    memory: pd.DataFrame
    waits: pd.DataFrame
    clock_offsets: pd.Series
    """ns by rank, of the ranks whose clock is wrong."""
    stage: dict[int, int]
    """Pipeline position of each rank; -1 if unknown."""
    expectation: Expectation = field(default_factory=lambda: Expectation(found=None))
    """What formulas expect of the memory."""
    uses: tuple[DeviceUse, ...] = ()
    """Of each device of the ranks that compute on several."""
    unseen: tuple[str, ...] = ()
    """Axes of the mesh along which nothing was recorded, so that waiting there is not known."""
    limits: tuple[Limit, ...] = ()
    """What the capture, and so the account, cannot tell."""
    unknown_causes: tuple[Limit, ...] = ()
    """Those of the limits for which no causes are reported: a slow rank or link may be there unseen."""

    def class_frac(self, name: str) -> float:
        """Return the share of the step time of one ledger class, averaged over ranks and steps."""
        by_step = self.ledger.by_step
        return float(by_step[name].sum() / by_step["step_ns"].sum())

    def class_by_step(self, name: str, rank: int | None = None) -> pd.Series:
        """Return the time of one ledger class by step, ns: of a rank, or the mean over all."""
        by_step = self.ledger.by_step
        rows = by_step if rank is None else by_step[by_step["rank"] == rank]
        means: pd.Series = rows.groupby("step")[name].mean()
        return means

    def class_by_stage(self, name: str) -> pd.Series:
        """Return the time of one ledger class per step by stage, ns, averaged over its ranks."""
        by_step = self.ledger.by_step
        means: pd.Series = by_step.groupby(by_step["rank"].map(self.stage))[name].mean()
        return means

    def causes(self, kind: str) -> list[Cause]:
        """Return the causes of one kind, the largest share first."""
        attribution = self.attribution
        return [] if attribution is None else [c for c in attribution.causes if c.kind == kind]

    def transfers(self) -> pd.DataFrame:
        """Return the communication events with the wire times by which the causes are priced."""
        frame = self.events.frame if self.program is None else self.program.events
        return between_ranks(frame, self.trace)

    def wires(self) -> WireExcess:
        """Return what these take beyond their like."""
        known = None if self.attribution is None else self.attribution.wires
        return wire_excess(self.transfers(), self.trace) if known is None else known

    def suspects(self) -> list[int]:
        """Return the ranks that work longer than their peers by more than noise and their clock."""
        if self.attribution is None:
            return []
        ranks = self.attribution.ranks
        return [int(rank) for rank in ranks.loc[ranks["suspect"], "rank"]]

    def slow_ranks(self) -> list[int]:
        """Return the suspects, and the ranks whose devices have a slow clock."""
        if self.attribution is None:
            return []
        ranks = self.attribution.ranks
        return [int(rank) for rank in ranks.loc[ranks["suspect"] | (ranks["clock_ns"] > 0), "rank"]]

    def peers_of(self, rank: int) -> list[int]:
        """Return the other ranks that run the same operations in the same stage."""
        if self.attribution is None:
            return []
        ranks = self.attribution.ranks
        own = ranks.loc[ranks["rank"] == rank, "peer_class"]
        alike = ranks[ranks["peer_class"].isin(own) & (ranks["rank"] != rank)]
        return [int(peer) for peer in alike["rank"]]
