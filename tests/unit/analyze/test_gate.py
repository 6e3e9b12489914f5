"""Budgets: what is refused, what passes, and the exit code."""

import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.diagnosis import diagnose
from meshscope.analyze.gate import (
    METRICS,
    Budget,
    check,
    exit_code,
    load_budgets,
    to_markdown,
    to_rows,
)
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture(scope="module")
def result():
    """Return the diagnosis of a job of two stages; its MFU is not known."""
    trace = capture(Job(layout=ParallelLayout(pp=2), steps=3), uniform(10 * MS, 20 * MS))
    return diagnose(trace)


def write(tmp_path, text):
    """Return a budget file with the text."""
    path = tmp_path / "budget.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_budgets_are_read_in_their_order(tmp_path):
    """A bound would be lost or exchanged."""
    path = write(tmp_path, "[budget]\nmfu = { min = 0.4 }\nbubble_frac = { min = 0, max = 0.2 }\n")
    assert load_budgets(path) == (
        Budget(metric="mfu", min=0.4),
        Budget(metric="bubble_frac", min=0, max=0.2),
    )


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no [budget] table"),
        ("[budget]\n", "holds no bound"),
        ("budget = 3", "no [budget] table"),
        ("[budget]\nmfu = ", "is not TOML"),
        ("[budget]\nspeed = { min = 1 }", "unknown metric"),
        ("[budget]\nmfu = 0.4", "needs min, max or both"),
        ("[budget]\nmfu = {}", "needs min, max or both"),
        ("[budget]\nmfu = { minimum = 1 }", "needs min, max or both"),
        ("[budget]\nmfu = { min = true }", "min is not a number"),
        ("[budget]\nmfu = { min = 'x' }", "min is not a number"),
        ("[budget]\nmfu = { max = nan }", "max is not a number"),
        ("[budget]\nmfu = { min = 0.2, max = 0.1 }", "min is above max"),
        ("[budget]\nbubble_frac = { max = 30 }", "max = 30 is no share"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(tmp_path, text, part):
    """A typing error would switch the gate off."""
    with pytest.raises(ConfigError) as caught:
        load_budgets(write(tmp_path, text))
    assert part in str(caught.value)
    assert "budget.toml" in str(caught.value)


def test_a_budget_file_that_is_not_there_or_no_text_is_refused(tmp_path):
    """A wrong path would be a traceback in somebody's CI."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.toml", tmp_path, tmp_path / "binary"):
        with pytest.raises(ConfigError):
            load_budgets(path)


@pytest.mark.parametrize(
    ("budgets", "code"),
    [
        ([Budget(metric="bubble_frac", max=0.9)], 0),
        ([Budget(metric="bubble_frac", max=0.01)], 1),
        ([Budget(metric="bubble_frac", min=0.9)], 1),
        ([Budget(metric="mfu", min=0.4)], 2),
        ([Budget(metric="mfu", min=0.4), Budget(metric="bubble_frac", max=0.01)], 1),
    ],
)
def test_exit_codes(result, budgets, code):
    """A broken budget would pass, or an unknown one would look checked."""
    assert exit_code(check(result, tuple(budgets))) == code


def test_bounds_include_their_ends(result):
    """A budget set to the measured value would fail."""
    value = result.metrics["bubble_frac"]
    verdict = check(result, (Budget(metric="bubble_frac", min=value, max=value),))
    assert verdict[0].passed is True


def test_a_verdict_says_what_was_measured_and_wanted(result):
    """The reader of a failed job would have to run it again."""
    failed, unknown = check(
        result, (Budget(metric="bubble_frac", max=0.01), Budget(metric="mfu", min=0.4))
    )
    assert failed.sentence().startswith("FAIL")
    assert "at most 0.01" in failed.sentence()
    assert unknown.sentence().startswith("UNKNOWN")
    assert to_rows((unknown,)) == [
        {"metric": "mfu", "min": 0.4, "max": None, "value": None, "passed": None}
    ]


def test_every_metric_of_a_budget_is_measured(result):
    """A metric could be allowed in budgets but never be filled in."""
    assert set(METRICS) <= set(result.metrics)


def test_checks_as_a_table(result):
    """A comment on a change would show plain lines in one paragraph."""
    budgets = (Budget(metric="mfu", min=0.4), Budget(metric="bubble_frac", max=0.9))
    rows = to_markdown(check(result, budgets)).splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert rows[2] == "| mfu | 0.4 | – | – | unknown |"
    assert rows[3].endswith("| pass |")
