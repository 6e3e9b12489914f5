"""The list of passes says the truth about the tables that each needs and makes."""

from dataclasses import replace

import pytest

from meshscope.analyze.load.passes import EVERY, FOREIGN, OWN, passed
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.analyze.tables.stored_tables import Tables
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

JOB = SyntheticJob(
    layout=ParallelLayout(pp=2, dp=4),
    steps=4,
    ranks_per_host=4,
    faults=(Fault(kind=FaultKind.CLOCK_SKEW, host=1, offset_ms=30.0),),
)


class _Watched(Tables):
    """Tables that note which of them are looked at."""

    def __init__(self, tables):
        super().__init__(dict(tables))
        self.read = set()

    def __getitem__(self, name):
        self.read.add(name)
        return super().__getitem__(name)


@pytest.fixture(scope="module")
def bare():
    """Return a capture of two hosts with clocks 30 ms apart, and no stated mesh."""
    return replace(generate(JOB)[0], layout=None)


@pytest.mark.parametrize(
    ("origin", "passes"), [("meshscope", OWN), ("kineto", FOREIGN)], ids=["own", "foreign"]
)
def test_a_pass_reads_and_changes_what_it_names(bare, origin, passes):
    """Fails when a pass uses a table that the list leaves out: a reader would put it in a wrong place."""
    trace = replace(bare, origin=origin)
    for one in passes:
        watched = _Watched(trace.tables)
        after = one.apply(replace(trace, tables=watched, _frames={}))
        read = set(watched.read)
        changed = {name for name in after.tables if after.tables[name] is not watched.get(name)}
        assert one.needs == EVERY or read <= set(one.needs), one.apply
        assert one.makes == EVERY or changed <= set(one.makes), one.apply
        trace = after
    assert trace.tables["clock_sync"].num_rows


@pytest.mark.parametrize("passes", [OWN, FOREIGN], ids=["own", "foreign"])
def test_a_pass_names_tables_of_the_schema(passes):
    """Fails when the list names a table that does not exist any more."""
    named = {name for one in passes for name in (*one.needs, *one.makes)}
    assert named - set(EVERY) <= set(TABLES)


def test_a_second_look_changes_nothing(bare):
    """Fails when a capture that was opened and kept is moved again."""
    once = passed(bare, OWN)
    again = passed(once, OWN)
    assert all(again.tables[name].equals(once.tables[name]) for name in ("step", "span", "group"))
