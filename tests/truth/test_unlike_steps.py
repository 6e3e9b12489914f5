"""Jobs whose steps are not all alike: a slow rank is costed as a paired run says."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest
from tests.synthetic import MS, Job, capture_of
from tests.texts import texts

from meshscope.analyze.explain.whatif import parse_changes, predict
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.wording.quantities import percent
from meshscope.probe.schema.layout import ParallelLayout

DP4, DP2 = ParallelLayout(dp=4), ParallelLayout(dp=2)
WIRE_NS = MS // 10


def passes(step, forward_ns, backward_ns):
    """Return one forward and one backward pass."""
    return [
        ("work", forward_ns, step, "forward", 0, 0),
        ("work", backward_ns, step, "backward", 0, 0),
    ]


def reduced(step, layout, kind="all_reduce"):
    """Return an operation of all ranks."""
    group = ("dp-0", tuple(range(layout.world_size)))
    return [("collective", step, group, "dp", kind, 1 << 20, WIRE_NS)]


def averaging(extra_ns, every=5, steps=23, jitter=0.0):
    """Return the capture of ranks that average their models in each 5th step; rank 2 is slow."""
    programs = []
    for rank in range(4):
        noise = np.random.default_rng([rank]).standard_normal(steps) * jitter
        ops = []
        for step in range(steps):
            forward = int((10 + noise[step]) * MS) + (extra_ns if rank == 2 else 0)
            ops += passes(step, forward, 20 * MS)
            ops += reduced(step, DP4) if step % every == every - 1 else []
            ops.append(("end", step, 4096))
        programs.append(ops)
    return capture_of(Job(layout=DP4, microbatches=1), programs)


def alternating(extra_ns, ratio=3, steps=40):
    """Return the capture of two models that train in turn; rank 1 is slow in the second's steps."""
    programs = []
    for rank in range(2):
        ops = []
        for step in range(steps):
            is_second = step % ratio == ratio - 1
            slow_ns = extra_ns if rank == 1 and is_second else 0
            ops += passes(step, 10 * MS + slow_ns, 20 * MS) + reduced(step, DP2)
            ops += reduced(step, DP2, "reduce_scatter") if is_second else []
            ops.append(("end", step, 4096))
        programs.append(ops)
    return capture_of(Job(layout=DP2, microbatches=1), programs)


def slow_ranks(result):
    """Return the findings about slow ranks."""
    return [found for found in result.findings if found.kind == "straggler_rank"]


def test_a_slow_rank_between_seldom_averages_costs_what_it_takes_in_every_step():
    """Fails when only the steps with communication are repaired: the cost is a fifth then."""
    result = diagnose(averaging(15 * MS))
    (found,) = slow_ranks(result)
    healthy_ns = 30 * MS + WIRE_NS / 5
    assert found.where["rank"] == 2
    assert result.step_time_ns == pytest.approx(healthy_ns + 15 * MS, rel=1e-6)
    assert found.removal_gain_frac == pytest.approx(15 * MS / result.step_time_ns, rel=1e-3)
    assert result.waiting.bubble_ns == pytest.approx(0, abs=MS / 1000)


def test_what_is_outside_of_whole_cycles_is_left_out_and_said():
    """Fails when the slow steps at both ends count, for which nobody waits in the capture."""
    result = diagnose(averaging(15 * MS))
    assert sorted(set(result.ledger["step"])) == list(range(5, 20))
    assert any(
        "7 before the first whole cycle and after the last" in limit
        for limit in texts(result.limits)
    )


def test_too_few_cycles_keep_all_steps_and_say_what_that_hides():
    """Fails when an average in the middle of a capture throws most of it away, or nothing is said."""
    result = diagnose(averaging(15 * MS, every=20))
    assert len(set(result.ledger["step"])) == 22
    assert any("too few for whole cycles" in limit for limit in texts(result.limits))


def test_steps_of_one_cycle_are_no_independent_witnesses():
    """Fails when the error of a prediction is taken from single steps: it is 0 between cycles."""
    account = measure(averaging(15 * MS, jitter=0.01))
    prediction = predict(account, parse_changes(["rank=2"], []))
    assert prediction.predicted_ns == pytest.approx(30 * MS, rel=0.01)
    assert prediction.error_ns < 0.5 * MS


@pytest.mark.parametrize("ratio", [2, 3, 4])
def test_a_rank_that_is_slow_in_the_rarer_kind_of_step_is_named_and_costed(ratio):
    """Fails when a rank is compared in its most frequent kind of step only."""
    result = diagnose(alternating(12 * MS, ratio))
    (found,) = slow_ranks(result)
    clean = diagnose(alternating(0, ratio))
    gain = (result.step_time_ns - clean.step_time_ns) / result.step_time_ns
    assert found.where["rank"] == 1
    assert found.removal_gain_frac == pytest.approx(gain, rel=1e-3)
    assert not any("other operations" in limit for limit in texts(result.limits))


def test_equal_ranks_of_alternating_steps_are_not_blamed():
    """Fails when the difference between kinds of steps counts as one between ranks."""
    assert not slow_ranks(diagnose(alternating(0)))


def sampled(kept):
    """Return the capture of some of the steps of such ranks only."""
    trace = averaging(15 * MS)
    tables = {
        name: table
        if "step" not in table.column_names
        else table.filter(pa.compute.is_in(table["step"], pa.array(kept, pa.int64())))
        for name, table in trace.tables.items()
    }
    return replace(trace, tables=tables)


def test_waiting_for_steps_that_are_not_in_the_capture_is_reported():
    """Fails when a wait of four steps' slowness is passed off as the whole account of one step."""
    with_average = texts(diagnose(sampled([4, 9, 14, 19])).limits)
    without = texts(diagnose(sampled([3, 8, 13, 18])).limits)
    # Of four ranks three wait for what the fourth was slow in the four steps before, and in this.
    length = 30 * MS + (1 + 3 * 5) / 4 * 15 * MS + WIRE_NS
    wait = 3 / 4 * 4 * 15 * MS / length
    assert any(
        f"further apart than they end them. {percent(wait)}" in limit for limit in with_average
    )
    assert any("further apart than they began them" in limit for limit in without)
    assert not any("further apart" in limit for limit in texts(diagnose(averaging(15 * MS)).limits))
