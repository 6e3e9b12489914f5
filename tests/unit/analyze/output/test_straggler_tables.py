"""The straggler part of a diagnosis, and its forms."""

import json
from dataclasses import replace

import pytest
from tests.ndtimeline_jobs import JobShape, write_job
from tests.synthetic import MS, Job, capture

from meshscope.analyze import diagnose
from meshscope.analyze.explain.straggler_metrics import published_metrics
from meshscope.analyze.output.json.stragglers import published_to_json, stragglers_to_json
from meshscope.analyze.output.render import to_markdown, to_plain
from meshscope.analyze.output.straggler_tables import find_stragglers
from meshscope.analyze.output.text.stragglers import published_document, stragglers_document
from meshscope.analyze.wording.quantities import percent
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture(scope="module")
def diagnosis():
    """Return a 1x2x4 job in which rank 5 needs 15 ms more for every forward of 10 ms."""

    def work(kind, rank, step, microbatch):
        if kind == "backward":
            return 20 * MS
        return (25 if rank == 5 else 10) * MS

    return diagnose(capture(Job(layout=ParallelLayout(pp=2, dp=4)), work))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Return the published metrics of a job of six workers."""
    shape = JobShape(pp=2, dp=3, microbatches=4, noise=0.15)
    return published_metrics(write_job(tmp_path_factory.mktemp("job"), shape))


def test_the_slow_rank_comes_with_what_it_costs(diagnosis):
    """A rank would be named without what repairing it returns."""
    found = find_stragglers(diagnosis)
    slow = found.ranks.set_index("rank").loc[5]
    cause = next(cause for cause in diagnosis.causes if cause.where.get("rank") == 5)
    assert slow["named"]
    assert slow["share_frac"] == cause.share_frac
    assert slow["removal_gain_frac"] == cause.removal_gain_frac
    assert (slow["direct_ns"], slow["induced_wait_ns"]) == (cause.direct_ns, cause.induced_wait_ns)
    assert found.ranks["named"].sum() == 1
    assert found.findings[0].where["rank"] == 5


def test_each_step_names_the_rank_that_worked_longest(diagnosis):
    """A step that is slow for another reason could not be distinguished from the rest."""
    steps = find_stragglers(diagnosis).steps
    assert steps["step"].tolist() == sorted(diagnosis.ledger["step"].unique())
    assert set(steps["slowest_rank"]) == {5}
    assert (steps["own_ns"] > steps["median_own_ns"]).all()
    assert (steps["own_ns"] <= steps["step_ns"]).all()


def test_stages_have_the_median_of_their_ranks(diagnosis):
    """One slow rank would make its stage look slow."""
    stages = find_stragglers(diagnosis).stages.set_index("stage")
    assert stages["ranks"].tolist() == [4, 4]
    assert stages.loc[1, "compute_ns"] == pytest.approx(stages.loc[0, "compute_ns"], rel=0.05)


def test_unknown_stages_are_not_made_up(diagnosis):
    """Ranks without a known place would count as one stage."""
    nowhere = replace(diagnosis, stragglers=diagnosis.stragglers.assign(pp=-1))
    assert find_stragglers(nowhere).stages.empty


def test_a_capture_without_steps_has_forms_too(diagnosis):
    """Dumps of a hang would end in a traceback."""
    none = replace(diagnosis, ledger=diagnosis.ledger[:0], step_time_ns=float("nan"))
    found = find_stragglers(none)
    form = stragglers_to_json(found)
    assert form["step_time_ns"] is None
    assert form["steps"] == form["stages"] == []
    assert "Slowest steps" not in to_plain(stragglers_document(found))


def test_the_json_form_is_complete(diagnosis):
    """Programs would have to compute again what was known."""
    form = stragglers_to_json(find_stragglers(diagnosis))
    assert form.keys() == {
        "version", "run", "step_time_ns", "findings", "ranks", "steps", "stages", "untold", "limits",
        "limit_messages",
    }  # fmt: skip
    healthy = next(row for row in form["ranks"] if row["rank"] == 0)
    assert healthy["share_frac"] is None
    assert healthy["named"] is False


def test_the_report_marks_the_named_rank(diagnosis):
    """Readers would have to compare numbers to see who was meant."""
    text = to_plain(stragglers_document(find_stragglers(diagnosis)))
    assert "  5 *" in text
    assert "repairing it alone returns" in text
    markdown = to_markdown(stragglers_document(find_stragglers(diagnosis)))
    assert "| 5 * |" in markdown


def test_the_published_report_says_the_same_as_the_json_form(published):
    """The two forms of one result would disagree."""
    text, form = to_plain(published_document(published)), published_to_json(published)
    assert f"S {form['result']['blocking_slowdown']:.4f} over 2 steps" in text
    assert f"waste {percent(form['waste_frac'], 2)}" in text
    for value in form["result"]["blocking_decompose_by_stage"].values():
        assert f"{value:.4f}" in text
    for row in form["heatmap"]["slowdown"]:
        for value in row:
            assert f"{value:.3f}" in text
    assert "| forward-compute |" in to_markdown(published_document(published))


def test_a_small_slowdown_is_reported_as_not_taken_apart(tmp_path):
    """Parts that were not computed would look like parts of size zero."""
    metrics = published_metrics(write_job(tmp_path, JobShape(pp=2, noise=0.0)))
    text, form = to_plain(published_document(metrics)), published_to_json(metrics)
    assert "Not given: S is below 1.03" in text
    assert form["heatmap"] is form["mw"]["Mw"] is None
    assert form["result"]["blocking_decompose_by_stage"] is None
    assert form["ms"]["tori"] == pytest.approx(form["ms"]["tideal"], rel=0.03)
    json.dumps(form)
