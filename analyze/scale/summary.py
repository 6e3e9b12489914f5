"""One row a rank and step: what a rank did in it, from its own records alone.

No other rank is looked at, so that ranks can be summarised anywhere, in any order. What needs several
of them is not in the rows: exposed communication is not split into waiting and transfer, because only
the last member of an operation tells when the transfer began.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from meshscope.probe.schema.terms import Axis

from ..account.ledger.build import Ledger, unsplit_ledger
from ..align.steps.microbatch_work import FEATURES
from ..align.steps.windows import StepWindows, step_windows
from ..explain.slow_ranks.durations import MICROBATCH_KINDS, own_durations
from ..tables.arrays import FloatArray, IntArray
from ..tables.classes import CLASSES, WAIT_CLASSES, WIRE_CLASSES
from ..tables.trace import Trace
from .independent_ranks import taken_together

EXPOSED = tuple(f"exposed_{axis.value}" for axis in Axis)
"""Waiting and transfer together, by axis."""
ALONE = (*(name for name in CLASSES if name not in (*WIRE_CLASSES, *WAIT_CLASSES)), *EXPOSED)
"""Classes of the ledger that the records of one rank tell."""
OWN_WORK = tuple(f"own_{kind}_s" for kind in MICROBATCH_KINDS)
"""Own time of the passes of a step by kind, without waiting."""
COUNTED = ("span", "collective", "p2p")
"""Tables of which the rows of a step are counted."""
_CELL = ("rank", "step")
_NS = 1e-9

SCHEMA = pa.schema(
    [
        pa.field("rank", pa.int32(), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("wall_s", pa.float64(), nullable=False),
        *(pa.field(name, pa.float64(), nullable=False) for name in OWN_WORK),
        *(pa.field(name, pa.float64()) for name in FEATURES),
        *(pa.field(f"{name}_s", pa.float32(), nullable=False) for name in ALONE),
        *(pa.field(f"{name}_rows", pa.int32(), nullable=False) for name in COUNTED),
    ]
)
"""Times in seconds; ``tokens`` and ``sum_sq`` are null where the rank did not tell its work."""


def summarise(trace: Trace, ranks: Sequence[int]) -> pa.Table:
    """Return the rows of some ranks, by rank and step, as ``SCHEMA`` has them; none of a rank without steps.

    Args:
        trace: A capture that holds the ranks; the rows of one do not depend on the others.
        ranks: The ranks.
    """
    parts = [rows_of(own, step_windows(own)) for own in taken_together(trace, ranks)]
    found = pa.concat_tables([SCHEMA.empty_table(), *parts])
    return found.sort_by([("rank", "ascending"), ("step", "ascending")]).combine_chunks()


def rows_of(own: Trace, windows: StepWindows) -> pa.Table:
    """Return the rows of ranks that show together what each shows alone.

    Args:
        own: A capture of these ranks.
        windows: The analysed steps, or some of them.
    """
    if windows.frame.empty or not windows.has_marks:
        return SCHEMA.empty_table()
    ledger = unsplit_ledger(own, windows)
    cells = pd.MultiIndex.from_frame(ledger.by_step[["rank", "step"]])
    columns: dict[str, object] = {
        "rank": ledger.by_step["rank"].to_numpy(np.int32),
        "step": ledger.by_step["step"].to_numpy(np.int64),
        "wall_s": ledger.by_step["step_ns"].to_numpy(np.float64) * _NS,
        **_own_work(own, windows, ledger, cells),
        **{f"{name}_s": time_s for name, time_s in _classes(ledger).items()},
        **{f"{name}_rows": _counts(own, windows, name, cells) for name in COUNTED},
    }
    arrays = [pa.array(columns[field.name], field.type, from_pandas=True) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _own_work(
    own: Trace, windows: StepWindows, ledger: Ledger, cells: pd.MultiIndex
) -> dict[str, FloatArray]:
    """Return the own time of each kind of pass by rank and step, s, and what is known of its work."""
    durations = own_durations(own, windows, ledger)
    by_kind = durations.groupby([*_CELL, "kind"])["dur_ns"].sum().unstack("kind")
    by_kind = by_kind.reindex(index=cells, columns=list(MICROBATCH_KINDS)).astype(np.float64)
    columns = {
        name: by_kind[kind].fillna(0.0).to_numpy() * _NS
        for name, kind in zip(OWN_WORK, MICROBATCH_KINDS, strict=True)
    }
    # Each microbatch once, and a step of which one is not known is not known.
    work = durations.reindex(columns=[*_CELL, "microbatch", *FEATURES])
    work = work.drop_duplicates([*_CELL, "microbatch"]).set_index(list(_CELL))[list(FEATURES)]
    work = work.astype(np.float64)
    is_measured = work.notna().groupby(level=_CELL).all()
    total = work.groupby(level=_CELL).sum().where(is_measured).reindex(cells)
    return columns | {name: total[name].to_numpy() for name in FEATURES}


def _classes(ledger: Ledger) -> dict[str, FloatArray]:
    """Return the time of each class of ``ALONE`` by step, s."""
    found = {name: ledger.by_step[name].to_numpy() for name in ALONE if name in CLASSES}
    for name, wire, wait in zip(EXPOSED, WIRE_CLASSES, WAIT_CLASSES, strict=True):
        found[name] = ledger.by_step[wire].to_numpy() + ledger.by_step[wait].to_numpy()
    return {name: time_ns * _NS for name, time_ns in found.items()}


def _counts(own: Trace, windows: StepWindows, name: str, cells: pd.MultiIndex) -> IntArray:
    rows = windows.select(own.frame(name)).groupby(list(_CELL), observed=True).size()
    return np.asarray(rows.reindex(cells, fill_value=0), dtype=np.int64)
