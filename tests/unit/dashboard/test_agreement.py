"""The timeline and the ledger tell the same story about every step."""

import numpy as np
import pandas as pd
import pytest

from meshscope.analyze import load_trace
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.output.timeline.categories import Category
from meshscope.analyze.output.timeline.slices import step_slices
from meshscope.analyze.tables.classes import CLASSES, UNATTRIBUTED

_OF_CLASS = {
    "forward": Category.FORWARD,
    "backward": Category.BACKWARD,
    "recompute": Category.RECOMPUTE,
    "optimizer": Category.OPTIMIZER,
    "compute": Category.COMPUTE,
    "exposed_unknown": Category.UNKNOWN,
    **{
        f"exposed_{axis}_{part}": category
        for axis, category in [
            ("tp", Category.COMM_TP),
            ("pp", Category.COMM_PP),
            ("dp", Category.COMM_DP),
            ("cp", Category.COMM_OTHER),
            ("ep", Category.COMM_OTHER),
            ("other", Category.COMM_OTHER),
        ]
        for part in ("wire", "wait")
    },
}
"""Category of a ledger class; host classes are ``HOST``, the unattributed rest is not drawn."""


def _recorded(trace) -> pd.DataFrame:
    """Return the time of each class by step, without joins that only the times show: ns."""
    account = measure(trace)
    segments = account.ledger.segments
    inferred = np.append(account.events.frame["is_inferred"].to_numpy(bool), False)
    rows = segments[~inferred[segments["event"].to_numpy()]]
    name = np.array(CLASSES, dtype=object)[rows["code"].to_numpy()]
    length = rows["end_ns"] - rows["start_ns"]
    return length.groupby([rows["step"], name]).sum().unstack(fill_value=0)


def _assert_same_totals(path) -> None:
    trace = load_trace(path)
    for step, recorded in _recorded(trace).iterrows():
        drawn = step_slices(trace, int(step)).slices
        by_category = (drawn["end_ns"] - drawn["start_ns"]).groupby(drawn["category"]).sum()
        for category in Category:
            names = [
                name
                for name in CLASSES
                if name != UNATTRIBUTED and _OF_CLASS.get(name, Category.HOST) == category
            ]
            expected = float(recorded.reindex(names, fill_value=0).sum())
            assert by_category.get(int(category), 0) == pytest.approx(expected, abs=1.0), category


def test_a_job_with_a_clock_for_each_step(runs_dir):
    """Fails when the colours of a step do not sum to the classes of its account."""
    _assert_same_totals(runs_dir / "job")


@pytest.mark.traces
@pytest.mark.parametrize("folder", ["straggler_analysis", "amd_hpctraining/split"])
def test_real_traces(traces_dir, folder):
    """Fails when a production pipeline or kernel trace is drawn by other rules than its account."""
    _assert_same_totals(traces_dir / folder)
