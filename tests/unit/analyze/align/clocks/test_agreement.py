"""Clocks that disagree are told, and nothing is concluded from them."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.skew import shifted
from tests.synthetic import MS, Job, capture, uniform
from tests.texts import texts

from meshscope.analyze.align.clocks.agreement import _beyond, clock_offsets
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.measure import measure
from meshscope.analyze.tables.trace import Trace
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import FindingKind


@pytest.fixture(scope="module")
def healthy() -> Trace:
    """Return a 2x2x2 job without a fault."""
    job = Job(layout=ParallelLayout(tp=2, pp=2, dp=2), steps=3)
    return capture(job, uniform(10 * MS, 20 * MS))


def skews(trace: Trace):
    """Return the clock findings of a trace."""
    found = diagnose(trace).findings
    return [finding for finding in found if finding.kind is FindingKind.CLOCK_SKEW]


def test_agreeing_clocks_are_silent(healthy):
    """If this fails, every run is called badly synchronised."""
    assert not skews(healthy)


@pytest.mark.parametrize("offset_ms", [-1000, -50, 3, 1000])
def test_one_wrong_clock_is_named(healthy, offset_ms):
    """If this fails, a host whose NTP died is diagnosed as a straggler or a slow link."""
    (finding,) = skews(shifted(healthy, {5}, offset_ms * MS))
    assert 5 in finding.where["ranks"]


@pytest.mark.parametrize("offset_ms", [-50, 50])
def test_a_host_that_holds_whole_groups_is_seen_by_causality(healthy, offset_ms):
    """If this fails, a wrong clock that no collective crosses becomes a slow pipeline link."""
    assert skews(shifted(healthy, {4, 5, 6, 7}, offset_ms * MS))


def test_ranks_on_one_clock_are_never_called_skewed(healthy):
    """If this fails, a busy machine costs its captures all causes."""
    one = replace(healthy, clocks=dict.fromkeys(healthy.ranks, "host"), _frames={})
    assert not skews(shifted(one, {5}, 3 * MS))
    apart = replace(one, clocks={**one.clocks, 5: "other"}, _frames={})
    assert skews(shifted(apart, {5}, 3 * MS))


def test_a_clock_is_not_wrong_by_less_than_its_correction_may_be_off(healthy):
    """If this fails, a host that was corrected as well as can be loses all its causes."""
    events = measure(shifted(healthy, {5}, round(1.5 * MS))).events
    assert len(clock_offsets(events, healthy.clock_of))
    assert clock_offsets(events, healthy.clock_of, {"other": 0.6 * MS}).empty
    worse = measure(shifted(healthy, {5}, 3 * MS)).events
    assert len(clock_offsets(worse, healthy.clock_of, {"other": 9.0 * MS}))


def test_nothing_is_concluded_from_wrong_clocks(healthy):
    """If this fails, causes and costs are reported from times that mean nothing."""
    result = diagnose(shifted(healthy, {5}, 50 * MS))
    assert result.causes == ()
    assert any("clocks" in limit for limit in texts(result.limits))
    assert sum(bar.frac for bar in result.waterfall) == pytest.approx(1)


def test_stamps_that_scatter_are_no_wrong_clocks():
    """If this fails, a tool that stamps a few times late costs its captures all causes."""
    job = Job(layout=ParallelLayout(pp=2, dp=2), microbatches=8, steps=12)
    trace = capture(job, uniform(10 * MS, 20 * MS))
    received = trace.frame("p2p")["direction"].astype(str) == "recv"
    early = np.zeros(len(received), dtype=np.int64)
    # One receive in thirty is stamped before its send: four of the 96 of a rank.
    early[np.flatnonzero(received)[::30]] = 3 * MS
    p2p = trace.tables["p2p"]
    place = p2p.schema.get_field_index("end_ns")
    ends = pa.array(p2p.column(place).to_numpy() - early)
    assert not skews(trace.with_tables({"p2p": p2p.set_column(place, "end_ns", ends)}))


@pytest.mark.parametrize(
    ("others", "is_wrong"), [([3.9, 4.0, 4.2], True), ([0.0, -4.4, -0.6], False)]
)
def test_a_clock_is_wrong_at_all_its_ends(others, is_wrong):
    """If this fails, ends that come in ticks of 4 ms are a wrong clock where five of eight agree."""
    ends = pd.Series([3.8, 4.0, 4.3, 4.1, 4.0, *others]) * MS
    assert len(_beyond(ends, [pd.Series(0, ends.index)])) == is_wrong
