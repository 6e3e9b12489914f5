"""Times that cannot be are left out or unknown, and counted; all others stay as they are."""

import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.texts import texts

from meshscope.analyze.load.possible_times import with_possible_times
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES


@pytest.fixture(scope="module")
def whole():
    """Return a small job that communicates."""
    return capture(Job(layout=ParallelLayout(pp=2, dp=2), steps=2), uniform(10 * MS, 20 * MS))


def changed(trace, name, column, value):
    """Return the trace with another value in the first row of a table."""
    frame = trace.frame(name).copy()
    frame.loc[frame.index[0], column] = value
    return trace.with_tables(
        {name: TABLES[name].conform(pa.Table.from_pandas(frame, preserve_index=False))}
    )


def test_possible_times_stay(whole):
    """A healthy capture would be copied, or lose rows."""
    assert with_possible_times(whole) is whole


@pytest.mark.parametrize(
    ("name", "column", "value"),
    [
        ("span", "dur_ns", -1),
        ("span", "dur_ns", 1 << 62),
        ("step", "start_ns", -(1 << 63)),
        ("collective", "issue_ns", 1 << 62),
        ("p2p", "start_ns", (1 << 63) - 1),
    ],
)
def test_impossible_rows_are_left_out(whole, name, column, value):
    """A negative or absurd length would turn every sum over it into nonsense."""
    kept = with_possible_times(changed(whole, name, column, value))
    assert len(kept.frame(name)) == len(whole.frame(name)) - 1
    assert texts(kept.limits)[-1] == f"1 row of {name} with impossible times left out"


@pytest.mark.parametrize("name", ["collective", "p2p"])
@pytest.mark.parametrize("value", [1, -5, 1 << 62])
def test_impossible_ends_are_unknown(whole, name, value):
    """A transfer that ends before it starts would give back time that nobody had."""
    kept = with_possible_times(changed(whole, name, "end_ns", value))
    assert len(kept.frame(name)) == len(whole.frame(name))
    assert kept.frame(name)["end_ns"].isna().sum() == whole.frame(name)["end_ns"].isna().sum() + 1
    assert texts(kept.limits)[-1] == f"1 end of {name} impossible: taken as unknown"
    assert kept.tables[name].schema == whole.tables[name].schema
