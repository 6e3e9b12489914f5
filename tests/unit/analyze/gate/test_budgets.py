"""Budgets: what is refused, what passes, and the exit code."""

import pandas as pd
import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.explain.metrics import metrics_without_steps
from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.findings.diagnosis import diagnose, diagnosis_of
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.gate.budgets import (
    METRICS,
    Budget,
    budgets_document,
    check,
    exit_code,
    load_budgets,
    to_markdown,
    to_rows,
)
from meshscope.analyze.output.render import to_plain
from meshscope.analyze.wording.message import message_to_json
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


def test_a_mark_of_the_encoding_is_no_content(tmp_path):
    """A file that an editor of Windows has saved would be no TOML."""
    path = write(tmp_path, "\ufeff[budget]\nmfu = { min = 0.4 }\n")
    assert load_budgets(path) == (Budget(metric="mfu", min=0.4),)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no [budget] table"),
        ("[budget]\n", "contains no bound"),
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
        ("[budget]\nbubble_frac = { max = 30 }", "max = 30 is not a share"),
        ("[budget]\nbubble_frac = { max = inf }", "max = inf is not a share"),
        ("[budget]\nbubble_frac = { max = " + "9" * 400 + " }", "is not a share"),
        ("[budget]\nstep_time_ns = { max = inf }", "max = inf: this bound can never fail"),
        ("[budget]\nstep_time_ns = { max = 1e400 }", "max = inf: this bound can never fail"),
        ("[budget]\nstep_time_ns = { max = " + "9" * 400 + " }", "this bound can never fail"),
        ("[budget]\nstep_time_ns = { max = " + "9" * 5000 + " }", "is not TOML"),
        ("[budget]\nmfu = " + "[" * 100_000, "is not TOML"),
        (
            "[budget]\nstep_time_ns = { max = 1e9 }\n" + "# \n" * (6 << 20),
            "too large (limit 16 MiB)",
        ),
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
        {
            "metric": "mfu",
            "min": 0.4,
            "max": None,
            "value": None,
            "passed": None,
            "unknown_because": str(result.utilization.unknown_because),
            "messages": {"unknown_because": message_to_json(result.utilization.unknown_because)},
        }
    ]


def test_every_metric_of_a_budget_is_measured(result):
    """A metric could be allowed in budgets but never be filled in."""
    assert set(METRICS) <= set(result.metrics)


def test_checks_as_a_table(result):
    """A comment on a change would show plain lines in one paragraph."""
    budgets = (Budget(metric="mfu", min=0.4), Budget(metric="bubble_frac", max=0.9))
    rows = to_markdown(check(result, budgets)).split("\n\n")[0].splitlines()
    assert len(rows) == 4
    assert len({row.count("|") for row in rows}) == 1
    assert rows[2] == "| mfu | 0.4 | – | – | unknown |"
    assert rows[3].endswith("| pass |")


def test_the_step_time_can_be_bounded(result):
    """Fails when a run whose MFU nobody can know has no bound on its speed, or it reads as 9.5e+08."""
    (verdict,) = check(result, (Budget(metric="step_time_ns", max=9.5e8),))
    assert verdict.value == result.step_time_ns
    assert verdict.sentence().endswith(f"= {result.step_time_ns:.0f} (must be at most 950000000)")


def test_an_unknown_metric_stands_with_its_reason(result):
    """Fails when the reader is told only that the capture does not tell it."""
    verdicts = check(result, tuple(Budget(metric=name, min=0) for name in METRICS))
    unknown = [verdict for verdict in verdicts if verdict.passed is None]
    assert {verdict.budget.metric for verdict in unknown} == {"mfu", "peak_memory_frac"}
    said = [verdict.sentence() for verdict in unknown]
    assert "the model's shape" in said[0]
    assert said[1].endswith("memory was not recorded")
    assert "memory was not recorded" in to_markdown(verdicts)


def test_every_metric_without_steps_has_a_reason():
    """Fails when a dump, which has no steps, is gated with no word on why nothing is known."""
    known = metrics_without_steps(pd.DataFrame())
    assert set(METRICS) <= set(known.unknown_because)
    assert str(known.unknown_because["mfu"]) == "no steps were recorded"


def test_what_is_lost_of_a_run_stands_below_its_checks(result):
    """Fails when a run whose files break off in the middle passes without a word."""
    verdicts = check(result, (Budget(metric="bubble_frac", max=0.9),))
    limits = ["Rank 0: seg-000001.arrows: block 1 is torn."]
    for text in (to_plain(budgets_document(verdicts, limits)), to_markdown(verdicts, limits)):
        title, lost = text.replace("\n\n", "\n").split("\n")[-2:]
        assert title.endswith("What this result could not see")
        assert lost == f"- {limits[0]}"


def test_slow_ranks_are_repaired_together():
    """Fails when the slowdown is made of the shares of the causes: a slow stage has part of them."""
    layout = ParallelLayout(pp=2, dp=4)

    def work(kind: str, rank: int, step: int, microbatch: int) -> int:
        base = 10 if layout.coordinates(rank)["pp"] == 0 else 18
        return (base + (12 if rank in (1, 2) else 0)) * MS

    account = measure(capture(Job(layout=layout, steps=6), work))
    assert account.slow_ranks() == [1, 2]
    result = diagnosis_of(account)
    repaired = predict(account, parse_changes(["stragglers"], []))
    without = repaired.predicted_ns / repaired.measured_ns
    assert 1 / result.metrics["straggler_slowdown"] == pytest.approx(without)
    shares = sum(cause.share_frac for cause in account.causes("straggler_rank"))
    assert abs(without - (1 - shares)) > 0.01


def test_a_run_without_slow_ranks_has_no_slowdown(result):
    """Fails when a healthy run is charged with what the schedule or jitter costs."""
    assert result.metrics["straggler_slowdown"] == 1.0
