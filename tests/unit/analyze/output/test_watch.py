"""What is said of a running job, look by look."""

from dataclasses import replace

import pyarrow as pa
import pytest

from meshscope.analyze.output.watch import Watch
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.analyze.tables.part import StepRange, of_steps
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.standstill_tables import PROGRESS


def running(trace):
    """Return a capture as it is while its ranks still record: none has closed."""
    names = PROGRESS.empty().column_names
    known = {"group_id": "", "alive_ns": 0}
    rows = [dict.fromkeys(names) | known | {"rank": rank} for rank in trace.ranks]
    columns = {name: [row[name] for row in rows] for name in names}
    return trace.with_tables({"progress": PROGRESS.conform(pa.table(columns))})


@pytest.fixture(scope="module")
def trace():
    """Return a job of which rank 2 takes 30 % longer from step 30 on."""
    fault = Fault(kind=FaultKind.SLOW_RANK, rank=2, factor=1.3, first_step=30)
    mesh = ParallelLayout(pp=2, dp=2)
    job = SyntheticJob(layout=mesh, steps=45, microbatches=6, jitter_cv=0.01, faults=(fault,))
    return generate(job)[0]


def test_a_slow_rank_is_reported_once_and_stays_in_the_line_of_each_look(trace):
    """The person on call would read the news of an hour ago as news, or miss that it lasts."""
    watch = Watch()
    first = list(watch.events(running(of_steps(trace, StepRange(0, 29))), 0.0))
    then = list(watch.events(running(of_steps(trace, StepRange(0, 39))), 10.0))
    last = list(watch.events(running(trace), 20.0))
    assert [event.kind for event in first] == ["steps"]
    assert [event.kind for event in then] == ["slow", "steps"]
    assert [event.kind for event in last] == ["steps"]
    assert then[0].values["rank"] == 2
    assert str(then[0].text).startswith("Rank 2 is slow since step 30: ")
    assert last[0].values["slow_ranks"] == [2]
    assert str(last[0].text).endswith("slow: rank 2")
    assert not watch.has_ended


def test_silence_is_reported_when_it_lasts_twice_as_long(trace):
    """A job that hangs would look like one that nobody has looked at, or flood the terminal."""
    watch, part = Watch(), running(of_steps(trace, StepRange(0, 29)))
    reported = [
        [event.kind for event in watch.events(part, now_s)] for now_s in (0, 20, 40, 60, 90, 100)
    ]
    assert reported == [["steps"], [], ["silent"], [], ["silent"], []]


def test_the_end_in_order_is_reported(trace):
    """The command would wait for ever beside a job that is done."""
    watch = Watch()
    events = list(watch.events(trace, 0.0))
    assert events[-1].kind == "ended"
    assert watch.has_ended


def test_ranks_that_have_not_come_yet_are_waited_for(trace):
    """A look between the starts of the first and the last rank would end with the job "ended"."""
    watch = Watch()
    list(watch.events(replace(of_steps(trace, StepRange(0, 2)), ranks=(0,)), 0.0))
    assert not watch.has_ended
