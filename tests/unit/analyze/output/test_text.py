"""The report for people and for programs says the same, completely."""

import json
import re
from dataclasses import replace

import msgspec
import pytest
from tests.synthetic import MS, Job, capture

from meshscope.analyze.findings.diagnosis import diagnose
from meshscope.analyze.output.json import collectives_to_json, diagnosis_to_json, topology_to_json
from meshscope.analyze.output.render import to_markdown, to_plain
from meshscope.analyze.output.text import (
    collectives_document,
    diagnosis_document,
    to_text,
    topology_document,
)
from meshscope.analyze.wording.limits import limit_texts
from meshscope.probe.schema.layout import ParallelLayout


@pytest.fixture(scope="module")
def result():
    """Return the diagnosis of a job whose rank 3 is slow."""
    layout = ParallelLayout(tp=2, pp=2)
    return diagnose(
        capture(
            Job(layout=layout, steps=3),
            lambda kind, rank, step, microbatch: (30 if rank == 3 else 20) * MS,
        )
    )


def as_json(result):
    """Return the JSON form as another program would read it."""
    return json.loads(
        msgspec.json.encode(diagnosis_to_json(result), enc_hook=lambda scalar: scalar.item())
    )


def test_json_has_the_documented_keys(result):
    """A program that reads the result would break."""
    value = as_json(result)
    assert {"run", "step_time_ns", "mfu", "waterfall", "causes", "findings", "limits"} <= set(value)
    assert set(value["waterfall"][0]) == {"class", "frac", "dur_ns"}
    cause = {"kind", "where", "share_frac", "removal_gain_frac", "removal_gain_interval"}
    cause |= {"direct_ns", "induced_wait_ns", "relief_ns", "hidden_by", "gain_as_host_frac"}
    assert all(set(row) == cause for row in value["causes"])
    finding = {"kind", "severity", "where", "cost_frac", "removal_gain_frac", "confidence"}
    assert all(finding | {"evidence", "remedy"} <= set(row) for row in value["findings"])
    assert {"tp", "pp", "dp", "order"} <= set(value["run"])


def test_json_bars_sum_to_the_step(result):
    """Time would be lost between the ledger and the reader."""
    bars = as_json(result)["waterfall"]
    assert sum(bar["frac"] for bar in bars) == pytest.approx(1, abs=1e-9)
    assert sum(bar["dur_ns"] for bar in bars) == pytest.approx(result.ledger["step_ns"].mean())


def test_markdown_waterfall_sums_to_one_hundred_percent(result):
    """The table in a pull request would not add up."""
    text = to_markdown(diagnosis_document(result))
    block = text.split("## Where the step time went")[1].split("##")[0]
    shares = [float(x) for x in re.findall(r"\| (-?[\d.]+) % \|", block)]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100.0, abs=0.01 * len(shares))


def test_markdown_tables_have_as_many_cells_as_headings(result):
    """A table would not be rendered."""
    tables = re.findall(r"(?:^\|.*\n?)+", to_markdown(diagnosis_document(result)), re.MULTILINE)
    assert len(tables) >= 3
    for table in tables:
        rows = table.strip().splitlines()
        assert len({row.count("|") for row in rows}) == 1, rows[0]


def test_text_names_the_slow_rank_and_the_limits(result):
    """A reader would see figures without what they mean."""
    text = to_text(result)
    assert "straggler_rank: Rank 3" in text
    assert all(limit in text for limit in limit_texts(result.limits))
    assert "MFU unknown" in text
    assert "nan" not in text.lower()


def test_every_finding_is_in_the_text_with_its_remedy(result):
    """A finding would be in the JSON only."""
    text = to_text(result)
    assert result.findings
    for finding in result.findings:
        assert str(finding.claim) in text
        assert str(finding.remedy) in text


def test_what_a_repair_returns_lies_in_its_interval(result):
    """A repair would be said to cost time, beside an interval that begins at nothing."""
    first = replace(
        result.findings[0], removal_gain_frac=-0.039, removal_gain_interval=(-0.05, 0.001)
    )
    text = to_text(replace(result, findings=(first,)))
    assert "fixing it alone returns 0.0 % (0.0 % to 0.1 %)" in text


def test_a_name_from_the_input_is_no_markdown_that_acts(result):
    """A page of a change would show a link or fetch a picture that a host or run is called."""
    name = "![x](http://e/p.png)<img src=x>\x1b[31m\n# head"
    text = to_markdown(diagnosis_document(replace(result, run=result.run | {"run_id": name})))
    assert text.startswith("# meshscope diagnosis of ![x]\\(http://e/p.png)&lt;img src=x>\\x1b[31m")
    assert "](" not in text
    assert "\n# head" not in text


def test_many_ranks_and_groups_fit_a_screen_with_what_matters_on_top():
    """Fails if a job of thousands of ranks prints a line for each, or hides the slow one."""
    layout = ParallelLayout(tp=2, pp=2, dp=40)
    trace = capture(
        Job(layout=layout, steps=1, microbatches=1),
        lambda kind, rank, step, microbatch: (30 if rank == 101 else 20) * MS,
    )
    collectives = to_plain(collectives_document(collectives_to_json(trace)))
    first = collectives.split("arrived last")[1].splitlines()[1]
    assert first.split()[0] == "101"
    assert f"… and {layout.world_size - 32} more ranks" in collectives
    assert "more groups" in collectives
    topology = to_plain(topology_document(topology_to_json(trace)))
    assert "more groups" in topology
    assert max(len(collectives.splitlines()), len(topology.splitlines())) < 120


def test_the_waits_of_ranks_are_of_one_step():
    """Fails when sums over all steps stand beside times of a step, and exceed it."""
    layout = ParallelLayout(dp=2)
    job = Job(layout=layout, steps=6, microbatches=1)
    found = diagnose(capture(job, lambda kind, rank, step, microbatch: (2 + rank) * 10 * MS))
    waited = found.stragglers.set_index("rank").loc[0, "wait_ns"] / found.run["steps"]
    row = next(line for line in to_text(found).split("Ranks, by")[1].splitlines() if " 0  " in line)
    assert f"{waited / 1e6:.3f}" in row.split()
    assert waited < found.step_time_ns


@pytest.mark.parametrize(("takes_turns", "last"), [(True, "varies"), (False, "rank 2")])
def test_one_of_three_late_ranks_is_not_named_alone(takes_turns, last):
    """Fails when the rank that came last in a third of the sums is said to be last mostly."""
    job = Job(layout=ParallelLayout(dp=3), steps=9, microbatches=1)
    trace = capture(
        job,
        lambda kind, rank, step, microbatch: (
            (20 + 10 * (rank == (step % 3, 2)[not takes_turns])) * MS
        ),
    )
    text = to_plain(collectives_document(collectives_to_json(trace)))
    row = next(line for line in text.split("mostly last")[1].splitlines() if "all_reduce" in line)
    assert last in row
