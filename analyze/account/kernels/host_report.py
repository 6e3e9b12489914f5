"""Where the hosts of a trace without device work were in their steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...align.steps.windows import StepWindows
from ...tables.arrays import IntArray
from ...tables.intervals import intersect, pair, subtract, total_length, union
from ...tables.trace import Trace, ranks_to_look_at
from .host_table import STEP_MARK, own_times, recorded_steps

OPERATOR, CALL, ANNOTATION, NOTHING = "operator", "call", "annotation", "nothing"
_TIMES = ["name_id", "thread", "start_ns", "dur_ns"]
_SHOWN = 3
"""Names that are given of each kind."""


class Named(NamedTuple):
    """What hosts spent most time in."""

    name: str
    frac: float
    """Share of the steps; of a name on several threads at once, more than 1 is possible."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """Time of the hosts in those analysed steps in which something of them was recorded."""

    frac: dict[str, float]
    """Share of the steps in an operator on any thread; else in a call of the device library; else in
    an annotation; else in nothing that was recorded."""
    operators: list[Named]
    """Most time of their own first."""
    annotations: list[Named]
    """Longest first, each counted once where several threads are in it."""


def host_report(trace: Trace, windows: StepWindows) -> HostReport | None:
    """Return where the hosts were; None where nothing was recorded of them in an analysed step."""
    time, step_ns = dict.fromkeys((OPERATOR, CALL, ANNOTATION, NOTHING), 0), 0
    operators, annotations = [], []
    for rank in ranks_to_look_at(trace, "op", "annotation"):
        op = trace.rank_frame("op", rank, _TIMES)
        note = trace.rank_frame("annotation", rank, [*_TIMES, "device"])
        names = trace.rank_frame("name", rank).set_index("name_id")["name"].astype(str)
        note = note[(note["device"] < 0) & ~_named(note, names).str.startswith(STEP_MARK)]
        calls = trace.rank_frame("runtime_call", rank, ["start_ns", "dur_ns"])
        steps = recorded_steps(windows.intervals_of(rank), op, note)
        left = steps
        for kind, rows in ((OPERATOR, op), (CALL, calls), (ANNOTATION, note)):
            inside = union(_intervals(rows))
            time[kind] += total_length(intersect(left, inside))
            left = subtract(left, inside)
        time[NOTHING] += total_length(left)
        step_ns += total_length(steps)
        operators.append(_own_times(op.assign(name=_named(op, names)), steps))
        annotations.append(_lengths(note.assign(name=_named(note, names)), steps))
    if not step_ns:
        return None
    frac = {kind: spent / step_ns for kind, spent in time.items()}
    return HostReport(frac, _most(operators, step_ns), _most(annotations, step_ns))


def _named(rows: pd.DataFrame, names: pd.Series) -> pd.Series:
    return rows["name_id"].map(names).fillna("unknown").astype(str)


def _own_times(op: pd.DataFrame, steps: IntArray) -> pd.Series:
    """Return the own time by name of the operators that began in a step."""
    own, start = own_times(op), op["start_ns"].to_numpy(np.int64)
    step = np.searchsorted(steps[:, 0], start, side="right") - 1
    inside = (step >= 0) & (start < np.append(steps[:, 1], 0)[step])
    return pd.Series(own[inside]).groupby(op["name"].to_numpy()[inside]).sum()


def _lengths(note: pd.DataFrame, steps: IntArray) -> pd.Series:
    """Return by name how long at least one thread was in an annotation during steps."""
    lengths = {
        str(name): total_length(intersect(union(_intervals(rows)), steps))
        for name, rows in note.groupby("name")
    }
    return pd.Series(lengths, dtype=np.int64)


def _most(by_rank: list[pd.Series], step_ns: int) -> list[Named]:
    total = pd.concat(by_rank)
    total = total.groupby(level=0).sum().sort_values(ascending=False, kind="stable")
    shown = total[total > 0].head(_SHOWN)
    return [Named(str(name), int(spent) / step_ns) for name, spent in shown.items()]


def _intervals(rows: pd.DataFrame) -> IntArray:
    start = rows["start_ns"].to_numpy(np.int64)
    return pair(start, start + rows["dur_ns"].to_numpy(np.int64))
