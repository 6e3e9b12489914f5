"""The report of a run: what is said has its picture, and says the same in each form."""

import pytest

from meshscope.analyze import diagnose
from meshscope.analyze.output.document import Figure, Listing
from meshscope.analyze.output.html import to_html
from meshscope.analyze.output.render import to_markdown
from meshscope.analyze.output.report.document import report_document
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout

SLOW = 13


def made(layout, steps=4, **job):
    """Return a job with a slow rank, and its diagnosis."""
    fault = Fault(kind=FaultKind.SLOW_RANK, rank=SLOW, factor=1.4)
    trace = generate(SyntheticJob(layout=layout, steps=steps, faults=(fault,), **job))[0]
    return trace, diagnose(trace)


@pytest.fixture(scope="module")
def job():
    """Return a job of 32 ranks."""
    return made(ParallelLayout(tp=2, pp=4, dp=4))


def pictures(document):
    """Return the picture of each finding by its number."""
    found, number = {}, None
    for block in document:
        if isinstance(block, Listing) and block.first_number is not None:
            number = block.first_number
        if isinstance(block, Figure) and number is not None:
            found.setdefault(number, block)
    return found


def test_each_finding_has_a_picture_with_the_ranks_that_it_names(job):
    """A claim about a rank would stand beside a picture without it."""
    trace, result = job
    found = pictures(report_document(trace, result))
    assert set(found) >= set(range(1, len(result.findings) + 1))
    (number,) = (
        at for at, one in enumerate(result.findings, start=1) if one.where.get("rank") == SLOW
    )
    rows = found[number].table.rows
    assert 2 <= len(rows) <= 16
    (marked,) = (row[0] for row in rows if "▶" in row[0])
    assert f"rank {SLOW} " in marked


def test_the_picture_of_the_account_begins_and_ends_with_the_step(job):
    """Bars that overlap or leave a gap would not add up to the step."""
    trace, result = job
    figure = next(one for one in report_document(trace, result) if isinstance(one, Figure))
    assert figure.table.rows[-1][0] == "total"
    assert figure.table.rows[-1][1] == "100.00 %"


def test_markdown_and_html_say_every_finding(job):
    """Two forms of one report would tell different things."""
    document = report_document(*job)
    page, text = to_html(document), to_markdown(document)
    for finding in job[1].findings:
        assert str(finding.claim) in text
        assert str(finding.claim).replace("'", "&#x27;") in page


@pytest.mark.sampled(keep=())
def test_a_large_job_stays_small_enough_to_be_mailed():
    """A report of 1,024 ranks would be refused by a mail server, or take minutes to open."""
    trace, result = made(ParallelLayout(tp=8, pp=8, dp=16), steps=2, microbatches=8)
    page = to_html(report_document(trace, result))
    assert len(page) < 6e6
    assert f"<title>rank {SLOW}: " in page
