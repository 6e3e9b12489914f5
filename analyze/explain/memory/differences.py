"""Expected memory beside the measured one by stage, and the difference term by term."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ...account.memory.by_stage import CATEGORIES
from ...formulas.planning.memory import StageMemory
from ...formulas.planning.plan import reserved_bytes
from ...formulas.planning.terms import Category
from .expected import ExpectedMemory

_TERMS: dict[str, tuple[Category, ...]] = {
    "parameters": (Category.PARAMETERS,),
    "gradients": (Category.GRADIENTS,),
    "optimizer": (Category.OPTIMIZER,),
    "activations": (Category.ACTIVATIONS, Category.LOGITS),
    "other": (Category.BUFFERS,),
}
"""Recorded categories, and those of the formulas that they hold."""
_OF_MOMENT = ("activations", "other")
"""Categories that are comparable only where they were read at the peak."""
_SAME_MOMENT = 0.97
"""Least share of the peak that was allocated when the categories were read."""
EXPECTED_COLUMNS = (
    *("expected_bytes", "expected_reserved_bytes", "expected_reserved_low_bytes"),
    *("expected_reserved_high_bytes", "difference_bytes", "in_flight", "expected_logits_bytes"),
    *(f"expected_{name}_bytes" for name in CATEGORIES),
    *(f"{name}_difference_bytes" for name in CATEGORIES),
)


def with_expected(by_stage: pd.DataFrame, expected: ExpectedMemory | None) -> pd.DataFrame:
    """Return the table with the columns ``EXPECTED_COLUMNS``, null where they are not known.

    A difference is measured - expected: of the settled steps where they are known, else of the peak
    since start, which holds the first step too.
    """
    of_stage = {} if expected is None else {one.stage: one for one in expected.stages}
    values = pd.DataFrame(
        [
            _row(of_stage[stage]) if stage in of_stage else dict.fromkeys(EXPECTED_COLUMNS)
            for stage in by_stage["stage"].tolist()
        ],
        columns=list(EXPECTED_COLUMNS),
        index=by_stage.index,
    ).astype("Float64")
    found = by_stage.join(values)
    held = found["steady_bytes"].astype("Float64").fillna(found["peak_bytes"].astype("Float64"))
    found["difference_bytes"] = held - found["expected_bytes"]
    is_peak = (found["at_fullest_bytes"].astype("Float64") >= _SAME_MOMENT * held).fillna(
        value=False
    )
    for name in CATEGORIES:
        off = found[f"{name}_bytes"].astype("Float64") - found[f"expected_{name}_bytes"]
        found[f"{name}_difference_bytes"] = off.where(is_peak) if name in _OF_MOMENT else off
    return found


def _row(stage: StageMemory) -> dict[str, float]:
    low, middle, high = reserved_bytes(stage.allocated_bytes)
    return {
        "expected_bytes": np.rint(stage.allocated_bytes),
        "expected_reserved_bytes": np.rint(middle),
        "expected_reserved_low_bytes": np.rint(low),
        "expected_reserved_high_bytes": np.rint(high),
        "in_flight": stage.in_flight,
        "expected_logits_bytes": np.rint(stage.total(Category.LOGITS)),
        **{
            f"expected_{name}_bytes": np.rint(sum(stage.total(one) for one in categories))
            for name, categories in _TERMS.items()
        },
    }
