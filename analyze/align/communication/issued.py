"""Communication in the order in which each rank issued it, whether its partners are known or not."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...tables.arrays import combined
from ...tables.trace import Trace
from ..steps.windows import StepWindows
from .rows import communication_rows

_COLUMNS = (
    *("event_id", "rank", "axis", "host"),
    *("start_ns", "end_ns", "wait_start_ns", "wait_end_ns"),
)
"""What tells when a rank was in an operation."""


def unmatched_events(trace: Trace, windows: StepWindows) -> pd.DataFrame:
    """Return when each rank was in its operations, without looking for those of its partners.

    Returns:
        The columns of ``CommunicationEvents`` that one rank alone tells: rank, axis, host, start_ns,
        end_ns, wait_start_ns, wait_end_ns; in the same order.
    """
    collectives, p2p = (
        communication_rows(trace, windows, name)[list(_COLUMNS)] for name in ("collective", "p2p")
    )
    return in_order_of_issue(collectives, p2p)


def in_order_of_issue(collectives: pd.DataFrame, p2p: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of both, so that equal times keep the order of the program.

    Both are emptied: memory holds one column twice, not all.
    """
    parts = [part for part in (collectives, p2p) if len(part)] or [collectives]
    keys = [np.concatenate([part[name] for part in parts]) for name in ("rank", "event_id")]
    order = np.argsort(combined(*keys), kind="stable")
    columns: dict[str, Any] = {}
    for name in [str(column) for column in parts[0] if column != "event_id"]:
        columns[name] = _concatenated([part.pop(name) for part in parts])[order]
    return pd.DataFrame(columns, copy=False)


def _concatenated(parts: list[pd.Series]) -> pd.Categorical | npt.NDArray[Any]:
    """Return the values of all parts; categories stay in sorted order."""
    if isinstance(parts[0].dtype, pd.CategoricalDtype):
        return pd.api.types.union_categoricals(parts, sort_categories=True)
    return np.concatenate([part.to_numpy() for part in parts])
