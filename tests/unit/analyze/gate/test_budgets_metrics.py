"""Metrics of budgets beyond those of a diagnosis: their values, and when they are unknown."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.gate.budgets import bounded, check, is_metric, value_of
from meshscope.analyze.wording.message import message
from meshscope.probe.schema.errors import ConfigError
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture(scope="module")
def result():
    """Return the diagnosis of a job of two stages and two tensor-parallel ranks each."""
    layout = ParallelLayout(tp=2, pp=2)
    return diagnose(capture(Job(layout=layout, steps=3), uniform(10 * MS, 20 * MS)))


def test_axes_add_up_to_all_exposed_communication(result):
    """A budget on one axis would bound another axis, or a part of it."""
    axes = [f"exposed_{axis}_frac" for axis in ("tp", "pp", "dp", "cp", "ep", "other")]
    values = [value_of(result, name)[0] for name in axes]
    assert values[0] > 0
    assert sum(values) == pytest.approx(result.metrics["exposed_comm_frac"])


def test_classes_are_shares_of_the_step(result):
    """A budget on a class would hold against another length than the step's."""
    ledger = result.ledger
    expected = ledger["forward"].sum() / ledger["step_ns"].sum()
    assert value_of(result, "forward_frac") == (pytest.approx(expected), "")
    (verdict,) = check(result, (bounded("forward_frac", expected / 2),))
    assert verdict.passed is False


def test_no_time_of_a_class_is_known_only_where_it_would_be_seen(result):
    """A budget on garbage collection would hold for ever in traces that cannot show any."""
    assert value_of(result, "gc_frac") == (0.0, "")
    foreign = replace(result, run={**result.run, "origin": "kineto"})
    value, reason = value_of(foreign, "gc_frac")
    assert value is None
    assert "does not list this time" in str(reason)


def test_what_samples_of_devices_would_tell_is_unknown_without_them(result):
    """A clock that nobody read would be a clock at its full speed."""
    assert value_of(result, "clock_frac") == (None, message("why.not_measured"))


@pytest.mark.parametrize(
    "name",
    ["hfu", "overhead_frac", "peak_memory_bytes", "stage_0_peak_memory_frac"],
)
def test_what_was_not_recorded_is_unknown_with_a_reason(result, name):
    """An unknown figure would pass, or fail without a word."""
    value, reason = value_of(result, name)
    assert value is None
    assert reason


def test_an_unknown_mesh_leaves_the_axes_unknown(result):
    """All communication would be of another axis, and every budget on this one hold."""
    unknown = replace(result, run={**result.run, "tp": None})
    assert value_of(unknown, "exposed_tp_frac") == (None, message("why.no_mesh"))
    assert value_of(unknown, "exposed_tp_wait_frac")[0] is None


def test_memory_of_one_stage(result):
    """A stage that fills its devices would pass because the others do not."""
    memory = pd.DataFrame(
        {"stage": [0, 1], "peak_bytes": [3e9, 5e9], "peak_frac": [0.3, float("nan")]}
    )
    held = replace(result, memory=memory)
    assert value_of(held, "peak_memory_bytes") == (5e9, "")
    assert value_of(held, "stage_0_peak_memory_frac") == (0.3, "")
    assert value_of(held, "stage_1_peak_memory_bytes") == (5e9, "")
    reason = message("why.no_figure_of_stage", stage=1)
    assert value_of(held, "stage_1_peak_memory_frac") == (None, reason)
    missing = value_of(held, "stage_2_peak_memory_frac")[1]
    assert str(missing) == "no memory of a stage 2 was recorded"


def test_figures_of_the_whole_run(result):
    """A bound on throughput would be the most that is allowed, and never fail."""
    use = replace(result.utilization, hfu=0.5, tokens_per_s=1000.0)
    known = replace(result, utilization=use, run={**result.run, "probe_cost_frac": 0.004})
    budgets = (bounded("tokens_per_s", 2000), bounded("hfu", 0.4), bounded("overhead_frac", 0.01))
    assert [verdict.passed for verdict in check(known, budgets)] == [False, True, True]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("exposed_tpp_frac", "exposed_tp_frac"),
        ("gcfrac", "gc_frac"),
        ("token_per_s", "tokens_per_s"),
    ],
)
def test_slips_name_the_nearest_metric(name, near):
    """A budget that nobody checks would look like one that holds."""
    assert not is_metric(name)
    with pytest.raises(ConfigError, match=f"Did you mean {near}"):
        bounded(name, 0.1)


def test_shares_in_percent_are_refused():
    """A bound of 5 on a share would hold for ever."""
    with pytest.raises(ConfigError, match="is not a share"):
        bounded("exposed_tp_frac", 5)
