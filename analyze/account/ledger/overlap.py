"""Transfers hidden behind compute, by axis: how much is, and how much could be at most.

Hidden is what of an axis' wire time the ledger does not call exposed. In one step of one rank no
more can hide than it computes, less what the other axes hide there. That is an upper bound: it takes
every transfer as able to run beside any compute of its step, which dependencies may forbid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Axis

from ...align.communication.events import CommunicationEvents
from ...tables.arrays import FloatArray
from ...tables.classes import COMPUTE_CLASSES, WIRE_CLASSES
from ...tables.intervals import covered_lengths
from .build import Ledger

MOST_UNSEEN = 0.02
"""Share of an axis' operations without an end, up to which its wire time is stated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One axis; ns per step, means over ranks and steps."""

    axis: Axis
    wire_ns: float | None
    """None where too many ends were not seen."""
    exposed_ns: float
    possible_ns: float | None
    """Most that could be hidden."""

    @property
    def hidden_ns(self) -> float | None:
        """Return the wire time behind compute."""
        return None if self.wire_ns is None else max(0.0, self.wire_ns - self.exposed_ns)

    @property
    def hidden_frac(self) -> float | None:
        """Return the share of the wire time that is hidden."""
        return self._share(self.hidden_ns)

    @property
    def possible_frac(self) -> float | None:
        """Return the share that could be hidden at most."""
        return self._share(self.possible_ns)

    def _share(self, part_ns: float | None) -> float | None:
        return None if part_ns is None or not self.wire_ns else part_ns / self.wire_ns


def overlaps(events: CommunicationEvents, ledger: Ledger) -> tuple[Overlap, ...]:
    """Return the overlap of every axis with transfers between ranks."""
    by_step = ledger.by_step
    index = pd.MultiIndex.from_frame(by_step[["rank", "step"]])
    compute = by_step[list(COMPUTE_CLASSES)].sum(axis=1).to_numpy(np.float64)
    names = dict(zip(Axis, WIRE_CLASSES, strict=True))
    frame = events.frame
    label = frame["axis"].astype(str)
    wires: dict[Axis, FloatArray | None] = {}
    for axis in Axis:
        # The wire of a buffered message is that of its receive: its send ends when the host looks.
        own = frame[(label == axis.value).to_numpy(bool) & ~frame["is_buffered"].to_numpy(bool)]
        if len(own):
            seen = own[own["end_ns"].notna() & own["split_ns"].notna()]
            is_known = len(seen) >= (1 - MOST_UNSEEN) * len(own)
            wires[axis] = _by_step(seen, index) if is_known else None
    exposed = {axis: by_step[names[axis]].to_numpy(np.float64) for axis in wires}
    hidden = {
        axis: np.zeros(len(compute)) if wire is None else np.maximum(wire - exposed[axis], 0.0)
        for axis, wire in wires.items()
    }
    everything = sum(hidden.values(), np.zeros(len(compute)))
    return tuple(
        Overlap(
            axis=axis,
            wire_ns=None if wire is None else float(wire.mean()),
            exposed_ns=float(exposed[axis].mean()),
            possible_ns=None
            if wire is None
            else float(
                np.minimum(wire, np.maximum(compute - everything + hidden[axis], 0.0)).mean()
            ),
        )
        for axis, wire in wires.items()
        if len(compute)
    )


def _by_step(rows: pd.DataFrame, index: pd.MultiIndex) -> FloatArray:
    """Return how long some transfer of the axis was on the wire in each step of each rank."""
    at = index.get_indexer(pd.MultiIndex.from_frame(rows[["rank", "step"]]))
    lengths = covered_lengths(at, rows["split_ns"], rows["end_ns"], len(index))
    return lengths.astype(np.float64)
