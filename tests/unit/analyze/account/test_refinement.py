"""Parts of compute, on literal kernels."""

from dataclasses import replace

import pytest
from tests.tables import trace_of
from tests.texts import texts

from meshscope.analyze.findings.diagnosis import diagnose

MS = 1_000_000
SHAPE = {"num_layers": 1, "hidden_size": 1, "seq_len": 1, "vocab_size": 0, "parameters": 1}


FULL_HZ = 2e9


def sampled(**columns):
    """Return the tables of a device of which ten samples are alike."""
    rows = [{"uuid": "GPU-0", "time_ns": 10 * MS * at, **columns} for at in range(10)]
    return {
        "device_sample": rows,
        "device": [{"uuid": "GPU-0", "name": "some device", "max_clock_hz": FULL_HZ}],
        "rank_device": [{"rank": 0, "uuid": "GPU-0"}],
    }


def bars_of(*, beside_ns, shapes="[8,8]", untraced=0, devices=None, **run):
    """Return the waterfall of a rank with 4 kernels alone and 2 beside communication.

    After that step come some of which the kernels are not known.
    """
    lengths = [4 * MS] * 4 + [beside_ns] * 2
    starts = [0, 10 * MS, 20 * MS, 30 * MS, 50 * MS, 70 * MS]
    kernels = [
        {"start_ns": start, "dur_ns": dur, "op_id": n, "name_id": 0}
        for n, (start, dur) in enumerate(zip(starts, lengths, strict=True))
    ]
    moving = [
        {"start_ns": start, "dur_ns": 15 * MS, "category": "communication", "stream": 2}
        for start in starts[4:]
    ]
    ops = [
        {"op_id": n, "name_id": 0, "shapes": shapes, "start_ns": 0, "dur_ns": 1} for n in range(6)
    ]
    known = {**SHAPE, "world_size": 1, "tokens_per_step": 1, "peak_flops": 1e5, **run}
    length = 100 * MS
    steps = [{"step": n, "start_ns": n * length, "dur_ns": length} for n in range(1 + untraced)]
    trace = trace_of(run=known, step=steps, kernel=kernels + moving, op=ops, **(devices or {}))
    if untraced:
        trace = replace(trace, kernel_steps={0: (0,)})
    result = diagnose(trace)
    return {bar.name: bar.dur_ns for bar in result.waterfall}, result


def test_kernels_beside_communication_lose_what_they_take_longer():
    """Overlap would look free although it slows the kernels that it hides behind."""
    bars, result = bars_of(beside_ns=7 * MS)
    assert bars["contention"] == pytest.approx(2 * 3 * MS)
    compute = bars["useful"] + bars["contention"] + bars["kernel_inefficiency"]
    assert compute == pytest.approx((4 * 4 + 2 * 7) * MS)
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)


def test_what_cannot_be_separated_is_said():
    """A share of zero would be shown for what nobody could see."""
    bars, result = bars_of(beside_ns=7 * MS, shapes=None)
    assert "contention" not in bars
    assert any("contention with communication" in limit for limit in texts(result.limits))
    _, result = bars_of(beside_ns=7 * MS)
    assert not any("contention with communication" in limit for limit in texts(result.limits))
    assert any("memory-bandwidth" in limit for limit in texts(result.limits))


@pytest.mark.parametrize("peak", [10.0, 400.0], ids=["above 100 %", "more than was computed"])
def test_a_wrong_peak_is_refused_and_makes_no_negative_class(peak):
    """Compute faster than the stated peak would be shown as a result, and pass a gate."""
    bars, result = bars_of(beside_ns=4 * MS, peak_flops=peak)
    assert result.utilization.mfu is None
    assert "impossible" in str(result.utilization.unknown_because)
    assert min(bars.values()) >= 0
    assert "useful" not in bars
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)


