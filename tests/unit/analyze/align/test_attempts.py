"""The starts of a job as a diagnosis tells them."""

from tests.synthetic import MS, Job, capture, uniform
from tests.tables import trace_of

from meshscope.analyze.align.attempts import attempts_message, attempts_of
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.output.json.diagnosis import diagnosis_to_json
from meshscope.analyze.output.text.diagnosis import to_text
from meshscope.probe.schema.layout import ParallelLayout


def row(attempt, first_step, last_step, **known):
    """Return a row of the table."""
    return {"attempt": attempt, "first_step": first_step, "last_step": last_step} | known


TWICE = [row(1, 0, 3, killed_ranks=1, training_step=100), row(2, 4, 7, training_step=102)]


def test_a_diagnosis_of_a_restarted_job_tells_its_starts():
    """Fails when step numbers of a finding cannot be known to belong to the second start."""
    job = capture(Job(layout=ParallelLayout(dp=2), steps=8), uniform(4 * MS, 8 * MS))
    restarted = job.with_tables({"attempt": trace_of(attempt=TWICE).tables["attempt"]})
    found = diagnose(restarted)
    assert (
        "2 attempts: 1. steps 0-3 (steps 100-103 of the training), 1 of 2 ranks killed or still running; "
        "2. steps 4-7 (steps 102-105 of the training)"
    ) in to_text(found)
    reported = diagnosis_to_json(found)["run"]["attempts"]
    assert [(one["first_step"], one["training_step"]) for one in reported] == [(0, 100), (4, 102)]


def test_one_start_is_not_worth_a_line():
    """Fails when every report begins with something that nobody asked."""
    assert attempts_message(attempts_of(trace_of(attempt=[row(1, 0, 9)]))) is None
    assert attempts_message(attempts_of(trace_of())) is None


def test_many_starts_show_the_newest():
    """Fails when a job that crashes all night fills the report."""
    rows = [row(number, number * 2, number * 2 + 1) for number in range(1, 41)]
    rows[-1]["last_step"] = None
    text = str(attempts_message(attempts_of(trace_of(attempt=rows))))
    assert text.startswith("40 attempts, the last 6: 35. steps 70-71; ")
    assert text.endswith("40. without a whole step")
