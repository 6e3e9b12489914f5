"""Time that nothing claims, by what lies around it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.synthetic import MS, Job, capture, uniform

from meshscope.analyze.account.ledger.build import Ledger
from meshscope.analyze.account.ledger.unrecorded import unrecorded_places
from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.tables.capabilities import OWN
from meshscope.analyze.tables.classes import CODE, UNATTRIBUTED
from meshscope.probe.schema.layout import ParallelLayout

NAMES = ("forward", "optimizer", "data_load", UNATTRIBUTED)


def ledger_of(rows):
    """Return a ledger of rows of rank, step, length and class, of which those of a rank follow each other."""
    table = pd.DataFrame(rows, columns=["rank", "step", "ns", "name"])
    end = table.groupby("rank")["ns"].cumsum()
    segments = table[["rank", "step"]].assign(
        start_ns=end - table["ns"], end_ns=end, code=table["name"].map(CODE)
    )
    by_step = table.groupby(["rank", "step"])["ns"].sum().rename("step_ns").reset_index()
    return Ledger(segments, by_step)


def test_a_stretch_goes_on_over_the_border_of_a_step():
    """Fails when what a loop does between two steps is two places, each of half its size."""
    rows = [
        (0, 1, 5, UNATTRIBUTED),
        (0, 1, 30, "forward"),
        (0, 1, 25, UNATTRIBUTED),
        (0, 2, 15, UNATTRIBUTED),
        (0, 2, 25, "data_load"),
    ]
    between, first = unrecorded_places(ledger_of(rows), 0.0)
    assert (between.after, between.before, between.frac) == ("forward", "data_load", 0.4)
    assert (between.longest_ns, between.rank, between.step) == (40, 0, 1)
    assert (first.after, first.before, first.frac) == (None, "forward", 0.05)


def test_ranks_and_steps_apart_are_not_joined():
    """Fails when the end of one rank's record and the start of the next one are one stretch."""
    rows = [
        (0, 1, 10, "forward"),
        (0, 1, 10, UNATTRIBUTED),
        (1, 1, 10, UNATTRIBUTED),
        (1, 1, 10, "forward"),
    ]
    found = {(one.after, one.before): one.frac for one in unrecorded_places(ledger_of(rows), 0.0)}
    assert found == {("forward", None): 0.25, (None, "forward"): 0.25}


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 9), st.sampled_from(NAMES)),
        min_size=1,
        max_size=40,
    ).map(sorted)
)
def test_places_add_up_to_the_unrecorded_time(rows):
    """Fails when some unrecorded time has no place, or two."""
    total = sum(ns for *_, ns, _ in rows)
    unrecorded = sum(ns for *_, ns, name in rows if name == UNATTRIBUTED)
    places = unrecorded_places(ledger_of(rows), 0.0)
    assert sum(one.frac for one in places) == pytest.approx(unrecorded / total)
    assert all(np.diff([one.frac for one in places]) <= 0)


def without_optimizer(origin, steps=range(6)):
    """Return a healthy job of four replicas, of which the optimizer was not recorded in some steps."""
    job = Job(layout=ParallelLayout(dp=4), microbatches=2, steps=6, optimizer_ns=20 * MS)
    trace = capture(job, uniform(10 * MS, 20 * MS))
    spans = trace.tables["span"]
    rows = zip(spans["kind"].to_pylist(), spans["step"].to_pylist(), strict=True)
    kept = np.array([kind != "optimizer" or step not in steps for kind, step in rows])
    return replace(
        trace, origin=origin, tables={**trace.tables, "span": spans.filter(kept)}, _frames={}
    )


def test_a_finding_says_where_unrecorded_time_lies():
    """Fails when 25 % of a step are in no class and no finding says so."""
    (found,) = (
        one for one in diagnose(without_optimizer(OWN)).findings if one.cause == "unrecorded"
    )
    assert found.cost_frac == pytest.approx(0.25, abs=0.02)
    assert "outside passes, communication and known stalls" in str(found.claim)
    between, edge, *_ = map(str, found.evidence)
    assert between == "16.0 ms per step after DP communication: on the wire, before forward"
    assert edge.startswith("4.00 ms per step after DP communication")


def test_a_rank_of_which_nothing_else_was_recorded_has_words():
    """Fails when a capture of steps alone ends in a traceback."""
    trace = without_optimizer(OWN)
    empty = {name: trace.tables[name].slice(0, 0) for name in ("span", "collective", "p2p")}
    bare = replace(trace, tables={**trace.tables, **empty}, _frames={})
    found = [one for one in diagnose(bare).findings if one.cause == "unrecorded"]
    assert ["with nothing recorded" in str(one.evidence[0]) for one in found] == [True]


def test_time_of_one_step_is_not_that_of_all():
    """Fails when an evaluation in one step is taken for a loop that is slow in every step."""
    found = diagnose(without_optimizer(OWN, steps=[3])).findings
    assert [one for one in found if one.cause == "unrecorded"] == []
    found = diagnose(without_optimizer(OWN, steps=[2, 4])).findings
    (one,) = (one for one in found if one.cause == "unrecorded")
    assert one.steps == (2, 4)
    assert str(one.claim).endswith("known stalls, all of it in steps 2 and 4")


def test_a_tool_that_records_less_is_not_said_to_have_seen_all():
    """Fails when the gaps of a trace without host time are called time of the training loop."""
    assert not [
        one
        for one in diagnose(without_optimizer("ndtimeline")).findings
        if one.cause == "unrecorded"
    ]
