"""Captures with something missing, doubled or wrong: a stated limit, no crash, no invention."""

from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)
TIMES = ("start_ns", "end_ns", "issue_ns", "wait_start_ns", "wait_end_ns")


@pytest.fixture(scope="module")
def trace():
    """Return a job whose rank 5 is slow by half."""
    return capture(
        Job(layout=LAYOUT, steps=5),
        lambda kind, rank, step, microbatch: (
            (15 if rank == 5 else 10) * (1 if kind == "forward" else 2) * MS
        ),
    )


@pytest.fixture(scope="module")
def gain(trace):
    """Return what repairing rank 5 returns in the whole capture."""
    return stragglers(diagnose(trace))[5]


def changed(trace, change, *names):
    """Return the trace with the frames of some tables put through a function."""
    tables = dict(trace.tables)
    for name in names:
        frame = change(trace.frame(name).copy())
        tables[name] = TABLES[name].conform(pa.Table.from_pandas(frame, preserve_index=False))
    return replace(trace, tables=tables, _frames={})


def stragglers(result):
    """Return the removal gain of each rank that is named as a straggler."""
    return {
        finding.where["rank"]: finding.removal_gain_frac
        for finding in result.findings
        if finding.kind == "straggler_rank"
    }


def says(result, *words):
    """Return whether one limit holds all the words."""
    return any(all(word in limit for word in words) for limit in texts(result.limits))


def nothing(frame):
    """Return the frame without rows."""
    return frame.iloc[:0]


def test_rows_in_any_order(trace, gain):
    """Operations at one instant would change places and ranks lose their peers."""
    shuffled = changed(
        trace,
        lambda frame: frame.sample(frac=1, random_state=3),
        *("step", "span", "collective", "p2p"),
    )
    assert stragglers(diagnose(shuffled)) == pytest.approx({5: gain})


def test_a_step_that_was_recorded_twice(trace, gain):
    """A job that resumed from a checkpoint would end in a traceback."""
    double = changed(
        trace,
        lambda frame: pd.concat([frame, frame[(frame["rank"] == 1) & (frame["step"] == 3)]]),
        "step",
    )
    result = diagnose(double)
    assert stragglers(result) == pytest.approx({5: gain})
    assert says(result, "twice")


@pytest.mark.parametrize("stage", [0, 1, None])
def test_no_spans_of_a_stage_or_at_all(trace, gain, stage):
    """Shares would become NaN where nothing says what was computed."""
    bare = changed(
        trace,
        lambda frame: nothing(frame) if stage is None else frame[frame["stage"] != stage],
        "span",
    )
    result = diagnose(bare)
    assert stragglers(result) == pytest.approx({5: gain})
    assert all(cause.share_frac == cause.share_frac for cause in result.causes)
    assert not [f for f in result.findings if f.kind == "stage_imbalance"]


def test_a_job_that_never_communicates():
    """A single process would end in a traceback."""
    result = diagnose(capture(Job(layout=ParallelLayout(), steps=3), uniform(10 * MS, 20 * MS)))
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1)
    assert result.causes == ()
    assert says(result, "No communication")


def test_a_job_that_was_killed_in_its_first_step(trace):
    """All that it communicated would be dropped, and nobody told."""
    first = changed(trace, lambda frame: frame[frame["step"] == 0], "span", "collective", "p2p")
    result = diagnose(changed(first, nothing, "step"))
    assert list(stragglers(result)) == [5]
    assert says(result, "No step boundaries")


def test_a_rank_without_a_finished_step(trace):
    """Its events would have no window, and the replay would fail for everybody."""
    result = diagnose(changed(trace, lambda frame: frame[frame["rank"] != 3], "step"))
    assert stragglers(result) == {5: None}
    assert says(result, "left out: 3")


def test_a_rank_without_a_file_leaves_the_cost_unknown(trace):
    """A replay in which ranks wait for one that is not there would give a wrong price."""
    names = ("step", "span", "collective", "p2p")
    result = diagnose(changed(trace, lambda frame: frame[frame["rank"] != 3], *names))
    assert stragglers(result) == {5: None}
    assert result.causes == ()
    assert says(result, "not in the capture")


def test_a_step_that_one_rank_lacks(trace):
    """Touching windows would be chained wrongly, and the replay miss the recorded times."""
    result = diagnose(
        changed(trace, lambda frame: frame[(frame["rank"] != 3) | (frame["step"] != 3)], "step")
    )
    assert result.model_error_frac == pytest.approx(0, abs=1e-9)
    assert list(stragglers(result)) == [5]


def test_no_step_that_all_ranks_finished(trace):
    """The message would say that nothing was recorded."""
    apart = changed(trace, lambda frame: frame[(frame["rank"] == 3) == (frame["step"] < 2)], "step")
    with pytest.raises(TraceFormatError, match="no step was finished on every captured rank"):
        diagnose(apart)


def test_steps_without_length(trace):
    """Shares of nothing would pass a gate."""
    with pytest.raises(TraceFormatError, match="no length"):
        diagnose(changed(trace, lambda frame: frame.assign(dur_ns=0), "step"))


def test_collectives_that_one_member_lacks_are_counted(trace):
    """Waiting would pass for transfer time in silence."""
    result = diagnose(changed(trace, lambda frame: frame[frame["rank"] != 3], "collective"))
    assert says(result, "collectives without some members")


def test_ends_that_nobody_saw_blame_nobody(trace):
    """Healthy ranks would be blamed for waiting inside their compute spans."""
    unseen = dict.fromkeys(("end_ns", "wait_start_ns", "wait_end_ns"))
    blind = changed(
        trace, lambda frame: frame.assign(**unseen, source="host_issue"), "collective", "p2p"
    )
    result = diagnose(blind)
    assert stragglers(result) == {}
    assert says(result, "was not seen")


def test_a_clock_that_is_a_second_off_is_found_and_not_replayed(trace):
    """Waiting would be many times the step, with a cause for it."""

    def late(frame):
        own = frame["rank"] == 5
        for column in set(TIMES) & set(frame.columns):
            frame.loc[own, column] += 1_000_000_000
        return frame

    result = diagnose(changed(trace, late, "step", "span", "collective", "p2p"))
    skew = [finding for finding in result.findings if finding.kind == "clock_skew"]
    assert len(skew) == 1
    assert 5 in skew[0].where["ranks"]
    assert result.causes == ()
    assert says(result, "clock")


def test_a_step_that_is_left_out_takes_its_events_with_it(trace):
    """Events of that step would be added to another, where each step has its own clock."""

    def rebased(frame):
        origin = frame["step"].map(lambda step: step * 100 * MS)
        for column in set(TIMES) & set(frame.columns):
            frame[column] = frame[column] - origin
        return frame

    own = {"per_step_clock": True, "origin": "ndtimeline"}
    whole = changed(trace, rebased, "step", "span", "collective", "p2p")
    whole = replace(whole, _frames={}, **own)
    part = changed(whole, lambda frame: frame[(frame["rank"] != 3) | (frame["step"] != 2)], "step")
    before = diagnose(whole).ledger.set_index(["rank", "step"])
    after = diagnose(part).ledger.set_index(["rank", "step"])
    assert set(after.index.get_level_values("step")) == {0, 1, 3, 4}
    assert before.loc[after.index].equals(after)
