"""The verb ``whatif`` with every kind of change at once."""

import json
import shlex
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from meshscope.analyze.synthetic import Costs, SyntheticJob, generate, make_simulation, parse_fault
from meshscope.analyze.synthetic.faults import Fault, FaultKind
from meshscope.analyze.synthetic.run_directory import write_run
from meshscope.cli import app
from meshscope.probe.schema.layout import ParallelLayout
from meshscope.probe.schema.terms import ScheduleKind

MS = 1_000_000
WANTED = (9, 8, 8, 7)
CHANGES = shlex.split(
    "--fix rank=5 --fix stage=3 --set microbatches=64 --set schedule=zb-h1 --set layers=9,8,8,7 "
    "--set link.dp=2x"
)
JOB = SyntheticJob(
    layout=ParallelLayout(pp=4, dp=4),
    layers=(8, 8, 8, 8),
    steps=6,
    jitter_cv=0.02,
    wire_cv=0.02,
    costs=Costs(head_ns=3 * MS, dp_ns=20 * MS),
    faults=(parse_fault("slow_rank:rank=5,factor=1.4"),),
)


@pytest.fixture(scope="module")
def run_path(tmp_path_factory):
    """Return a run of 16 ranks with a slow rank and a heavy output head."""
    return write_run(JOB, generate(JOB)[0], None, tmp_path_factory.mktemp("runs"))


def answer(path, *options):
    """Return what the command prints."""
    result = CliRunner().invoke(app, ["whatif", str(path), *CHANGES, *options])
    assert result.exit_code == 0, result.output
    return result.stdout


def changed():
    """Return the job with all changes made: the head is shared by the four stages."""
    shared = tuple(
        Fault(kind=FaultKind.SLOW_STAGE, stage=stage, factor=1 + 0.75 / layers)
        for stage, layers in enumerate(WANTED)
    )
    return replace(
        JOB,
        faults=shared,
        layers=WANTED,
        microbatches=64,
        schedule=ScheduleKind.ZB_H1,
        costs=replace(JOB.costs, head_ns=0, dp_ns=JOB.costs.dp_ns // 2),
    )


def test_all_changes_together_give_the_step_of_the_job_that_runs_so(run_path):
    """Fails when changes that can be asked for in one call are refused, or priced apart."""
    form = json.loads(answer(run_path, "--format", "json"))
    truth = float(list(make_simulation(changed()).steps())[-1].end.mean() / JOB.steps)
    assert form["predicted_step_time_ns"] == pytest.approx(truth, rel=0.01)
    assert abs(form["predicted_step_time_ns"] - truth) <= form["error_ns"]
    assert len(form["changes"]) == len(CHANGES) // 2
    assert form["microbatches"] == 64


def test_the_order_of_the_changes_is_printed(run_path):
    """Fails when readers cannot tell whether layers moved before the stage was repaired."""
    shown = " ".join(answer(run_path).split())
    assert "of its passes): repaired last, after all other repairs and speed-ups" in shown
    assert "Then layers move" in shown
    assert "±" in shown
