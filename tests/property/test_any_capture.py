"""Whatever is torn out of a capture: a result that adds up, or one clear error."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.output.text import to_text
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.errors import MeshscopeError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

WHOLE = {
    layout: capture(Job(layout=layout, steps=3), uniform(10 * MS, 20 * MS))
    for layout in (ParallelLayout(tp=2, pp=2), ParallelLayout(pp=2, dp=2))
}
NULLABLE = {
    "collective": ("end_ns", "wait_start_ns", "wait_end_ns"),
    "p2p": ("end_ns", "wait_start_ns", "wait_end_ns"),
}


def torn(trace: Trace, seed: int, lost: dict[str, float], unseen: float) -> Trace:
    """Return the trace without a share of the rows of each table, and without some times."""
    random = np.random.default_rng(seed)
    tables = dict(trace.tables)
    for name, share in lost.items():
        frame = trace.frame(name)
        frame = frame[random.random(len(frame)) >= share].copy()
        for column in NULLABLE.get(name, ()):
            frame.loc[random.random(len(frame)) < unseen, column] = None
        tables[name] = TABLES[name].conform(pa.Table.from_pandas(frame, preserve_index=False))
    return replace(trace, tables=tables, _frames={})


SHARES = st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0])


@settings(max_examples=20)
@given(
    st.sampled_from(list(WHOLE)),
    st.integers(0, 2**32 - 1),
    st.fixed_dictionaries(dict.fromkeys(("step", "span", "collective", "p2p"), SHARES)),
    SHARES,
    st.booleans(),
)
def test_a_torn_capture_is_an_account_or_one_clear_error(layout, seed, lost, unseen, knows_layout):
    """A damaged capture would end in a traceback, in NaN, or in time that does not add up."""
    trace = torn(WHOLE[layout], seed, lost, unseen)
    trace = replace(trace, layout=layout if knows_layout else None, _frames={})
    try:
        result = diagnose(trace)
    except MeshscopeError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert refusal.remedy
        return
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)
    assert all(np.isfinite([c.share_frac, c.removal_gain_frac]).all() for c in result.causes)
    costs = [f.cost_frac for f in result.findings if f.cost_frac is not None]
    assert np.isfinite(costs).all()
    assert " nan" not in to_text(result)


ON_AND_OFF = capture(
    Job(layout=ParallelLayout(dp=4), steps=16, microbatches=2),
    lambda kind, rank, step, microbatch: (
        (30 if rank == 2 else 18) * MS if step % 4 >= 2 else 20 * MS
    ),
)
"""A rank that is slow on and off, so that analyses of kinds of steps and of side effects run."""
UNKNOWN = [
    (table, column.name, share)
    for table, spec in TABLES.items()
    for column in spec.columns
    for share in (0.4, 1.0)
    if column.nullable and ON_AND_OFF.row_count(table) and table != "run"
]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(("table", "column", "share"), UNKNOWN, ids=str)
def test_what_is_not_known_in_any_column_is_no_traceback(table, column, share):
    """What is null makes neither-true-nor-false masks, which pandas 3 refuses and 2 misreads."""
    frame = ON_AND_OFF.frame(table).copy()
    frame.loc[np.random.default_rng(7).random(len(frame)) < share, column] = None
    changed = TABLES[table].conform(pa.Table.from_pandas(frame, preserve_index=False))
    result = diagnose(ON_AND_OFF.with_tables({table: changed}))
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)
    assert np.isfinite([[c.share_frac, c.removal_gain_frac] for c in result.causes]).all()
    assert " nan" not in to_text(result)
