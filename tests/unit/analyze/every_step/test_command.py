"""The verb that accounts for every step: what it writes for people and for programs, and what it refuses."""

import json
import re

import pytest
from typer.testing import CliRunner

from meshscope.analyze.synthetic import SyntheticJob, parse_fault
from meshscope.analyze.synthetic.record import record
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.analyze.synthetic.simulate import make_simulation
from meshscope.cli import app
from meshscope.probe.schema.layout import ParallelLayout

STEPS = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run in which one rank is slow in the second half."""
    job = SyntheticJob(
        layout=ParallelLayout(tp=2, pp=2, dp=2),
        microbatches=4,
        steps=STEPS,
        jitter_cv=0.005,
        faults=(parse_fault("slow_rank:rank=5,factor=1.3,first_step=6"),),
    )
    return write_run(job, record(make_simulation(job)), None, tmp_path_factory.mktemp("runs"))


def asked(run, *words):
    """Return what the command gives."""
    return CliRunner().invoke(app, ["diagnose", str(run), "--every-step", "--workers", "1", *words])


def test_people_read_what_it_cost_over_all_steps_and_where_it_was(run):
    """Fails when the account lacks classes, findings with their steps, or the way to look closer."""
    text = asked(run).stdout
    assert re.search(r"8 ranks; 12 steps \(0\.\.11\) of [\d.]+ ms, in \d windows?\n", text)
    titles = [
        "Where the step time went",
        "Findings, by what they cost over all steps",
        "Causes by replay, over all steps",
        "Limits of this result",
    ]
    places = [text.index(title) for title in titles]
    assert places == sorted(places)
    assert re.search(r"straggler rank: rank 5 +[\d.]+ % +[\d.]+ % +steps 6-11", text)
    assert "Only steps" not in text
    assert "MFU unknown: the capture lacks" in text
    assert re.search(r"Next: meshscope diagnose \S+ --steps \d+:11", text)


def test_programs_get_sums_windows_and_the_first_answer(run):
    """Fails when the JSON form loses a window, or its classes do not add up to the mean of ranks."""
    value = json.loads(asked(run, "--format", "json", "--steps", "0:11").stdout)
    assert value["version"] == 1
    assert (value["steps"], value["step_count"]) == ([0, STEPS - 1], STEPS)
    assert sum(one["step_count"] for one in value["windows"]) == STEPS
    assert value["summary"]["ranks"] == 8
    (slow,) = (one for one in value["causes"] if one["kind"] == "straggler_rank")
    assert (slow["where"], slow["steps"][-1][-1]) == ({"rank": 5}, STEPS - 1)
    assert 0 < slow["removal_gain_frac"] < 0.3
    assert sum(value["classes"].values()) == pytest.approx(value["step_time_ns"], rel=0.05)


@pytest.mark.parametrize("steps", ["100:200", "12:"])
def test_steps_that_are_not_there_are_refused(run, steps):
    """Fails when a question about other steps is answered, or ends in a traceback."""
    found = asked(run, "--steps", steps)
    assert found.exit_code != 0
    assert re.search(r"there is no step 1\S* in the capture; it has 0:11", str(found.exception))


def test_a_limit_on_memory_makes_more_windows(run):
    """Fails when a worker takes more memory than it was given."""
    counts = [
        len(json.loads(asked(run, "--format", "json", *words).stdout)["windows"])
        for words in ((), ("--memory-limit", "251MB"))
    ]
    assert counts[0] < counts[1]
