"""A slow rank of a job with torch's DDP, whose reductions C++ code issues and waits for."""

from dataclasses import replace

import pytest
from tests.texts import texts
from tests.truth.live.cases import WINDOW
from tests.truth.live.job import run_job
from tests.truth.live.judge import judge_run
from tests.truth.live.replicated import LAYERS
from tests.truth.live.suite import REPLICAS, replicated

from meshscope.analyze import diagnose, load_trace

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.alone]

STEPS = 1 + 20 * WINDOW


@pytest.mark.parametrize("slow_pass", ["forward", "backward"])
def test_the_slow_rank_is_named_and_priced(tmp_path, slow_pass):
    """Fails when the wait for a slow rank hides in the backward of the others."""
    case = replace(replicated(1, slow_pass), layout=REPLICAS, steps=STEPS)
    run_dir, truth_dir = run_job(case, tmp_path)
    trace = load_trace(run_dir)
    collectives = trace.frame("collective")
    in_step = collectives[(collectives["step"] >= 1) & (collectives["kind"] == "all_reduce")]
    assert len(in_step) >= REPLICAS.world_size * (STEPS - 1) * LAYERS
    assert in_step["end_ns"].notna().mean() > 0.95
    verdict = judge_run(case, run_dir, truth_dir)
    assert (verdict.found, verdict.is_located) == ("straggler_rank", True)
    # As unsure as its truth is, which never makes half of it right.
    room_frac = min(max(0.25 * verdict.true_frac, 2 * verdict.error_frac), 0.5 * verdict.true_frac)
    assert verdict.gain_frac == pytest.approx(verdict.true_frac, abs=room_frac)
    result = diagnose(trace)
    (straggler,) = (one for one in result.findings if one.kind == "straggler_rank")
    assert any(f"The excess is in {slow_pass}" in str(line) for line in straggler.evidence)
    assert not texts(result.unknown_causes)
