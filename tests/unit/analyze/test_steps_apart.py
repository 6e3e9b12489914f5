"""Captures that hold some steps only: a fault costs in them what it costs in all.

A long run is recorded in full in its first steps and in one of a hundred later on, and in windows
where recording all is too dear. What ranks bring along from the step before is not recorded then.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.synthetic import MS, Job, capture

from meshscope.analyze.explain.replay.effect_folding import EdgeEffect
from meshscope.analyze.explain.replay.scenarios import step_lengths
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

STEPS, SLOW = 60, 3
JOB = Job(layout=ParallelLayout(pp=4, dp=2), steps=STEPS, microbatches=6)
KEPT = {
    "windows": [step for step in range(STEPS) if step // 10 % 2 == 0],
    "first and some": [step for step in range(STEPS) if step < 20 or step % 10 == 0],
    "single": list(range(0, STEPS, 7)),
}
CLOSE = 0.002


def pass_ns(kind, rank, step, microbatch, slow):
    """Return the length of a pass, the slow rank's half as long again."""
    seed = [7, rank, step, microbatch, kind == "forward"]
    scatter = 1 + 0.02 * np.random.default_rng(seed).normal()
    return int((10 if kind == "forward" else 20) * MS * scatter * (1.5 if slow else 1.0))


@lru_cache
def job(slow_rank):
    """Return the capture of all steps of a job."""
    return capture(
        JOB,
        lambda kind, rank, step, microbatch: pass_ns(
            kind, rank, step, microbatch, rank == slow_rank
        ),
    )


def lengths_ns(trace):
    """Return the length of every step, from mean end to mean end."""
    steps = trace.tables["step"].to_pandas()
    ends = (steps["start_ns"] + steps["dur_ns"]).groupby(steps["step"]).mean()
    return np.diff(ends.to_numpy(), prepend=0)


def holding(trace, kept):
    """Return a capture that holds some steps in full, and of the others the length alone."""
    wanted, tables = pa.array(kept, pa.int64()), dict(trace.tables)

    def is_kept(table):
        return pc.is_in(pc.cast(table["step"], pa.int64()), wanted)

    for name in ("span", "collective", "p2p"):
        tables[name] = tables[name].filter(is_kept(tables[name]))
    steps = tables["step"]
    detail = pc.if_else(is_kept(steps), "full", "steps")
    place = steps.schema.get_field_index("detail")
    tables["step"] = TABLES["step"].conform(steps.set_column(place, "detail", detail))
    return replace(trace, tables=tables, origin="meshscope", _frames={})


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_a_slow_rank_costs_what_it_costs_in_all_steps(kept):
    """Every run of more than a hundred steps would be told too low a price, by a sixth of it."""
    with_it, without = lengths_ns(job(SLOW)), lengths_ns(job(None))
    own = np.array([step for step in kept if step > 0])
    true = (with_it[own] - without[own]).sum() / with_it[own].sum()
    result = diagnose(holding(job(SLOW), kept))
    (cause,) = (found for found in result.causes if found.kind == "straggler_rank")
    assert cause.where["rank"] == SLOW
    assert cause.removal_gain_frac == pytest.approx(true, abs=CLOSE)
    assert result.step_time_ns == pytest.approx(with_it[own].mean(), rel=CLOSE)


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_with_nothing_changed_steps_are_as_long_as_recorded(kept):
    """A gap between two steps would be part of one of them."""
    program = measure(holding(job(SLOW), kept)).program
    nothing = [EdgeEffect(np.zeros(0, np.int32), np.zeros(0))]
    replayed = step_lengths(program, nothing, np.ones((1, 1)))[:, 0]
    frame = program.windows.frame
    recorded = (frame["end_ns"] - frame["start_ns"]).groupby(frame["step"]).mean()
    assert replayed == pytest.approx(recorded.to_numpy(), abs=1.0)
