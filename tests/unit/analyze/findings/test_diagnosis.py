"""The account from end to end: identities that hold for every run, and thin captures."""

from dataclasses import replace

import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture, uniform
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.tables.classes import CLASSES
from meshscope.probe.schema.errors import TraceFormatError
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

LAYOUT = ParallelLayout(tp=2, pp=2, dp=2)


def work(kind, rank, step, microbatch):
    """Return work with a slow rank 5."""
    return (15 if rank == 5 else 10) * (1 if kind == "forward" else 2) * MS


@pytest.fixture(scope="module")
def trace():
    """Return a job whose rank 5 is slow by half."""
    return capture(Job(layout=LAYOUT, steps=4), work)


@pytest.fixture(scope="module")
def result(trace):
    """Return its diagnosis."""
    return diagnose(trace)


def kept(trace, name, chosen):
    """Return the trace with only the chosen rows of a table."""
    frame = trace.frame(name)
    table = pa.Table.from_pandas(frame[chosen(frame)], preserve_index=False)
    return replace(trace, tables={**trace.tables, name: TABLES[name].conform(table)}, _frames={})


def stragglers(result):
    """Return the ranks that are named as stragglers."""
    return [f.where["rank"] for f in result.findings if f.kind == "straggler_rank"]


def test_waterfall_sums_to_one(result):
    """Time would appear or vanish."""
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-12)


def test_ledger_sums_to_every_step(result):
    """A single rank's step could be wrong while the mean is right."""
    sums = result.ledger[list(CLASSES)].sum(axis=1)
    assert (sums - result.ledger["step_ns"]).abs().max() == 0


def test_shares_sum_to_the_loss_against_the_ideal(result):
    """The causes would explain more, or less, than was lost."""
    shares = sum(cause.share_frac for cause in result.causes)
    straggler = next(c for c in result.causes if c.kind == "straggler_rank")
    assert shares == pytest.approx(straggler.share_frac)
    for cause in result.causes:
        both = cause.direct_ns + cause.induced_wait_ns
        assert both == pytest.approx(cause.share_frac * result.step_time_ns, abs=1e-3)


def test_an_unchanged_replay_gives_the_measured_step(result):
    """Counterfactuals would be compared with a run that never happened."""
    assert result.model_error_frac == pytest.approx(0, abs=1e-12)


def test_header_says_what_was_analysed(result):
    """A reader could not tell which run and steps the figures are about."""
    run = result.run
    assert (run["tp"], run["pp"], run["dp"], run["captured_ranks"]) == (2, 2, 2, 8)
    assert (run["steps"], run["first_step"], run["last_step"]) == (3, 1, 3)


def test_mfu_splits_compute_into_useful_and_the_rest(trace):
    """The waterfall would not start from what the model needs."""
    known = {
        "num_layers": 2,
        "hidden_size": 8,
        "seq_len": 16,
        "vocab_size": 10,
        "parameters": 1000,
        "tokens_per_step": 4096,
        "peak_flops": 1e8,
        "peak_source": "stated",
    }
    result = diagnose(replace(trace, run={**trace.run, **known}, _frames={}))
    bars = {bar.name: bar.frac for bar in result.waterfall}
    assert bars["useful"] == result.utilization.mfu
    assert "forward" not in bars
    assert sum(bars.values()) == pytest.approx(1, abs=1e-12)


def test_order_of_findings_is_by_severity_then_cost(result):
    """The first thing to look at would not come first."""
    rank = {"critical": 0, "warning": 1, "info": 2}
    grades = [rank[finding.severity] for finding in result.findings]
    assert grades == sorted(grades)
    assert stragglers(result) == [5]


def test_an_unknown_layout_still_finds_the_rank(trace):
    """A run without a stated mesh would get no answer."""
    result = diagnose(replace(trace, layout=None, _frames={}))
    assert stragglers(result) == [5]
    assert str(result.bubble.unknown_because) == "the layout is not known"
    assert set(result.stragglers["pp"]) == {-1}


def test_a_part_of_the_ranks_still_gives_an_account(trace):
    """A lost host would take the whole analysis with it, silently."""
    part = trace
    for name in ("step", "span", "collective", "p2p"):
        part = kept(part, name, lambda frame: frame["rank"] >= 4)
    result = diagnose(replace(part, ranks=(4, 5, 6, 7), _frames={}))
    assert stragglers(result) == [5]
    absent = [f.where["ranks"] for f in result.findings if f.kind == "missing_data"]
    assert absent == [[0, 1, 2, 3]]
    assert any("without the other end" in limit for limit in texts(result.limits))


def test_ranks_in_any_order_give_the_same_answer(trace, result):
    """The order in which ranks are read would decide who is blamed."""
    tables = {
        name: TABLES[name].conform(
            pa.Table.from_pandas(
                table.to_pandas().sort_values("rank", ascending=False, kind="stable"),
                preserve_index=False,
            )
        )
        for name, table in trace.tables.items()
        if "rank" in table.column_names
    }
    turned = diagnose(replace(trace, tables={**trace.tables, **tables}, _frames={}))
    assert [c.share_frac for c in turned.causes] == pytest.approx(
        [c.share_frac for c in result.causes], abs=1e-12
    )
    assert turned.stragglers["rank"].tolist() == result.stragglers["rank"].tolist()


def test_an_empty_capture_is_refused_with_a_remedy():
    """A capture of nothing would be a traceback."""
    with pytest.raises(TraceFormatError, match="Record at least one whole step"):
        diagnose(trace_of())


def test_a_host_capture_of_a_gpu_run_says_what_its_times_are():
    """If this fails, launch times of a GPU run are read as the times of its kernels."""
    job = Job(layout=ParallelLayout(dp=2), steps=3)
    work = uniform(10 * MS, 20 * MS)
    said = [
        texts(diagnose(replace(capture(job, work, device_name=name), origin="meshscope")).limits)
        for name in ("NVIDIA H200", "CPU x86_64")
    ]
    assert [any("launched" in limit for limit in limits) for limits in said] == [True, False]


def test_exposed_communication_is_unknown_where_its_end_was_not_seen():
    """If this fails, a gate passes a run whose transfers hide inside the backward pass."""
    trace = capture(Job(layout=ParallelLayout(dp=2), steps=3), uniform(10 * MS, 20 * MS))
    rows = trace.tables["collective"].to_pylist()
    unseen = {"end_ns": None, "wait_start_ns": None, "wait_end_ns": None, "source": "host_issue"}
    blind = TABLES["collective"].conform(pa.Table.from_pylist([row | unseen for row in rows]))
    tables = {**trace.tables, "collective": blind}
    hidden = diagnose(replace(trace, tables=tables, _frames={}))
    assert hidden.metrics["exposed_comm_frac"] is None
    assert diagnose(trace).metrics["exposed_comm_frac"] > 0
