"""Whatever the clocks are set to: the same offsets are found and the same diagnosis made."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.skew import shifted
from tests.synthetic import MS, Job, capture

from meshscope.analyze.align.clocks.alignment import LEAST_CORRECTION_NS, align
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.tables.results import Diagnosis
from meshscope.analyze.tables.trace import Trace
from meshscope.analyze.wording.limits import has_code
from meshscope.probe.schema.layout import ParallelLayout

SECOND = 1_000_000_000


def job(layout: ParallelLayout, steps: int = 3) -> Trace:
    """Return a job with a slow rank, each rank on a clock of its own."""

    def work(kind: str, rank: int, step: int, microbatch: int) -> int:
        return (13 if rank == 1 else 10) * (1 if kind == "forward" else 2) * MS

    trace = capture(Job(layout=layout, steps=steps), work)
    return replace(trace, clocks={rank: f"host{rank}" for rank in trace.ranks})


LAYOUTS = (
    ParallelLayout(dp=4),
    ParallelLayout(tp=2, pp=2),
    ParallelLayout(tp=2, pp=2, dp=2),
    ParallelLayout(pp=4),
)


@cache
def diagnosed(layout: ParallelLayout) -> tuple[Trace, Diagnosis]:
    """Return a job on right clocks, and its diagnosis."""
    trace = job(layout)
    return trace, diagnose(trace)


@pytest.fixture(scope="module")
def longer() -> Trace:
    """Return a job of which nobody knows whether its ranks share a clock."""
    return replace(job(ParallelLayout(dp=4), steps=10), clocks={})


OFFSETS = st.lists(
    st.sampled_from([0, 1_000, 100_000]) | st.integers(-SECOND, SECOND), min_size=8, max_size=8
)


def set_clocks(trace: Trace, offsets: list[int]) -> Trace:
    """Return the trace with each rank's clock ahead by its offset."""
    for rank in trace.ranks:
        trace = shifted(trace, {rank}, offsets[rank])
    return trace


@settings(max_examples=12)
@given(st.sampled_from(LAYOUTS), OFFSETS)
@example(ParallelLayout(dp=4), [0, 20_538_597, 0, 0, 0, 0, 0, 0])
@example(ParallelLayout(dp=4), [0, -1_540, 0, 6_637_853, 0, 0, 0, 0])
def test_random_clocks_change_nothing(layout, offsets):
    """Who is blamed, and for how much, would depend on how the clocks were set, and nobody would say so."""
    trace, truth = diagnosed(layout)
    result = diagnose(align(set_clocks(trace, offsets)))
    if any(has_code(limit, "doubt.clocks_vague") for limit in result.limits):
        # By a few collectives alone a clock is not distinguished from a link that is late by the same time.
        assert layout.pp == 1 or layout.dp > 1
        suspects = {f.where["rank"] for f in result.findings if f.kind == "straggler_rank"}
        assert suspects <= {1}
        return
    assert [(f.kind, f.where) for f in result.findings] == [
        (f.kind, f.where) for f in truth.findings
    ]
    assert [(c.kind, c.where) for c in result.causes] == [(c.kind, c.where) for c in truth.causes]
    for found, expected in zip(result.causes, truth.causes, strict=True):
        assert found.share_frac == pytest.approx(expected.share_frac, abs=1e-6)
        assert found.removal_gain_frac == pytest.approx(expected.removal_gain_frac, abs=1e-6)


@settings(max_examples=12)
@given(offsets=OFFSETS)
def test_random_offsets_are_found_within_their_error(longer, offsets):
    """A correction would be further off than it says."""
    moved = align(set_clocks(longer, offsets))
    starts = moved.frame("step").groupby("rank")["start_ns"].min()
    # All ranks began at 0, so what is left of the offsets is how far they are apart.
    assert starts.max() - starts.min() <= 2 * LEAST_CORRECTION_NS
    for row in moved.frame("clock_sync").to_dict("records"):
        rank, reference = (int(row[name].split()[1]) for name in ("host", "reference_host"))
        true = offsets[reference] - offsets[rank]
        assert abs(row["offset_ns"] - true) <= row["error_ns"]
