"""Waiting and wire time of grouped sends and receives, of which no trace says the peers.

A batch of sends and receives (``batch_isend_irecv``) is one kernel that lasts until its peers have come and
the data is there. Nothing joins it to the kernels of its peers. The least duration of the like kernels of all
ranks is what the wire takes, for in that one nobody waited long; it is the end of each kernel, and what is
before that is waiting.
"""

from __future__ import annotations

import re

import numpy as np
import pandas as pd

from meshscope.probe.schema.terms import Axis, KernelCategory

from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.classes import CODE, UNSPLIT
from ...tables.intervals import covered_length, pair, union
from ...tables.trace import Trace
from ...wording.limits import Limit
from ...wording.message import message
from .build import NO_EVENT, Ledger

_GROUPED = re.compile(r"SendRecv", re.IGNORECASE)
_LEAST_KERNELS = 4
"""Like kernels from which their least duration says something."""
_KEY = ["rank", "step"]


def split_grouped(
    trace: Trace, windows: StepWindows, ledger: Ledger
) -> tuple[Ledger, tuple[Limit, ...]]:
    """Return the ledger with the exposed time of grouped transfers as waiting and wire.

    Nothing is split where other kernels without an operation communicate as well.
    """
    if trace.kernel_steps is not None or not ledger.by_step[UNSPLIT].sum():
        return ledger, ()
    kernels = pd.concat(
        [_outside_operations(trace, int(rank)) for rank in windows.ranks], ignore_index=True
    )
    if kernels.empty or not kernels["name"].str.contains(_GROUPED).all():
        return ledger, ()
    like = kernels.groupby("name")["dur_ns"]
    kernels = kernels.assign(wire_ns=like.transform("min"), like=like.transform("size"))
    if (kernels["like"] < _LEAST_KERNELS).any():
        return ledger, ()
    wire_ns = _exposed_wire(kernels, windows, ledger)
    by_step = ledger.by_step.copy()
    rows = pd.MultiIndex.from_frame(by_step[_KEY])
    exposed = by_step[UNSPLIT].to_numpy(np.float64)
    wire = np.minimum(wire_ns.reindex(rows).fillna(0.0).to_numpy(np.float64), exposed)
    has_stages = trace.layout is not None and trace.layout.pp > 1
    axis = (Axis.PP if has_stages else Axis.OTHER).value
    by_step[f"exposed_{axis}_wire"] += wire
    by_step[f"exposed_{axis}_wait"] += exposed - wire
    by_step[UNSPLIT] = 0.0
    least = [
        message("assumed.grouped_least", time_ns=float(ns))
        for ns in sorted(set(kernels["wire_ns"]))[:4]
    ]
    return ledger._replace(by_step=by_step), (message("assumed.grouped_wire", least=least),)


def _outside_operations(trace: Trace, rank: int) -> pd.DataFrame:
    """Return the communication kernels of a rank that are no recorded operation."""
    columns = ["rank", "name_id", "category", "start_ns", "dur_ns"]
    kernel = trace.rank_frame("kernel", rank, columns)
    moves = kernel[kernel["category"] == KernelCategory.COMMUNICATION.value]
    known = [trace.rank_frame(name, rank)["start_ns"] for name in ("collective", "p2p")]
    own = moves[~moves["start_ns"].isin(pd.concat(known))]
    names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
    return own.assign(name=own["name_id"].map(names).fillna("").astype(str))


def _exposed_wire(kernels: pd.DataFrame, windows: StepWindows, ledger: Ledger) -> pd.Series[float]:
    """Return by rank and step how much of the exposed time is at the end of a kernel."""
    segments = ledger.segments
    own = segments[(segments["code"] == CODE[UNSPLIT]) & (segments["event"] == NO_EVENT)]
    covered = np.zeros(len(own), dtype=np.int64)
    for rank, rows in kernels.groupby("rank"):
        end = (rows["start_ns"] + rows["dur_ns"]).to_numpy(np.int64) + windows.default_shift_ns
        wire: IntArray = union(pair(end - rows["wire_ns"].to_numpy(np.int64), end))
        is_own = (own["rank"] == rank).to_numpy(bool)
        part = own[is_own]
        covered[is_own] = covered_length(
            wire, part["start_ns"].to_numpy(np.int64), part["end_ns"].to_numpy(np.int64)
        )
    return (
        pd.Series(covered.astype(np.float64))
        .groupby([own["rank"].to_numpy(), own["step"].to_numpy()])
        .sum()
    )
