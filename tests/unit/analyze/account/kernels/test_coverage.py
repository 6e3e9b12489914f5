"""Kernels of some steps tell of these steps, and of no other."""

import numpy as np
import pytest
from tests.deep_run import COMPUTE_NS, MOVE_NS, STEP_NS, add_trace, event, make_run, step_start_ns
from tests.tables import trace_of

from meshscope.analyze import load_trace
from meshscope.analyze.account.kernels.breakdown import device_breakdown
from meshscope.analyze.account.kernels.coverage import common_kernel_steps
from meshscope.analyze.account.kernels.table import kernel_report
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.findings.rules.idle import idle_devices
from meshscope.analyze.output.json import breakdown_to_json


@pytest.fixture
def run(tmp_path):
    """Return a run of two ranks and 20 steps, without traces."""
    return make_run(tmp_path)


def traced(run, *, ranks=(0, 1)):
    """Return the run with steps 4, 5 and 12 traced on some ranks."""
    for rank in ranks:
        add_trace(run, rank, [4, 5])
        add_trace(run, rank, [12])
    return load_trace(run)


def classes(trace, *, rank=0):
    """Return the ledger of one rank by step, without its other columns."""
    table = measure(trace).ledger.by_step
    return table[table["rank"] == rank].set_index("step").drop(columns="rank")


def test_steps_without_kernels_keep_their_ledger(run):
    """Fails if a trace of one step makes the device of all other steps idle."""
    before = classes(load_trace(run))
    after = classes(traced(run))
    others = ~before.index.isin([4, 5, 12])
    assert after[others].equals(before[others])
    assert (before["forward"] == 0.8 * STEP_NS).all()


def test_traced_steps_have_the_ledger_of_their_kernels(run):
    """Fails if the device time of a traced step is that of the host, or its transfers are idle."""
    after = classes(traced(run)).loc[[4, 5, 12]]
    assert (after["compute"] == COMPUTE_NS).all()
    assert (after["forward"] == 0).all()
    # The kernel of the collective begins 10 µs after the other one has ended.
    assert (after["exposed_dp_wire"] == MOVE_NS).all()
    assert (after["unattributed"] == STEP_NS - COMPUTE_NS - MOVE_NS).all()
    assert (after.drop(columns="step_ns").sum(axis=1) == after["step_ns"]).all()


def test_a_step_that_one_rank_lacks_stays_as_it_was(run):
    """Fails if the device time of a rank is compared with the host time of another."""
    before = classes(load_trace(run))
    trace = traced(run, ranks=(1,))
    assert common_kernel_steps(trace, np.array([0, 1])).tolist() == []
    assert classes(trace, rank=1).equals(before)


def test_a_capture_in_one_piece_has_kernels_in_all_steps():
    """Fails if foreign traces are taken for traces of single steps."""
    trace = trace_of(step=[{"start_ns": 0, "dur_ns": 10}])
    assert common_kernel_steps(trace, np.array([0])) is None


def test_time_between_traces_is_not_idle(run):
    """Fails if the steps between two traces count as a device that does nothing."""
    trace = traced(run)
    own = device_breakdown(trace).set_index("rank").loc[0]
    # From the first kernel of step 4 to the last end of step 5, and within step 12.
    within_step_ns = 10_000 + COMPUTE_NS + MOVE_NS
    assert own["span_ns"] == STEP_NS + 2 * within_step_ns
    assert own["computation_ns"] == 3 * COMPUTE_NS
    assert own["exposed_communication_ns"] == 3 * MOVE_NS
    assert own["idle_ns"] == own["span_ns"] - 3 * (COMPUTE_NS + MOVE_NS)
    row = kernel_report(trace).ranks.set_index("rank").loc[0]
    assert (row["span_ns"], row["idle_ns"]) == (own["span_ns"], own["idle_ns"])
    assert row["starved_ns"] < own["idle_ns"]
    assert row["step_ns"] == 3 * STEP_NS


def test_one_traced_step_can_be_asked_for(run):
    """Fails if a traced step is not found, or one that was not traced gives zeros."""
    trace = traced(run)
    found = breakdown_to_json(trace, 12)
    assert found["ranks"]["1"]["computation_ns"] == COMPUTE_NS
    assert any("kernels are known for" in limit.lower() for limit in found["limits"])
    with pytest.raises(Exception, match="step 13 has no device events"):
        breakdown_to_json(trace, 13)


def test_kernels_have_the_axis_and_the_phase_that_the_probe_saw(run):
    """Fails if kernels of a run are not known from what the probe recorded around their launches."""
    kernels = kernel_report(traced(run)).kernels.set_index("name")
    assert kernels.loc["ncclDevKernel_AllReduce", "axis"] == "dp"
    assert kernels.loc["compute_kernel", "phase"] == "forward"
    assert kernels.loc["compute_kernel", "count"] == 6


def test_an_idle_device_is_found_in_the_traced_steps_only(run):
    """Fails if idleness is a share of steps of which nothing is known."""
    assert list(idle_devices(measure(load_trace(run)))) == []
    found = list(idle_devices(measure(traced(run))))
    idle = 1 - (COMPUTE_NS + MOVE_NS) / STEP_NS
    # What is left of the named causes is too small for a finding of its own.
    assert sum(finding.cost_frac for finding in found) == pytest.approx(idle, abs=0.01)
    for finding in found:
        assert any("steps 4-5 and 12" in str(one) for one in finding.evidence)


def test_kernels_are_cut_at_the_border_of_what_was_traced(run):
    """Fails if the last kernel of a traced step claims time of the next one, which was not."""
    before = classes(load_trace(run))
    add = {"steps": [7], "events": _late_kernel(7)}
    for rank in (0, 1):
        add_trace(run, rank, **add)
    after = classes(load_trace(run))
    assert after.loc[7, "compute"] == STEP_NS // 10
    assert after.loc[8].equals(before.loc[8])


def _late_kernel(step):
    """Return a kernel that begins in the last tenth of a step and ends in the next one."""
    start_ns = step_start_ns(step) + 9 * STEP_NS // 10
    place = {"correlation": 1, "External id": 1}
    return [
        event("cpu_op", "aten::op", start_ns - 30_000, 20_000, **{"External id": 1}),
        event("cuda_runtime", "cudaLaunchKernel", start_ns - 20_000, 1_000, **place),
        event("kernel", "late", start_ns, STEP_NS // 2, device=0, stream=7, **place),
    ]
