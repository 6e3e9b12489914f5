"""A capture without ends of steps: what is of a step is not known, and times are of the whole."""

from dataclasses import replace

import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.findings.critical_path import critical_path
from meshscope.analyze.findings.diagnosis import diagnosis_of
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.gate.budgets import Budget, check, exit_code
from meshscope.analyze.output.json import critical_path_to_json
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.output.straggler_tables import find_stragglers
from meshscope.analyze.output.text import critical_path_document, to_text
from meshscope.analyze.output.text.stragglers import stragglers_document
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

EVEN = uniform(10 * MS, 20 * MS)
MODEL = {
    "num_layers": 2,
    "hidden_size": 8,
    "seq_len": 16,
    "vocab_size": 10,
    "parameters": 1000,
    "tokens_per_step": 50,
    "peak_flops": 1e12,
}


def slow_rank(kind, rank, step, microbatch):
    """Return the work of a job whose rank 2 is slow in all steps."""
    return EVEN(kind, rank, step, microbatch) * (2 if rank == 2 else 1)


@pytest.fixture(scope="module")
def account():
    """Return the account of a job with a slow rank, of which no ends of steps were recorded."""
    trace = capture(Job(layout=ParallelLayout(dp=4), steps=6), slow_rank, **MODEL)
    return measure(replace(trace, tables={**trace.tables, "step": TABLES["step"].empty()}))


def test_a_budget_of_a_step_is_not_known(account):
    """Fails when the length of the whole capture passes or breaks the budget of one step."""
    result = diagnosis_of(account)
    (verdict,) = check(result, (Budget(metric="step_time_ns", max=1e6),))
    assert (verdict.value, exit_code((verdict,))) == (None, 2)
    assert str(verdict.unknown_because) == "no ends of steps were recorded"


def test_tokens_of_a_step_make_no_mfu_of_the_capture(account):
    """Fails when the tokens of one step are divided by the length of all of them."""
    use = account.utilization
    assert (use.mfu, use.tokens_per_s) == (None, None)
    assert str(use.unknown_because) == "the capture lacks the ends of steps"


def test_reports_call_no_time_that_of_a_step(account):
    """Fails when what all steps took is read as what one takes, or a step -1 is shown."""
    path = critical_path_to_json(critical_path(account), ())
    assert (path["step"], path["step_because"]) == (None, "")
    texts = (
        to_text(diagnosis_of(account)),
        to_plain(stragglers_document(find_stragglers(diagnosis_of(account)))),
        to_plain(critical_path_document(path)),
    )
    assert "Rank 2 is" in texts[0]
    for text in texts:
        assert not [word for word in ("ms/step", "per step", "step -1", "one step") if word in text]
