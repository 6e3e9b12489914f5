"""Real traces whose clocks agree, with one of them set wrong."""

import pytest
from tests.skew import shifted
from tests.texts import texts

from meshscope.analyze import diagnose, load_trace
from meshscope.analyze.align.clocks.alignment import align, estimate_offsets
from meshscope.analyze.align.communication.matching import match_collectives

pytestmark = pytest.mark.traces
NEAR_NS = 20_000
"""Members of one collective end up to 24 us apart here."""


@pytest.fixture(scope="module")
def four_ranks(traces_dir):
    """Return four real profiler traces of one machine."""
    return load_trace(traces_dir / "amd_hpctraining" / "split")


@pytest.fixture(scope="module")
def truth(four_ranks):
    """Return what they say as they are."""
    return diagnose(four_ranks)


def waits(result):
    """Return the waits by rank in ns."""
    return result.stragglers.set_index("rank").sort_index()[["wait_ns", "early_ns"]]


def arrivals(trace):
    """Return how far the starts of each collective are apart."""
    table = match_collectives(trace).collectives
    return table.set_index(["group_id", "seq"])["start_spread_ns"]


@pytest.mark.parametrize("folder", ["amd_hpctraining/split", "param"])
def test_ranks_of_one_machine_keep_their_times(traces_dir, folder):
    """Real times would be changed by what members leave a collective apart."""
    trace = load_trace(traces_dir / folder)
    assert align(trace) is trace
    assert trace.frame("clock_sync").empty
    assert not [limit for limit in texts(trace.limits) if "clock" in limit]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("offset_ns", [1_000, -100_000, 10_000_000, 10**9])
@pytest.mark.parametrize("rank", range(4))
def test_one_wrong_clock(four_ranks, truth, rank, offset_ns):
    """A wait would change by more than the ends of a collective are apart."""
    wrong = shifted(four_ranks, {rank}, offset_ns)
    row = {row["host"]: row for row in estimate_offsets(wrong).to_pylist()}.get(f"rank {rank}")
    if row is not None:
        assert abs(row["offset_ns"] + offset_ns) <= NEAR_NS
    aligned = align(wrong)
    result = diagnose(aligned)
    per_collective = (arrivals(aligned) - arrivals(four_ranks)).abs()
    assert per_collective.max() <= NEAR_NS
    count = truth.stragglers["collectives"].max()
    assert (waits(result) - waits(truth)).abs().max(axis=None) <= NEAR_NS * count
    found = [(f.kind, f.where) for f in result.findings if f.kind != "clock_skew"]
    assert found == [(f.kind, f.where) for f in truth.findings]
    is_reported = any("corrected" in limit for limit in texts(aligned.limits))
    assert is_reported == (abs(offset_ns) > NEAR_NS)
