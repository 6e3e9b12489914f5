"""Real traces with published or measured answers (see the README beside them)."""

import numpy as np
import pytest
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.account.kernels.table import kernel_report
from meshscope.analyze.tables.classes import CLASSES, COMPUTE_CLASSES, WAIT_CLASSES, WIRE_CLASSES
from meshscope.probe.schema.errors import MeshscopeError

pytestmark = pytest.mark.traces


@pytest.fixture(scope="module")
def production(traces_dir):
    """Return the diagnosis of trace ST, whose published cause is its last stage."""
    return diagnose(load_trace(traces_dir / "straggler_analysis" / "trace-ST.parquet"))


@pytest.fixture(scope="module")
def four_ranks(traces_dir):
    """Return the diagnosis of four real profiler traces, of which rank 3 comes last."""
    return diagnose(load_trace(traces_dir / "amd_hpctraining" / "split"))


def test_the_published_cause_comes_first(production):
    """A labelled production job would be diagnosed wrongly.

    Its four microbatches pass the last stage one after the other; the others fill and drain. With equal
    stages seven passes of the mean length follow one another.
    """
    forward, backward = np.array([67, 67, 67, 139.7]), np.array([143, 143, 144, 203.5])
    passes = forward + backward
    saved_ms = passes[:3].sum() + 4 * passes[3] - 7 * passes.mean()
    first = production.findings[0]
    assert first.kind == "stage_imbalance"
    assert first.where["stage"] == 3
    assert first.removal_gain_frac == pytest.approx(saved_ms / 2214.448, abs=0.005)
    assert not [f for f in production.findings if f.kind == "straggler_rank"]


def test_measured_steps_are_replayed_as_they_were(production):
    """The counterfactuals would start from a run that never happened."""
    assert production.step_time_ns == pytest.approx(2.214448e9, rel=1e-6)
    assert abs(production.model_error_frac) < 1e-9


def test_ledger_of_the_first_eight_steps(production):
    """Shares that were worked out independently would not come out.

    Compute, optimizer, gaps, and the sums of all waiting and of all transfers agree to
    0.1 points. Their split by axis follows another rule here (of two operations that are
    open together the one that ends last has the instant), so it is not compared.
    """
    ledger = production.ledger
    steps = sorted(ledger["step"].unique())[:8]
    first = ledger[ledger["step"].isin(steps)]
    total = first["step_ns"].sum()
    assert ((first[list(CLASSES)].sum(axis=1) - first["step_ns"]).abs() <= 1e-9 * total).all()

    def percent(*names):
        return 100 * first[list(names)].sum().sum() / total

    compute = [name for name in COMPUTE_CLASSES if name != "optimizer"]
    assert percent(*compute) == pytest.approx(42.7, abs=0.1)
    assert percent("optimizer") == pytest.approx(1.8, abs=0.1)
    assert percent("unattributed") == pytest.approx(1.9, abs=0.1)
    assert percent(*WAIT_CLASSES) == pytest.approx(11.4 + 36.1, abs=0.1)
    assert percent(*WIRE_CLASSES) == pytest.approx(5.9 + 0.2, abs=0.1)


def test_waterfall_of_a_real_run_sums_to_one(production, four_ranks):
    """Fails when time counts twice where real timelines overlap as made-up ones do not."""
    for result in (production, four_ranks):
        assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)


def test_the_rank_that_comes_last_is_named(four_ranks):
    """A real straggler would be missed, or a rank that waits be blamed."""
    first = four_ranks.findings[0]
    assert first.kind == "straggler_rank"
    assert first.where["rank"] == 3
    assert [f.where["rank"] for f in four_ranks.findings if f.kind == "straggler_rank"] == [3]


def test_waits_of_the_four_ranks(four_ranks):
    """Waiting by duration and by arrival would not agree with what was measured by hand."""
    table = four_ranks.stragglers.sort_values("rank")
    assert (table["wait_ns"] / 1e6).tolist() == pytest.approx([60.881, 35.953, 37.315, 0], abs=0.1)
    assert (table["early_ns"] / 1e6).tolist() == pytest.approx([60.9, 36.0, 37.4, 0], abs=0.1)
    assert table["arrived_last"].tolist() == [0, 0, 0, 15]
    assert table["collectives"].tolist() == [15] * 4


def test_eight_ranks_without_metadata(traces_dir):
    """Old traces would be matched wrongly, and another rank be blamed."""
    result = diagnose(load_trace(traces_dir / "param"))
    table = result.stragglers.sort_values("rank")
    waits = [5.58, 11.12, 3.28, 9.57, 6.37, 6.04, 3.34, 1.53]
    assert (table["wait_ns"] / 1e6).tolist() == pytest.approx(waits, abs=0.02)
    assert table["arrived_last"].tolist() == [0, 0, 0, 0, 1, 2, 0, 5]


@pytest.mark.parametrize(
    ("trace", "idle", "bound", "long"),
    [
        ("tracelens/b200/eager_trace.json.gz", 0.867, 0.454, "aten::linear"),
        ("hta/nccl_parser_config/nccl_data.json.gz", 0.764, 0.414, "aten::unflatten_dense_tensors"),
    ],
)
def test_idle_devices_are_launch_bound(traces_dir, trace, idle, bound, long):
    """A device that idles for its host would look busy, or idle for launches alone."""
    trace = load_trace(traces_dir / trace)
    idling = [finding for finding in diagnose(trace).findings if finding.cause is not None]
    found = {finding.cause: finding for finding in idling}
    (of_device,) = kernel_report(trace).ranks["launch_bound_frac"]
    assert of_device == pytest.approx(bound, abs=0.001)
    assert found["launching"].kind == "launch_bound"
    assert found["launching"].cost_frac == pytest.approx(of_device, abs=0.02)
    # Operators of 2 and of 15 ms before their first launch are no overhead of launches.
    assert str(found["long_operator"].evidence[1]).startswith(long)
    # What is below 1 % together has no finding.
    assert idle - 0.01 < sum(one.cost_frac for one in idling) < idle + 0.001
    assert "missing_data" in {finding.kind for finding in diagnose(trace).findings}


@pytest.mark.parametrize(
    "trace",
    [
        "hta/cpu_only",
        "hta/distributed_info_unavailable",
        "hta/rank_unavailable",
        "hta/rank_non_gpu",
        "hta/ns_resolution_trace",
        "hta/trace_filter",
    ],
)
def test_thin_traces_give_a_stated_limit_or_one_clear_error(traces_dir, trace):
    """A damaged or empty trace would end in a traceback, or in a confident answer."""
    try:
        result = diagnose(load_trace(traces_dir / trace))
    except MeshscopeError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        assert refusal.where
        assert "\n" not in str(refusal)
        return
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)
    assert texts(result.limits)
