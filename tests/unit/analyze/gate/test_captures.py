"""Gates on captures: counts are exact with one run, classes and stages say where, setups must agree."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.texts import texts

from meshscope.analyze.findings.measure import measure
from meshscope.analyze.gate.captures import run_of
from meshscope.analyze.gate.compare import compare
from meshscope.analyze.gate.facts import Window
from meshscope.analyze.gate.json_forms import to_json
from meshscope.analyze.gate.loaded import LoadedRun, baseline_of
from meshscope.analyze.gate.results import Reason, Verdict
from meshscope.analyze.gate.setup import require_one_job
from meshscope.analyze.gate.words import headline, note_lines
from meshscope.analyze.output.render import to_markdown
from meshscope.analyze.output.text.gate import gate_document
from meshscope.probe.schema.errors import ConfigError, TraceFormatError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

LAYOUT = ParallelLayout(tp=2, pp=2)


def loaded(*, noise=0, work=None, layout=LAYOUT, steps=8, **job):
    """Return a run of a job of 8 steps whose passes take some ns more."""
    made = Job(layout=layout, steps=steps, **job)
    trace = capture(made, work or uniform(10 * MS + noise, 20 * MS + noise))
    return run_of(measure(trace), f"run{noise}")


@pytest.fixture(scope="module")
def base():
    """Return a baseline of five runs that differ by 0.05 %."""
    return baseline_of([loaded(noise=noise) for noise in (0, 4_000, 8_000, 12_000, 16_000)])


def test_an_added_all_reduce_fails_with_one_run_on_each_side():
    """A change of the program would need a cluster and many runs to be seen."""
    result = compare(baseline_of([loaded()]), [loaded(segments=3)])
    assert result.verdict is Verdict.FAIL
    check = next(one for one in result.checks if one.metric == "count.collectives.tp.all_reduce")
    # 4 ranks, 4 microbatches, forward and backward, 2 or 3 segments.
    assert (check.before, check.after) == (4 * 4 * 2 * 2, 4 * 4 * 2 * 3)
    assert "TP all_reduce per step: 64 → 96: 32 more" in str(headline(result))


def test_the_same_program_passes(base):
    """A gate would stop what did not change."""
    result = compare(base, [loaded(noise=6_000)])
    assert result.verdict is Verdict.PASS
    assert not [one for one in result.checks if one.verdict is Verdict.FAIL]


def test_fewer_microbatches_fail_by_their_passes(base):
    """Less work in a step would look like a gain."""
    result = compare(base, [loaded(microbatches=2)])
    assert result.verdict is Verdict.FAIL
    assert "passes per step" in str(headline(result))


def test_a_slow_stage_is_named(base):
    """The owner of a regression would have to search for it."""

    def work(kind, rank, step, microbatch):
        own = 10 * MS if kind == "forward" else 20 * MS
        return own + (MS if LAYOUT.coordinates(rank)["pp"] == 1 else 0)

    result = compare(base, [loaded(work=work)], margin=0.01)
    assert result.verdict is Verdict.FAIL
    assert any(str(line).startswith("Stage 1 computes") for line in note_lines(result))
    failed = {one.metric for one in result.checks if one.verdict is Verdict.FAIL}
    assert "step_p50" in failed
    assert not {one for one in failed if one.startswith("count.")}


def test_what_one_class_wins_and_another_loses_is_a_cost_shift(base):
    """Work that only moved from one class to another would stop a change that costs nothing."""
    others = [
        loaded(noise=noise, work=uniform(8 * MS + noise, 22 * MS + noise))
        for noise in (2_000, 6_000, 10_000)
    ]
    result = compare(base, others, margin=0.01)
    assert result.verdict is Verdict.PASS
    assert result.shifts == (("backward", "forward"),)
    check = next(one for one in result.checks if one.metric == "class.backward")
    assert (check.verdict, check.reason) == (Verdict.PASS, Reason.COST_SHIFT)
    assert any(str(line).startswith("Cost shift: backward rose") for line in note_lines(result))


def test_a_class_that_rises_with_the_step_is_no_cost_shift(base):
    """A loss would pass because something else fell a little."""
    slower = [loaded(noise=noise, work=uniform(9 * MS, 26 * MS)) for noise in (1, 2)]
    result = compare(base, slower, margin=0.01)
    assert (result.verdict, result.shifts) == (Verdict.FAIL, ())
    assert "Mostly backward: +" in str(headline(result))


def test_bytes_are_counted_where_operations_stay():
    """A message that doubled, as by a wider type, would be hidden in the noise of its time."""
    other = loaded()
    wider = replace(other, counts={**other.counts, "bytes.tp.all_reduce": 2 << 24})
    result = compare(baseline_of([other]), [wider])
    failed = [one.metric for one in result.checks if one.verdict is Verdict.FAIL]
    assert failed == ["count.bytes.tp.all_reduce"]
    # 4 ranks, 4 microbatches, both directions, 2 segments of 256 KiB.
    assert other.counts["bytes.tp.all_reduce"] == 4 * 4 * 2 * 2 << 18


def test_one_pass_with_two_spans_is_one_pass():
    """The loss of the last stage, in a span of its own, would count as a forward."""
    trace = capture(Job(layout=LAYOUT, steps=8), uniform(10 * MS, 20 * MS))
    spans = trace.tables["span"].to_pandas()
    loss = spans[(spans["kind"].astype(str) == "forward") & (spans["stage"] == 1)].copy()
    loss["start_ns"] += loss["dur_ns"] - 1
    loss["dur_ns"] = 1
    both = TABLES["span"].conform(pa.Table.from_pandas(pd.concat([spans, loss])))
    whole = replace(trace, tables={**trace.tables, "span": both})
    for one in (trace, whole):
        assert run_of(measure(one), "a").counts["passes.forward"] == 4 * 4


def test_classes_before_and_after_add_up_to_the_step(base):
    """The table that says where a step changed would leave a part of it out."""
    result = compare(base, [loaded(work=uniform(10 * MS, 24 * MS))], margin=0.01)
    change_ns = sum(row.change_ns for row in result.classes)
    step = next(one for one in result.checks if one.metric == "step_p50")
    assert change_ns == pytest.approx(step.after - step.before, rel=0.01)
    text = to_markdown(gate_document(to_json(result)))
    assert "## Where the step changed" in text
    assert f"| total | {step.before / MS:.3f}" in text


def test_short_runs_are_held_by_their_counts():
    """Traces of three steps, as profilers write them, could not be compared at all."""
    short = loaded(steps=4)
    base = baseline_of([short])
    assert not base.has_times
    assert compare(base, [loaded(steps=8)]).verdict is Verdict.PASS
    result = compare(base, [loaded(steps=4, segments=3)])
    assert result.verdict is Verdict.FAIL
    assert {one.metric.partition(".")[0] for one in result.checks} == {"count"}
    assert "Only counts compared" in texts(result.limits)[0]


def test_a_baseline_of_unlike_jobs_is_refused():
    """Two meshes would be one baseline, with a noise that hides everything."""
    other = loaded(layout=ParallelLayout(tp=2, pp=1, dp=2))
    with pytest.raises(ConfigError, match="runs of one job"):
        require_one_job([loaded(), other])


def test_a_run_that_broke_off_does_not_pass(base):
    """A change that crashes would pass by the steps before the crash."""
    broken = replace(loaded(noise=6_000), ended="Rank 1 died")
    result = compare(base, [broken])
    assert result.verdict is Verdict.INCONCLUSIVE
    assert str(headline(result)) == "INCONCLUSIVE: run6000: Rank 1 died"
    with pytest.raises(ConfigError, match="Rank 1 died"):
        require_one_job([loaded(), broken])


def test_a_run_that_ends_early_is_compared_over_what_it_has(base):
    """Its settled steps would be held against the first steps of the baseline, and nobody would know."""
    long = baseline_of([loaded(noise=noise, steps=20) for noise in (0, 4_000, 8_000)])
    late = msgspec.structs.replace(long, window=Window(first=6, count=13))
    result = compare(late, [loaded(noise=4_000, steps=14)])
    assert any(
        "ends early: it has 7 of the 13 compared steps" in limit for limit in texts(result.limits)
    )
    assert "step_p50" in {one.metric for one in result.checks}
    times = LoadedRun(name="a", step_ns=np.full(10, 1e8))
    with pytest.raises(TraceFormatError, match="settled from step 6 to 18"):
        compare(late, [times])


def test_times_in_another_unit_are_refused(base):
    """Seconds against nanoseconds would be a gain of 100 %."""
    times = LoadedRun(name="a", step_ns=np.full(20, 0.15))
    with pytest.raises(TraceFormatError, match="both in nanoseconds"):
        compare(base, [times])


def test_another_mesh_is_incomparable(base):
    """Times of another job would be held against this one's."""
    result = compare(base, [loaded(layout=ParallelLayout(tp=2, pp=1, dp=2))])
    assert result.verdict is Verdict.INCOMPARABLE
    assert {"pp", "dp"} <= set(result.setup)
