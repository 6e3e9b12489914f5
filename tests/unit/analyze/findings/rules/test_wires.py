"""Wires that are slower at times: what it costs, where most of it is, and when."""

from dataclasses import replace

import pandas as pd
import pyarrow as pa
import pytest
from tests.synthetic import MS, Job, capture_of, programs, uniform

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.findings.rules.wires import excess_of
from meshscope.analyze.synthetic import Fault, FaultKind, SyntheticJob, generate
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.tables import TABLES

DEEP = ParallelLayout(pp=4, dp=4)


def slow(**changes):
    """Return a fault on transfers of the pipeline."""
    return Fault(kind=FaultKind.SLOW_LINK, axis="pp", **changes)


def diagnosed(*faults, steps=10, layout=DEEP, **job):
    """Return the truth of a job with these faults, and its findings on wires."""
    job = SyntheticJob(layout=layout, steps=steps, faults=faults, jitter_cv=0.02, **job)
    trace, truth = generate(job)
    found = diagnose(trace).findings
    return truth, [one for one in found if one.kind in ("slow_link", "slow_wire")]


def test_a_single_bad_moment_of_a_link_has_its_place_and_step():
    """Fails when 8 % of the steps are lost on one link, and nothing says so."""
    truth, (found,) = diagnosed(
        slow(rank=5, peer=9, extra_ms=3.0, first_step=2, last_step=2), steps=4
    )
    assert (found.kind, found.severity) == ("slow_wire", "warning")
    assert found.where == {"axis": "pp", "link": "5<->9", "steps": [2, 2]}
    assert abs(found.removal_gain_frac - truth.joint_ns / truth.step_time_ns) < 0.01
    assert "link 5<->9 of the PP axis" in str(found.claim)
    assert str(found.claim).endswith("in step 2")


def test_a_link_that_is_slow_in_few_steps_is_one_place():
    """Fails when a link that costs a share of the step has no finding."""
    truth, (found,) = diagnosed(
        slow(rank=5, peer=9, extra_ms=3.0, first_step=5, last_step=7), steps=20
    )
    assert found.kind == "slow_link"
    assert found.where == {"axis": "pp", "link": "5<->9", "steps": [5, 7]}
    assert abs(found.removal_gain_frac - truth.joint_ns / truth.step_time_ns) < 0.01


def test_a_whole_axis_that_is_slow_at_times_names_the_steps_and_no_link():
    """Fails when a network that is busy now and then costs a share of the step unseen."""
    _, (found,) = diagnosed(slow(extra_ms=3.0, first_step=2, last_step=3))
    assert found.where == {"axis": "pp", "steps": [2, 3]}
    assert str(found.claim).endswith("in steps 2 and 3")
    assert found.remedy.code == "slow_wire.remedy_no_place"


def test_slow_links_that_are_no_causes_of_their_own_are_listed():
    """Fails when the fourth and fifth bad link are reported as the weather of their axis."""
    links = [(0, 4, 3.0), (1, 5, 2.5), (2, 6, 2.2), (3, 7, 2.1), (4, 8, 2.0)]
    _, found = diagnosed(*(slow(rank=a, peer=b, extra_ms=ms) for a, b, ms in links))
    named = {one.where["link"] for one in found if one.kind == "slow_link"}
    (rest,) = (one for one in found if one.kind == "slow_wire")
    assert named == {"0<->4", "1<->5", "2<->6"}
    assert "2 more slow places of the PP axis" in str(rest.claim)
    assert "link 3<->7 and link 4<->8" in str(rest.evidence[1])


def test_even_wires_have_no_finding():
    """Fails when ordinary noise of transfers is something to act on."""
    assert diagnosed(wire_cv=0.1)[1] == []


def test_wires_that_are_always_slow_are_not_uneven():
    """Fails when what is only exposed is reported twice."""
    assert diagnosed(slow(extra_ms=3.0))[1] == []


def test_a_group_of_one_has_no_wire():
    """Fails when a link of a job that shrank to one rank is to be checked for errors, as if any was used."""
    job = Job(layout=ParallelLayout(), steps=20)
    operations = programs(job, uniform(10 * MS, 20 * MS))
    alone = ("dp-0", (0,))
    operations[0] = [
        one
        for op in operations[0]
        for one in (
            [
                op,
                (
                    "collective",
                    op[1],
                    alone,
                    "dp",
                    "all_reduce",
                    1 << 24,
                    (9 if op[1] % 4 else 1) * MS,
                ),
            ]
            if op[0] == "end"
            else [op]
        )
    ]
    trace = capture_of(job, operations)
    group = pa.Table.from_pylist([{"group_id": "dp-0", "axis": "dp", "ranks": [0]}])
    tables = {**trace.tables, "group": TABLES["group"].conform(group)}
    findings = diagnose(replace(trace, tables=tables)).findings
    assert not [one for one in findings if one.kind in ("slow_link", "slow_wire")]


def test_wires_that_take_no_time_have_no_ratio():
    """Fails when transfers take a billion times as long as those that clocks see take none."""
    rows = pd.DataFrame({"wire_ns": [0.0] * 9 + [7e6, 3e6], "excess_ns": [0.0] * 9 + [7e6, 3e6]})
    assert excess_of(rows) == (pytest.approx(10e6 / 11), None)
    assert excess_of(rows.assign(wire_ns=rows["wire_ns"] + 1e6)).ratio == pytest.approx(21 / 11)
