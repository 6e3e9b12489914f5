"""Whatever was sampled of devices, the refined ledger adds up and takes out no more than there is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tables import trace_of

from meshscope.analyze.account.devices.steps import device_steps
from meshscope.analyze.account.ledger.build import build_ledger
from meshscope.analyze.account.refinement import SLOWED, refine_ledger
from meshscope.analyze.align.communication.events import communication_events
from meshscope.analyze.align.steps.windows import step_windows
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.tables.classes import CLASSES, REFINED

LENGTH = 10**9
RANKS, STEPS = 4, 3
SHAPE = {"num_layers": 1, "hidden_size": 1, "seq_len": 1, "vocab_size": 0, "parameters": 1}
FRACTIONS = st.none() | st.floats(0.0, 1.0)
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {
            "uuid": st.sampled_from([f"GPU-{rank}" for rank in range(RANKS)]),
            "time_ns": st.integers(-LENGTH, (STEPS + 1) * LENGTH),
            "clock_hz": st.none() | st.floats(0.0, 3e9),
            "sm_util_frac": FRACTIONS,
            "dram_active_frac": FRACTIONS,
            "tensor_active_frac": FRACTIONS,
            "throttle_mask": st.none() | st.integers(0, 0xFF),
        }
    ),
    max_size=40,
)
FULL = st.none() | st.floats(1e8, 3e9)
SPANS = st.lists(
    st.fixed_dictionaries(
        {
            "rank": st.integers(0, RANKS - 1),
            "step": st.integers(0, STEPS - 1),
            "kind": st.sampled_from(["forward", "backward", "recompute", "optimizer", "gc"]),
            "start_ns": st.integers(0, STEPS * LENGTH),
            "dur_ns": st.integers(0, 2 * LENGTH),
        }
    ),
    max_size=12,
)


def capture(samples, full, spans, peak):
    """Return a capture of four ranks on sampled devices."""
    ranks = range(RANKS)
    run = {**SHAPE, "world_size": RANKS, "tokens_per_step": 1, "peak_flops": peak}
    return trace_of(
        run=run,
        step=[
            {"rank": rank, "step": step, "start_ns": step * LENGTH, "dur_ns": LENGTH}
            for rank in ranks
            for step in range(STEPS)
        ],
        span=spans,
        device_sample=samples,
        device=[{"uuid": f"GPU-{r}", "name": "some device", "max_clock_hz": full} for r in ranks],
        rank_device=[{"rank": r, "uuid": f"GPU-{r}"} for r in ranks],
    )


@settings(max_examples=60)
@given(SAMPLES, FULL, SPANS)
def test_the_refined_classes_sum_to_every_step(samples, full, spans):
    """Fails when time is made or lost by taking clocks out, or a class falls below zero."""
    trace = capture(samples, full, spans, 10.0)
    windows = step_windows(trace)
    ledger = build_ledger(trace, windows, communication_events(trace, windows)).by_step
    devices = device_steps(trace, windows, 10.0)
    refined = refine_ledger(ledger, devices)
    classes = [*CLASSES, *REFINED]
    assert (refined[classes].fillna(0.0) >= 0).all(axis=None)
    error = (refined[classes].sum(axis=1) - refined["step_ns"]).abs()
    assert (error <= 1e-9 * refined["step_ns"]).all()
    assert refined["clock"].isna().equals(devices.frame["clock_lost_frac"].isna())
    taken = refined[list(REFINED)].sum(axis=1)
    assert np.allclose(ledger[list(SLOWED)].sum(axis=1), refined[list(SLOWED)].sum(axis=1) + taken)
    untouched = [name for name in CLASSES if name not in SLOWED]
    assert refined[untouched].equals(ledger[untouched])


@settings(max_examples=15)
@given(SAMPLES, FULL, SPANS, st.none() | st.floats(1e-3, 1e6))
def test_the_waterfall_sums_to_one(samples, full, spans, peak):
    """Fails when the bars of a sampled job leave a gap, with MFU or without."""
    result = diagnose(capture(samples, full, spans, peak))
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1, abs=1e-9)
    assert all(np.isfinite(bar.frac) for bar in result.waterfall)
    costs = [f.cost_frac for f in result.findings if f.cost_frac is not None]
    assert np.isfinite(costs).all()
