"""The step time of a run over its steps."""

from dataclasses import replace

import pyarrow as pa
from tests.unit.dashboard.conftest import write_synthetic

from meshscope.dashboard.answers.live import live
from meshscope.dashboard.answers.trend import trend
from meshscope.dashboard.runs.store import RunStore
from meshscope.probe.schema.terms import StepDetail


def _with_more_steps(run, details):
    """Return a run of which each rank ended further steps, twice as long, of which so much is held."""
    rows = run.trace.tables["step"].to_pylist()
    last = max(row["step"] for row in rows)
    ends = [row for row in rows if row["step"] == last]
    rows = [{**row, "detail": StepDetail.FULL.value} for row in rows]
    for after, detail in enumerate(details, 1):
        rows += [
            {**row, "step": last + after, "dur_ns": 2 * row["dur_ns"], "detail": detail}
            for row in ends
        ]
    schema = run.trace.tables["step"].schema
    table = pa.Table.from_pylist(rows, schema=schema.remove_metadata())
    trace = replace(run.trace, tables={**run.trace.tables, "step": table}, _frames={})
    return replace(run, trace=trace), last


def test_steps_recorded_with_their_length_only_are_drawn(tmp_path):
    """Fails when a job that was recorded less from some step on seems to end there."""
    run = RunStore(tmp_path).get(write_synthetic(tmp_path))
    before = trend(run)
    longer, last = _with_more_steps(run, [StepDetail.STEPS.value] * 3)
    after = trend(longer)
    assert after[: len(before)] == before
    assert [row["step"] for row in after[len(before) :]] == [last + 1, last + 2, last + 3]
    assert after[-1]["step_ns"] == 2 * before[-1]["step_ns"]
    assert live(longer)["last_step"] == last + 3


def test_a_step_that_one_rank_did_not_end_is_not_drawn(tmp_path):
    """Fails when the last step of a job is as short as those ranks that came through it."""
    run = RunStore(tmp_path).get(write_synthetic(tmp_path))
    longer, last = _with_more_steps(run, [StepDetail.STEPS.value])
    rows = longer.trace.tables["step"]
    keep = [not (r["rank"] == 0 and r["step"] == last + 1) for r in rows.to_pylist()]
    tables = {**longer.trace.tables, "step": rows.filter(pa.array(keep))}
    one_less = replace(longer, trace=replace(longer.trace, tables=tables, _frames={}))
    assert trend(one_less) == trend(run)
