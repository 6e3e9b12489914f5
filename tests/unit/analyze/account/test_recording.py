"""The probe's own cost and changes of level, as an analysis tells them."""

import pytest
from tests.played import play
from tests.synthetic import MS, Job, capture, uniform
from tests.tables import trace_of

from meshscope.analyze.account.recording import level_limits, probe_cost
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.load.load import load_trace
from meshscope.analyze.output.json.diagnosis import diagnosis_to_json
from meshscope.analyze.output.text.diagnosis import to_text
from meshscope.probe.recording.step_sums import FullRecords
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.manifest import RECORDING_KEY, read_json, write_json
from meshscope.probe.schema.message import message, message_to_cell


def stretch(rank, step, cost_ns, dur_ns=1000, **known):
    """Return a row of the recording table."""
    row = {"rank": rank, "step": step, "level": "collectives", "reason": "chosen at the start"}
    return row | {"steps": 10, "dur_ns": dur_ns, "cost_ns": cost_ns} | known


def test_the_cost_is_a_share_of_the_measured_time():
    """Fails when a rank that costs much hides in the mean, or unmeasured time counts."""
    rows = [stretch(0, 0, 10), stretch(0, 10, 30), stretch(1, 0, 100), stretch(2, 0, None)]
    assert probe_cost(trace_of(recording=rows)) == {
        "probe_cost_frac": pytest.approx(0.06),
        "probe_cost_most_frac": pytest.approx(0.1),
        "probe_cost_most_rank": 1,
    }
    assert set(probe_cost(trace_of()).values()) == {None}


def test_what_was_measured_before_a_first_step_ended_is_no_cost():
    """Fails when a job that hangs in its first step reads as one whose probe costs 0.00001 %."""
    assert set(probe_cost(trace_of(recording=[stretch(0, 0, 2, steps=0)])).values()) == {None}
    rows = [stretch(0, 0, 2, steps=0), stretch(1, 0, 50)]
    assert probe_cost(trace_of(recording=rows))["probe_cost_frac"] == pytest.approx(0.05)


def test_a_lowered_level_is_a_limit():
    """Fails when a capture that became poorer by itself does not say so."""
    over = message("level.over_budget", share=0.02, allowed=0.01)
    in_part = message("level.incomplete", because=over, level="stages", missing=["memory"])
    for reason in (*map(message_to_cell, (over, in_part)), "over budget: 2 % of the time"):
        lowered = stretch(3, 250, 5, level="stages", reason=reason)
        (limit,) = level_limits(trace_of(recording=[stretch(0, 0, 1), lowered]))
        assert "1 rank, over budget: rank 3 from step 250 on at the level stages" in str(limit)
    assert level_limits(trace_of(recording=[stretch(0, 0, 1)])) == ()


@pytest.mark.parametrize(
    "reason",
    [message_to_cell(message("level.sampled", one_in=4)), "over budget, so one window in 4"],
)
def test_windows_of_steps_are_a_limit(reason):
    """Fails when a run that recorded one step in four reads as a whole one, an old run too."""
    (limit,) = level_limits(trace_of(recording=[stretch(0, 70, 5, reason=reason, one_in=4)]))
    assert (limit.code, limit.values["one_in"]) == ("missing.sampled_on_all", 4)


def test_steps_recorded_again_are_no_limit():
    """Fails when a run that recorded all again reads as one that did not to its end."""
    sampled = stretch(0, 7, 5, reason='level.sampled {"one_in": 8}', one_in=8)
    again = stretch(0, 65, 1, reason="level.within_budget", one_in=1)
    (limit,) = level_limits(trace_of(recording=[stretch(0, 0, 1), sampled, again]))
    assert limit.code == "missing.sampled_until"
    assert "in steps 7 to 64" in str(limit)


def test_a_diagnosis_tells_the_cost(tmp_path):
    """Fails when the owner of a run cannot see what the probe takes."""
    job = capture(Job(layout=ParallelLayout(dp=2), steps=4), uniform(4 * MS, 8 * MS))
    path = play(job, tmp_path, FullRecords())
    for rank in range(2):
        manifest = path / f"rank{rank:05d}" / "manifest.json"
        content = read_json(manifest)
        rows = [stretch(rank, 0, 2_000 * (rank + 1), 1_000_000, start_ns=0)]
        content["annotations"][RECORDING_KEY] = [*rows, {"level": "nonsense"}, 7]
        write_json(manifest, content)
    found = diagnose(load_trace(path))
    run = diagnosis_to_json(found)["run"]
    assert run["probe_cost_frac"] == pytest.approx(0.003)
    wanted = "Probe overhead by its own measure: 0.3 % of the time, at most 0.4 % (rank 1)"
    assert wanted in to_text(found)