def test_losses_that_overlap_are_no_negative_rest():
    """The clock's bar is the most that it can cost: with contention it may exceed what was computed."""
    devices = sampled(clock_hz=0.1 * FULL_HZ)
    bars, result = bars_of(beside_ns=7 * MS, devices=devices, peak_flops=1e3)
    assert bars["kernel_inefficiency"] == pytest.approx(0, abs=1)
    assert bars["useful"] == pytest.approx(18 * MS)
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)
    assert any("scaled to fit" in limit for limit in texts(result.limits))


def test_contention_is_a_share_of_the_steps_with_kernels():
    """Fails if steps that were not traced count as steps without contention, or nobody says so."""
    whole, _ = bars_of(beside_ns=7 * MS)
    partly, result = bars_of(beside_ns=7 * MS, untraced=3)
    assert partly["contention"] == pytest.approx(whole["contention"])
    assert any("traced in depth" in limit for limit in texts(result.limits))


COMPUTE_NS = (4 * 4 + 2 * 7) * MS


def test_a_low_clock_is_a_bar_of_its_own():
    """Fails when a job at its power cap looks as if its kernels were bad."""
    bars, result = bars_of(beside_ns=7 * MS, devices=sampled(clock_hz=0.75 * FULL_HZ))
    assert bars["clock"] == pytest.approx(0.25 * COMPUTE_NS)
    plain, _ = bars_of(beside_ns=7 * MS)
    rest = plain["kernel_inefficiency"] - bars["kernel_inefficiency"]
    assert rest == pytest.approx(bars["clock"])
    assert (bars["useful"], bars["contention"]) == (plain["useful"], plain["contention"])
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)
    assert any("highest clock of the device" in limit for limit in texts(result.limits))
    assert any("its bar is an upper bound" in limit for limit in texts(result.limits))


def test_memory_bandwidth_is_a_bar_where_it_was_counted():
    """Fails when time that waits for memory is said to wait for the clock, or for nobody."""
    devices = sampled(clock_hz=0.75 * FULL_HZ, dram_active_frac=0.9, tensor_active_frac=0.4)
    bars, result = bars_of(beside_ns=7 * MS, devices=devices)
    assert bars["memory_bound"] == pytest.approx(0.5 * COMPUTE_NS)
    assert bars["clock"] == 0.0
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)
    assert not any("counted as" in limit.lower() for limit in texts(result.limits))


def test_unknown_is_not_zero():
    """Fails when a run without samples says that its clocks cost nothing."""
    bars, result = bars_of(beside_ns=7 * MS)
    assert not {"clock", "memory_bound"} & bars.keys()
    assert result.ledger[["clock", "memory_bound"]].isna().all(axis=None)
    assert (
        sum(
            "unknown: no node agent has sampled the devices" in limit
            for limit in texts(result.limits)
        )
        == 1
    )
    full, result = bars_of(beside_ns=7 * MS, devices=sampled(clock_hz=FULL_HZ))
    assert full["clock"] == 0.0
    assert any("without the bytes" in limit for limit in texts(result.limits))


def test_without_mfu_the_clock_is_taken_out_of_its_classes():
    """Fails when a clock is told only of jobs whose model is known."""
    devices = sampled(clock_hz=0.75 * FULL_HZ)
    bars, result = bars_of(beside_ns=7 * MS, devices=devices, parameters=None)
    assert bars["clock"] == pytest.approx(0.25 * COMPUTE_NS)
    assert bars["compute"] == pytest.approx(0.75 * COMPUTE_NS)
    assert any("counted as compute: " in limit.lower() for limit in texts(result.limits))
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)


def test_steps_without_samples_are_counted():
    """Fails when an agent that ran for one step speaks for all."""
    devices = sampled(clock_hz=0.75 * FULL_HZ)
    _, result = bars_of(beside_ns=7 * MS, devices=devices, untraced=49)
    # The samples of 0.1 s hold for 2 s more, in which 20 of 50 steps end.
    assert any("Clock is known in 4" in limit for limit in texts(result.limits))
